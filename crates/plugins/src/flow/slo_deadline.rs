//! By the deadline for the first token that the client asked for.

use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::Time;
use sluice_flow::policy::{OrderKey, OrderingFacts, OrderingPolicy};

use super::NoParams;

/// Orders by the arrival of the headers plus the header `x-llm-d-slo-ttft-ms`. A request without a usable one
/// goes last.
#[derive(Clone, Copy, Debug, Default)]
pub struct SloDeadline;

impl Plugin for SloDeadline {
    const TYPE: &'static str = "slo-deadline-ordering-policy";
    const STABILITY: Stability = Stability::Beta;
    type Params = NoParams;

    fn build(_: Self::Params, _: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::ordering(Self))
    }
}

impl OrderingPolicy for SloDeadline {
    fn key(&self, facts: &OrderingFacts) -> OrderKey {
        let deadline = facts.ttft.map_or(Time::MAX, |ttft| facts.received.saturating_add(ttft));
        OrderKey(deadline.as_nanos())
    }

    fn deadline(&self, key: OrderKey) -> Option<Time> {
        (key.0 < u64::MAX).then_some(Time::from_nanos(key.0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_target_counts_from_the_headers() {
        let facts = |ttft| OrderingFacts {
            arrival: Time::from_secs(100),
            received: Time::from_secs(90),
            ttl: None,
            saturation_budget: Duration::ZERO,
            ttft,
        };
        let key = SloDeadline.key(&facts(Some(Duration::from_millis(500))));
        assert_eq!(SloDeadline.deadline(key), Some(Time::from_millis(90_500)));
        for hostile in [None, Some(Duration::MAX)] {
            let key = SloDeadline.key(&facts(hostile));
            assert_eq!(key, OrderKey(u64::MAX), "{hostile:?}");
            assert_eq!(SloDeadline.deadline(key), None);
        }
    }
}
