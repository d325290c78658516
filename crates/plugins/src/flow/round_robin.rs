//! One turn for each tenant that has something to send.

use std::sync::Arc;

use slotmap::SecondaryMap;
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::Time;
use sluice_flow::FlowId;
use sluice_flow::policy::{Fairness, FairnessPolicy, Head};

use super::NoParams;

/// The turn goes to the flow that has waited for it the longest: since its last one, or since it began to have
/// something to send.
///
/// A flow therefore gets its turn after no more turns of others than there were flows with something to send when its
/// wait began, whoever comes meanwhile.
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
        Box::new(Row::default())
    }
}

/// The flows that have a head, in the order of their turns: whoever comes, and whoever has had a turn, stands last.
/// Each call is a few writes, however many flows there are.
#[derive(Debug, Default)]
struct Row {
    neighbours: SecondaryMap<FlowId, Neighbours>,
    first: Option<FlowId>,
    last: Option<FlowId>,
}

/// Of a flow in the row.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: Option<FlowId>,
    behind: Option<FlowId>,
}

impl Row {
    /// `flow` is not in the row.
    fn join(&mut self, flow: FlowId) {
        let before = self.last.replace(flow);
        self.neighbours.insert(flow, Neighbours { before, behind: None });
        self.set_behind(before, Some(flow));
    }

    /// Tells whether `flow` was in the row.
    fn leave(&mut self, flow: FlowId) -> bool {
        let Some(Neighbours { before, behind }) = self.neighbours.remove(flow) else { return false };
        self.set_behind(before, behind);
        match behind.and_then(|behind| self.neighbours.get_mut(behind)) {
            Some(neighbours) => neighbours.before = before,
            None => self.last = before,
        }
        true
    }

    /// `behind` comes next after `before`, or is the first of all.
    fn set_behind(&mut self, before: Option<FlowId>, behind: Option<FlowId>) {
        match before.and_then(|before| self.neighbours.get_mut(before)) {
            Some(neighbours) => neighbours.behind = behind,
            None => self.first = behind,
        }
    }
}

impl Fairness for Row {
    fn add(&mut self, _: FlowId, _: &Arc<str>) {}

    fn remove(&mut self, flow: FlowId) {
        self.leave(flow);
    }

    fn set_head(&mut self, flow: FlowId, head: Option<Head>) {
        match head {
            Some(_) if self.neighbours.contains_key(flow) => {}
            Some(_) => self.join(flow),
            None => {
                self.leave(flow);
            }
        }
    }

    fn pick(&mut self, _: Time) -> Option<FlowId> {
        self.first
    }

    fn granted(&mut self, _: Time, flow: FlowId, _: u64, turn: bool) {
        if turn && self.leave(flow) {
            self.join(flow);
        }
    }

    fn refund(&mut self, _: FlowId, _: u64) {}
}

#[cfg(test)]
#[path = "round_robin_tests.rs"]
mod tests;
