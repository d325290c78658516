//! One turn for each tenant that has something to send.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use slotmap::SecondaryMap;
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::Time;
use sluice_flow::FlowId;
use sluice_flow::policy::{Fairness, FairnessPolicy, Rank};

use super::NoParams;

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

/// The circle holds the flows that have a head and no other, so that idle tenants cost nothing.
#[derive(Debug, Default)]
struct Circle {
    /// Flows with a head, by place.
    active: BTreeMap<u64, FlowId>,
    flows: SecondaryMap<FlowId, Place>,
    next_number: u64,
    /// Where the last turn was.
    cursor: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    number: u64,
    /// It is in the circle.
    active: bool,
}

impl Fairness for Circle {
    fn add(&mut self, flow: FlowId, _: &Arc<str>) {
        self.next_number += 1;
        self.flows.insert(flow, Place { number: self.next_number, active: false });
    }

    fn remove(&mut self, flow: FlowId) {
        self.set_head(flow, None);
        self.flows.remove(flow);
    }

    fn set_head(&mut self, flow: FlowId, head: Option<Rank>) {
        let Some(place) = self.flows.get_mut(flow) else { return };
        if place.active == head.is_some() {
            return;
        }
        place.active = head.is_some();
        if place.active {
            self.active.insert(place.number, flow);
        } else {
            self.active.remove(&place.number);
        }
    }

    fn pick(&mut self, _: Time) -> Option<FlowId> {
        let after = (Bound::Excluded(self.cursor), Bound::Unbounded);
        self.active.range(after).next().or_else(|| self.active.first_key_value()).map(|(_, flow)| *flow)
    }

    fn granted(&mut self, _: Time, flow: FlowId, _: u64, turn: bool) {
        if turn && let Some(place) = self.flows.get(flow) {
            self.cursor = place.number;
        }
    }

    fn refund(&mut self, _: FlowId, _: u64) {}
}
