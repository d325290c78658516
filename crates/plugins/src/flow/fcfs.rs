//! First come, first served.

use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_flow::policy::{OrderKey, OrderingFacts, OrderingPolicy};

use super::NoParams;

/// Orders by the time of submission.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fcfs;

impl Plugin for Fcfs {
    const TYPE: &'static str = "fcfs-ordering-policy";
    const STABILITY: Stability = Stability::Beta;
    type Params = NoParams;

    fn build(_: Self::Params, _: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::ordering(Self))
    }
}

impl OrderingPolicy for Fcfs {
    fn key(&self, facts: &OrderingFacts) -> OrderKey {
        OrderKey(facts.arrival.as_nanos())
    }
}
