use std::sync::Arc;

use sluice_core::{Clock, Endpoint};
use sluice_flow::policy::{EndpointFacts, SaturationDetector};
use sluice_flow::{Load, Partition, PoolMember};

use crate::admission::{Admission, members};

/// Who may enter the pool, and when.
#[derive(Debug)]
pub enum Gatekeeper {
    /// Everybody, at once.
    Open,
    /// Everybody at once, but sheddable work only while the endpoints it may use have room.
    Shedding(SheddingGate),
    /// Whoever's turn it is.
    FlowControl(Admission),
}

/// Refuses sheddable work when the endpoints it may use are saturated.
#[derive(Debug)]
pub struct SheddingGate {
    detector: Arc<dyn SaturationDetector>,
    clock: Arc<dyn Clock>,
}

impl SheddingGate {
    pub fn new(detector: Arc<dyn SaturationDetector>, clock: Arc<dyn Clock>) -> Self {
        Self { detector, clock }
    }

    /// Looks at nothing but these endpoints.
    pub(crate) fn is_saturated<'a>(&self, endpoints: impl IntoIterator<Item = &'a Arc<Endpoint>>) -> bool {
        let now = self.clock.now();
        let pool: Vec<_> = members(endpoints)
            .into_iter()
            .map(|PoolMember { key, endpoint, stages, max_concurrency }| {
                let load = Load { requests: endpoint.load().requests(), tokens: endpoint.load().tokens() };
                (EndpointFacts { key, partitions: stages.partitions(), max_concurrency }, load, endpoint.scraped())
            })
            .collect();
        let mut state = self.detector.new_state();
        state.advance(now);
        state.reset(&pool.iter().map(|(facts, load, _)| (*facts, *load)).collect::<Vec<_>>());
        if let Some(estimate) = state.estimate_mut() {
            for (facts, _, sample) in &pool {
                sample.iter().for_each(|sample| estimate.scraped(now, facts, sample));
            }
        }
        state.reading(Partition::Pool).saturation() >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use sluice_core::{EndpointId, EndpointUid, Scraped, SystemClock, Time};
    use sluice_plugins::flow::{ConcurrencyDetector, UtilizationDetector};

    use super::*;

    fn endpoint(name: &str) -> Arc<Endpoint> {
        let (id, uid) = (EndpointId::new("default", name), EndpointUid(name.into()));
        Arc::new(Endpoint::new(id, uid, ([127, 0, 0, 1], 8000).into(), BTreeMap::new()))
    }

    #[test]
    fn only_the_given_endpoints_count() {
        let (busy, idle) = (endpoint("busy"), endpoint("idle"));
        assert!(busy.load().try_book(u64::MAX));
        let detector = ConcurrencyDetector { max_concurrency: 1, ..ConcurrencyDetector::default() };
        let gate = SheddingGate::new(Arc::new(detector), Arc::new(SystemClock::start()));
        assert!(gate.is_saturated([&busy]));
        assert!(!gate.is_saturated([&idle]));
        assert!(!gate.is_saturated([&busy, &idle]), "half of what they can take");
        assert!(gate.is_saturated([]));
    }

    #[test]
    fn what_endpoints_say_of_themselves_counts_while_it_is_fresh() {
        let clock = Arc::new(SystemClock::start());
        let say = |endpoint: &Endpoint, began, waiting| {
            endpoint.set_scraped(Scraped { waiting: Some(waiting), ..Scraped::at(began) });
        };
        let gate = SheddingGate::new(Arc::new(UtilizationDetector::default()), Arc::clone(&clock) as Arc<dyn Clock>);
        let endpoint = endpoint("a");
        assert!(gate.is_saturated([&endpoint]), "it has said nothing");
        say(&endpoint, clock.now(), 4);
        assert!(!gate.is_saturated([&endpoint]));
        say(&endpoint, clock.now(), 5);
        assert!(gate.is_saturated([&endpoint]));
        let detector = UtilizationDetector { staleness: Duration::ZERO, ..UtilizationDetector::default() };
        say(&endpoint, Time::ZERO, 0);
        assert!(SheddingGate::new(Arc::new(detector), clock).is_saturated([&endpoint]), "it was long ago");
    }
}
