use std::sync::Arc;

use sluice_core::Endpoint;
use sluice_flow::{EndpointKey, PoolMember, Stages};

/// The label that says which stages an endpoint serves.
const ROLE: &str = "llm-d.ai/role";

/// The engine's name for this life of an endpoint.
pub(super) fn key_of(endpoint: &Endpoint) -> EndpointKey {
    EndpointKey(endpoint.serial())
}

/// The members of a pool of these endpoints.
pub(crate) fn members<'a>(endpoints: impl IntoIterator<Item = &'a Arc<Endpoint>>) -> Vec<PoolMember> {
    let member = |endpoint: &Arc<Endpoint>| PoolMember {
        key: key_of(endpoint),
        stages: Stages::of_role(endpoint.labels.get(ROLE).map(String::as_str)),
        max_concurrency: endpoint.max_concurrency(),
        endpoint: Arc::clone(endpoint),
    };
    endpoints.into_iter().map(member).collect()
}
