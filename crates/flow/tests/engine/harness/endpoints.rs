//! Endpoints `e0`, `e1`, … and tickets that may use only some of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::{Endpoint, EndpointId, EndpointUid};
use sluice_flow::{Eligibility, EndpointKey, PoolMember, Stages};

/// Endpoints by name: `e0`, `e1`, …
#[derive(Clone, Debug)]
pub(crate) struct Hint(pub(crate) Vec<u8>);

impl Eligibility for Hint {
    fn allows(&self, endpoint: &Endpoint) -> bool {
        self.0.iter().any(|number| *endpoint.id.name == *format!("e{number}"))
    }
}

pub(crate) fn member(number: u8, key: u64, stages: Stages, max_concurrency: Option<u64>) -> PoolMember {
    let endpoint = Endpoint::new(
        EndpointId::new("default", &format!("e{number}")),
        EndpointUid(key.to_string().into()),
        ([127, 0, 0, 1], 8000).into(),
        BTreeMap::new(),
    );
    PoolMember { key: EndpointKey(key), endpoint: Arc::new(endpoint), stages, max_concurrency }
}
