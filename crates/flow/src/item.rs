use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use sluice_core::{Priority, Time};
use smallvec::SmallVec;

use crate::ask::Eligibility;
use crate::eviction::VictimKey;
use crate::load::{EndpointKey, Load, Stages};
use crate::policy::{OrderingFacts, Rank};
use crate::start::Booking;
use crate::ticket::{FlowId, Waiter};

/// All that is kept of a ticket.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) priority: Priority,
    pub(crate) flow: FlowId,
    pub(crate) waiter: Waiter,
    pub(crate) rank: Rank,
    pub(crate) bytes: u64,
    /// Estimated tokens: charged at every grant, and what fairness reckons with until the end.
    pub(crate) tokens: u64,
    pub(crate) arrival: Time,
    pub(crate) received: Time,
    /// The bound the request set itself, by header; [`Time::MAX`] for none. Counted from arrival.
    pub(crate) ttl_deadline: Time,
    pub(crate) stream_deadline: Time,
    /// From the headers' arrival; [`Time::MAX`] for none.
    pub(crate) ttft_deadline: Time,
    pub(crate) stages: Stages,
    pub(crate) required: Stages,
    pub(crate) eligible: Option<Arc<dyn Eligibility>>,
    pub(crate) state: State,
}

impl Item {
    pub(crate) const fn load(&self) -> Load {
        Load::one(self.tokens)
    }

    /// The part of the deadline that does not depend on the pool.
    pub(crate) fn own_deadline(&self) -> Time {
        self.ttl_deadline.min(self.stream_deadline)
    }

    pub(crate) fn ordering_facts(&self, saturation_budget: std::time::Duration) -> OrderingFacts {
        let since = |deadline: Time, start: Time| (deadline < Time::MAX).then(|| deadline.saturating_since(start));
        OrderingFacts {
            arrival: self.arrival,
            received: self.received,
            ttl: since(self.ttl_deadline, self.arrival),
            saturation_budget,
            ttft: since(self.ttft_deadline, self.received),
        }
    }

    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.state, State::Queued | State::Parked)
    }
}

#[derive(Debug)]
pub(crate) enum State {
    /// Just made: it counts nowhere yet.
    New,
    /// In its flow's heap.
    Queued,
    /// A lease is charged. A place may be kept for it.
    Granted {
        reserved: Option<EndpointKey>,
    },
    /// Every endpoint it may use is full, or was when it was last looked at.
    Parked,
    Started(Box<Lease>),
}

/// A lease that was started.
#[derive(Debug)]
pub(crate) struct Lease {
    /// What is booked now: it shrinks when the prefill is over.
    pub(crate) bookings: SmallVec<[Booking; 2]>,
    /// Starts in order: the higher, the newer.
    pub(crate) started: u64,
    /// When it was started.
    pub(crate) since: Time,
    pub(crate) progress: Option<Arc<AtomicU64>>,
    /// Its place among the victims, while it is one.
    pub(crate) victim: Option<VictimKey>,
    pub(crate) revoked: Option<Revoked>,
}

/// A lease that was told to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Revoked {
    /// Its end is counted upon; no longer once the confirmation is overdue.
    pub(crate) pending: bool,
    /// It was only counted: nobody was told to end.
    pub(crate) dry: bool,
    /// When the confirmation is overdue; none if it has no time limit.
    pub(crate) overdue: Option<Time>,
}
