//! One turn for each tenant that has something to send.

use std::sync::Arc;

use slotmap::SecondaryMap;
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::Time;
use sluice_flow::FlowId;
use sluice_flow::policy::{Fairness, FairnessPolicy, Rank};

use super::NoParams;
use super::bits::Bits;

/// Serves the active flows of a band in a circle, in the order in which they came to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Plugin for RoundRobin {
    const TYPE: &'static str = "round-robin-fairness-policy";
    const STABILITY: Stability = Stability::Beta;
    type Params = NoParams;

    fn build(_: Self::Params, _: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::fairness(Self))
    }
}

impl FairnessPolicy for RoundRobin {
    fn new_band(&self) -> Box<dyn Fairness> {
        Box::new(Circle::default())
    }
}

/// Every flow has a place, in the order in which they came to be. The turn goes to the next place whose flow has a
/// head: a search among bits, so that idle tenants cost next to nothing.
#[derive(Debug, Default)]
struct Circle {
    /// Who came to have each place. A flow that is gone leaves its place empty until places are given out anew.
    flows: Vec<Option<FlowId>>,
    places: SecondaryMap<FlowId, usize>,
    /// Places whose flow has a head.
    active: Bits,
    /// Behind the place of the last turn.
    next: usize,
}

/// Empty places that are put up with, beside as many as there are flows.
const SPARE: usize = 64;

impl Circle {
    /// Gives places without gaps, in the same order.
    fn close_ranks(&mut self) {
        let old = std::mem::take(&mut self.flows);
        let active = std::mem::take(&mut self.active);
        let next = std::mem::take(&mut self.next);
        for (place, flow) in old.into_iter().enumerate() {
            let Some(flow) = flow else { continue };
            let closed = self.flows.len();
            self.flows.push(Some(flow));
            self.places.insert(flow, closed);
            self.active.set(closed, active.get(place));
            if place < next {
                self.next = closed + 1;
            }
        }
    }
}

impl Fairness for Circle {
    fn add(&mut self, flow: FlowId, _: &Arc<str>) {
        if self.flows.len() >= 2 * self.places.len() + SPARE {
            self.close_ranks();
        }
        self.places.insert(flow, self.flows.len());
        self.flows.push(Some(flow));
    }

    fn remove(&mut self, flow: FlowId) {
        if let Some(place) = self.places.remove(flow) {
            self.active.set(place, false);
            self.flows[place] = None;
        }
    }

    fn set_head(&mut self, flow: FlowId, head: Option<Rank>) {
        if let Some(&place) = self.places.get(flow) {
            self.active.set(place, head.is_some());
        }
    }

    fn pick(&mut self, _: Time) -> Option<FlowId> {
        let place = self.active.first_from(self.next).or_else(|| self.active.first_from(0))?;
        self.flows[place]
    }

    fn granted(&mut self, _: Time, flow: FlowId, _: u64, turn: bool) {
        if turn && let Some(&place) = self.places.get(flow) {
            self.next = place + 1;
        }
    }

    fn refund(&mut self, _: FlowId, _: u64) {}
}

#[cfg(test)]
#[path = "round_robin_tests.rs"]
mod tests;
