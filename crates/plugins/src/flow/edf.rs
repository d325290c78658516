//! Earliest deadline first: the request whose time in the queue runs out soonest.

use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::Time;
use sluice_flow::policy::{OrderKey, OrderingFacts, OrderingPolicy};

use super::NoParams;

/// Orders by arrival plus the smaller of the request's own time to live and the band's saturation budget. A
/// request with neither goes last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edf;

impl Plugin for Edf {
    const TYPE: &'static str = "edf-ordering-policy";
    const STABILITY: Stability = Stability::Beta;
    type Params = NoParams;

    fn build(_: Self::Params, _: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::ordering(Self))
    }
}

impl OrderingPolicy for Edf {
    fn key(&self, facts: &OrderingFacts) -> OrderKey {
        let budget = Some(facts.saturation_budget).filter(|budget| !budget.is_zero());
        let bound = facts.ttl.into_iter().chain(budget).min();
        OrderKey(bound.map_or(Time::MAX, |bound| facts.arrival.saturating_add(bound)).as_nanos())
    }

    fn deadline(&self, key: OrderKey) -> Option<Time> {
        (key.0 < u64::MAX).then_some(Time::from_nanos(key.0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(ttl: Option<u64>, budget: u64) -> OrderKey {
        Edf.key(&OrderingFacts {
            arrival: Time::from_secs(100),
            received: Time::from_secs(90),
            ttl: ttl.map(Duration::from_secs),
            saturation_budget: Duration::from_secs(budget),
            ttft: None,
        })
    }

    #[test]
    fn the_smaller_bound_counts_from_arrival() {
        let at = |secs| OrderKey(Time::from_secs(secs).as_nanos());
        assert_eq!(key(Some(5), 60), at(105));
        assert_eq!(key(Some(90), 60), at(160));
        assert_eq!(key(None, 60), at(160));
        assert_eq!(key(Some(5), 0), at(105));
    }

    #[test]
    fn without_a_bound_it_goes_last_and_has_no_deadline() {
        assert_eq!(key(None, 0), OrderKey(u64::MAX));
        assert_eq!(Edf.deadline(key(None, 0)), None);
        assert_eq!(Edf.deadline(key(Some(5), 60)), Some(Time::from_secs(105)));
    }
}
