//! First come, first served.

use sluice_flow::policy::{OrderKey, OrderingFacts, OrderingPolicy};

/// Orders by the time of submission.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fcfs;

impl OrderingPolicy for Fcfs {
    fn key(&self, facts: &OrderingFacts) -> OrderKey {
        OrderKey(facts.arrival.as_nanos())
    }
}
