use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::{Endpoint, EndpointId, EndpointUid};
use sluice_flow::{EndpointKey, PoolMember, Stages};

/// The label that says which stages an endpoint serves.
const ROLE: &str = "llm-d.ai/role";

/// The label with an endpoint's own limit on concurrent requests.
const MAX_CONCURRENCY: &str = "llm-d.ai/max-concurrency";

/// Gives each life of an endpoint its key.
#[derive(Debug, Default)]
pub(super) struct Keys {
    present: BTreeMap<(EndpointId, EndpointUid), EndpointKey>,
    next: u64,
}

impl Keys {
    /// The members of a pool of these endpoints; a life that was present before keeps its key.
    pub(super) fn members(&mut self, endpoints: &[Arc<Endpoint>]) -> Vec<PoolMember> {
        let before = std::mem::take(&mut self.present);
        let member = |endpoint: &Arc<Endpoint>| {
            let life = (endpoint.id.clone(), endpoint.uid.clone());
            let key = before.get(&life).copied().unwrap_or_else(|| {
                self.next += 1;
                EndpointKey(self.next)
            });
            self.present.insert(life, key);
            PoolMember {
                key,
                stages: Stages::of_role(endpoint.labels.get(ROLE).map(String::as_str)),
                max_concurrency: endpoint.labels.get(MAX_CONCURRENCY).and_then(|limit| limit.parse().ok()),
                endpoint: Arc::clone(endpoint),
            }
        };
        endpoints.iter().map(member).collect()
    }

    /// The key of an endpoint of the present pool.
    pub(super) fn of(&self, endpoint: &Endpoint) -> Option<EndpointKey> {
        self.present.get(&(endpoint.id.clone(), endpoint.uid.clone())).copied()
    }
}
