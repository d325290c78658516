//! What flows under weighted fairness were charged, compared by the bound of start-time fair queueing.
//!
//! While two flows of a band both have something to send, what they are charged per weight differs by no more than
//! one largest request of each. That is said of turns. Room for a parked request, a refund and the settlement with real
//! usage move a flow by themselves: a credit begins its count anew, a debt suspends it until the flow's next turn,
//! with which the debt is paid.

use std::collections::{BTreeMap, BTreeSet};

use super::ops::Setup;

/// Priority and tenant.
pub(crate) type Flow = (i32, u8);

/// Charges are whole tokens, tags are rounded.
const ROUNDING: f64 = 0.01;

#[derive(Debug, Default)]
pub(crate) struct Shares {
    now: u64,
    flows: BTreeMap<Flow, Share>,
}

#[derive(Debug, Default)]
struct Share {
    /// Since when it has had something to send; none while it has nothing, or a debt.
    since: Option<u64>,
    in_debt: bool,
    /// When it was charged how much for a turn, since then.
    turns: Vec<(u64, u64)>,
    largest: u64,
}

impl Share {
    fn begin(&mut self, now: u64) {
        self.since = Some(now);
        self.turns.clear();
    }

    fn charged_since(&self, since: u64) -> u64 {
        self.turns.iter().filter(|(at, _)| *at > since).map(|(_, cost)| cost).sum()
    }
}

impl Shares {
    /// These flows have something to send that may go, and no others.
    pub(crate) fn note_backlogged(&mut self, backlogged: &BTreeSet<Flow>) {
        for (flow, share) in &mut self.flows {
            if !backlogged.contains(flow) {
                share.since = None;
            }
        }
        for &flow in backlogged {
            let now = self.now;
            let share = self.flows.entry(flow).or_default();
            if share.since.is_none() && !share.in_debt {
                share.begin(now);
            }
        }
    }

    /// The flow was granted a turn. Tells whether the bound holds between it and each other flow of its band.
    pub(crate) fn turn(&mut self, flow: Flow, cost: u64) -> bool {
        self.now += 1;
        let now = self.now;
        let share = self.flows.entry(flow).or_default();
        share.largest = share.largest.max(cost);
        if std::mem::take(&mut share.in_debt) {
            share.begin(now);
        }
        share.turns.push((now, cost));
        self.flows.keys().filter(|other| other.0 == flow.0 && **other != flow).all(|&other| self.is_fair(flow, other))
    }

    fn is_fair(&self, one: Flow, other: Flow) -> bool {
        let (Some(first), Some(second)) = (self.flows.get(&one), self.flows.get(&other)) else { return true };
        let (Some(first_since), Some(second_since)) = (first.since, second.since) else { return true };
        let since = first_since.max(second_since);
        let gap = per_weight(one, first.charged_since(since)) - per_weight(other, second.charged_since(since));
        gap.abs() <= per_weight(one, first.largest) + per_weight(other, second.largest) + ROUNDING
    }

    /// A parked request of the flow was granted, out of turn.
    pub(crate) fn out_of_turn(&mut self, flow: Flow, cost: u64) {
        let share = self.flows.entry(flow).or_default();
        share.largest = share.largest.max(cost);
        self.owe(flow);
    }

    /// A charge was taken back, or a part of it.
    pub(crate) fn credit(&mut self, flow: Flow) {
        let now = self.now;
        if let Some(share) = self.flows.get_mut(&flow).filter(|share| share.since.is_some()) {
            share.begin(now);
        }
    }

    /// Something was charged beside the flow's turns.
    pub(crate) fn owe(&mut self, flow: Flow) {
        let share = self.flows.entry(flow).or_default();
        share.in_debt = true;
        share.since = None;
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn per_weight((_, tenant): Flow, tokens: u64) -> f64 {
    tokens as f64 / Setup::weight(tenant)
}
