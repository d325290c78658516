//! What can be chosen by configuration: the order inside a flow, the turn among flows, the ceiling of each
//! band, and what "saturated" means.
//!
//! A policy that keeps state hands out a fresh state object, per band or per engine, when one is needed.
//! The engine compares policies by identity: after a reload the state of a policy that is still the same
//! object is carried over. State objects are called with the engine's lock held: they must not block, and
//! their answers must depend on nothing but their arguments and earlier calls.

mod saturation;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Priority, Time};

use crate::ticket::FlowId;

pub use self::saturation::{
    BookingLimit, Departure, EndpointFacts, Estimate, Reading, Saturation, SaturationDetector, Seen,
};

/// Where a ticket stands inside its flow: the smaller, the sooner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderKey(pub u64);

/// An [`OrderKey`] made unique by the order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub key: OrderKey,
    pub sequence: u64,
}

/// The first of a flow's dispatchable tickets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub rank: Rank,
    /// When the ticket was submitted.
    pub arrival: Time,
}

/// Tokens that a request has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: u64,
    pub output: u64,
}

impl Usage {
    pub const fn total(self) -> u64 {
        self.prompt.saturating_add(self.output)
    }
}

/// What an ordering may look at. It does not change while the ticket lives.
#[derive(Clone, Copy, Debug)]
pub struct OrderingFacts {
    /// When the ticket was submitted.
    pub arrival: Time,
    /// When the request's headers came.
    pub received: Time,
    /// The valid part of [`crate::TtlHeader`].
    pub ttl: Option<Duration>,
    /// The band's budget of time in the queue while the pool has endpoints; zero means no bound.
    pub saturation_budget: Duration,
    pub ttft: Option<Duration>,
}

/// Orders the tickets of one flow.
pub trait OrderingPolicy: fmt::Debug + Send + Sync {
    /// Called once per ticket, at submit; again only if a reload gives the band another ordering.
    fn key(&self, facts: &OrderingFacts) -> OrderKey;

    /// The deadline that `key` stands for, if keys of this ordering are deadlines and this one is finite.
    fn deadline(&self, key: OrderKey) -> Option<Time> {
        let _ = key;
        None
    }
}

/// Chooses among the flows of a band.
pub trait FairnessPolicy: fmt::Debug + Send + Sync {
    /// The state of one new band.
    fn new_band(&self) -> Box<dyn Fairness>;

    /// How many leases one flow may hold at once.
    fn max_in_flight_per_flow(&self) -> Option<u64> {
        None
    }

    /// [`Fairness::settle`] makes use of what requests really cost.
    fn heeds_real_cost(&self) -> bool {
        false
    }
}

/// The turns of one band's flows.
pub trait Fairness: fmt::Debug + Send {
    /// A flow came to be. Every other call about `flow` lies between this and [`Fairness::remove`].
    fn add(&mut self, flow: FlowId, tenant: &Arc<str>);

    /// The flow has no ticket left in any state.
    fn remove(&mut self, flow: FlowId);

    /// The flow has another head than before; none if none of its tickets is dispatchable now.
    fn set_head(&mut self, flow: FlowId, head: Option<Head>);

    /// The flow whose head goes next; none only if no flow has a head. A flow that is the only one with a head may
    /// be granted without being picked: it is then told of by [`Fairness::granted`], as a turn.
    fn pick(&mut self, now: Time) -> Option<FlowId>;

    /// A lease estimated at `cost` tokens was charged to the flow. `turn` tells that the flow had been
    /// picked for it; otherwise the ticket went ahead because room appeared on one of its endpoints.
    fn granted(&mut self, now: Time, flow: FlowId, cost: u64, turn: bool);

    /// The lease counts for nothing: it ended before it was started, or its work was thrown away to make room.
    fn refund(&mut self, flow: FlowId, cost: u64);

    /// The started lease ended, and its request has used `usage`. Not called where nobody knows what was used: the
    /// estimate stands.
    fn settle(&mut self, now: Time, flow: FlowId, cost: u64, usage: Usage) {
        let _ = (now, flow, cost, usage);
    }

    /// The first time after `now` when, without any other call, [`Fairness::pick`] would begin to choose differently.
    fn next_change(&self, now: Time) -> Option<Time> {
        let _ = now;
        None
    }
}

/// Chooses the ceiling of each band.
pub trait UsageLimitPolicy: fmt::Debug + Send + Sync {
    fn new_state(&self) -> Box<dyn UsageLimit>;
}

/// A band as a usage limit sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandView {
    pub priority: Priority,
    /// It is configured, named by an objective, or band 0; otherwise it lingers until it is empty.
    pub provisioned: bool,
}

/// When ceilings have to be computed anew, beside [`UsageLimit::next_change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// When the list of bands changes.
    OnBands,
    /// Before every pass and after each grant.
    EachGrant,
}

pub trait UsageLimit: fmt::Debug + Send {
    /// Writes one ceiling per band, in `0.0..=1.0`; `bands` is ordered from the highest priority down, and
    /// `ceilings` must not rise along it: a rise is flattened and counted.
    fn ceilings(&mut self, now: Time, bands: &[BandView], saturation: f64, ceilings: &mut [f64]);

    fn refresh(&self) -> Refresh {
        Refresh::OnBands
    }

    fn next_change(&self) -> Option<Time> {
        None
    }
}
