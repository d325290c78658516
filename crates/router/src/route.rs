use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::SeedableRng as _;
use sluice_core::{Endpoint, Headers, Request};
use sluice_data::{EndpointTable, InFlight, Permit, Subset};
use sluice_schedule::{Candidates, Rng, ScheduleError, Scheduler};

use crate::{Identities, Identity, Rejection, Vouched};

/// A request that wants an endpoint.
#[derive(Clone, Debug)]
pub struct Intent {
    pub request: Arc<Request>,
    /// The endpoints the gateway allows; none: the whole pool.
    pub subset: Option<Subset>,
    /// The request has no body and asks for none of the model's time: it is placed but not counted.
    pub uncounted: bool,
}

/// A request that has got its endpoints.
#[derive(Debug)]
pub struct Routed {
    /// `ip:port` of each, best first, joined by commas: the form gateways read.
    pub destination: String,
    /// Counts the request on its endpoints until it is dropped.
    pub in_flight: Option<InFlight>,
}

/// Places requests on the endpoints of one pool.
#[derive(Debug)]
pub struct Router {
    table: Arc<EndpointTable>,
    scheduler: Scheduler,
    identities: Identities,
    /// The seed of the next decision's generator.
    seed: AtomicU64,
    heed_subset: bool,
}

impl Router {
    /// `seed` makes the random choices of a run repeatable. With `heed_subset` a request stays within the endpoints
    /// that the gateway allows it.
    pub const fn new(
        table: Arc<EndpointTable>,
        scheduler: Scheduler,
        identities: Identities,
        seed: u64,
        heed_subset: bool,
    ) -> Self {
        Self { table, scheduler, identities, seed: AtomicU64::new(seed), heed_subset }
    }

    /// Who a request is from, as far as its headers and the proxy say; an error if they rule it out.
    pub fn identify(&self, headers: &Headers, vouched: Option<&Vouched>) -> Result<Identity, Rejection> {
        self.identities.resolve(headers, vouched).map(|resolved| resolved.identity)
    }

    /// Chooses endpoints for the request and books them. Dropping the future, at any point, leaves no trace.
    pub async fn route(&self, intent: Intent, _identity: Identity) -> Result<Routed, Rejection> {
        let Intent { request, subset, uncounted } = intent;
        let snapshot = self.table.snapshot();
        let subset = subset.filter(|_| self.heed_subset);
        let allowed = |endpoint: &&Arc<Endpoint>| subset.as_ref().is_none_or(|subset| subset.allows(endpoint));
        let candidates = Candidates::new(snapshot.endpoints().iter().filter(allowed));
        if candidates.is_empty() {
            return Err(Rejection::NoCandidates);
        }
        let mut rng = Rng::seed_from_u64(self.seed.fetch_add(1, Ordering::Relaxed));
        let decision = self.scheduler.schedule(&request, &candidates, &mut rng).map_err(|error| match error {
            ScheduleError::Filtered { .. } => Rejection::NoneAvailable,
            ScheduleError::Handler { .. } => Rejection::Scheduling(error),
        })?;
        let in_flight = if uncounted {
            None
        } else {
            // The first endpoint serves; the others are for a gateway that tries again.
            Some(Permit::unlimited().start(&decision.targets[..1], 0).map_err(|_full| Rejection::NoneAvailable)?)
        };
        Ok(Routed { destination: destination(&decision.targets), in_flight })
    }
}

fn destination(targets: &[Arc<Endpoint>]) -> String {
    let mut list = String::with_capacity(targets.len() * 22);
    for (index, endpoint) in targets.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // Writing to a string cannot fail.
        write!(list, "{comma}{}", endpoint.address).unwrap_or_default();
    }
    list
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use sluice_core::{EndpointId, EndpointUid};

    #[test]
    fn a_destination_is_a_list_with_ipv6_in_brackets() {
        let targets: Vec<_> = ["10.0.0.1:8000", "[fd00::1]:8000"]
            .into_iter()
            .map(|address| {
                let id = EndpointId::new("default", address);
                Arc::new(Endpoint::new(id, EndpointUid("1".into()), address.parse().unwrap(), BTreeMap::new()))
            })
            .collect();
        assert_eq!(destination(&targets), "10.0.0.1:8000,[fd00::1]:8000");
        assert_eq!(destination(&targets[..1]), "10.0.0.1:8000");
    }
}
