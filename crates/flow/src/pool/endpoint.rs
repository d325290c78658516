//! One endpoint: what is booked on it, and who waits for room on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_core::Endpoint;

use super::ParkRank;
use crate::eviction::VictimKey;
use crate::load::{Load, PerPartition};
use crate::policy::{BookingLimit, EndpointFacts, Saturation, Seen};

#[derive(Debug)]
pub(crate) struct EndpointState {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) facts: EndpointFacts,
    pub(super) limit: BookingLimit,
    /// It is in the present pool; otherwise it is kept for the work it still does.
    pub(super) in_pool: bool,
    /// Booked by started leases.
    pub(super) load: Load,
    /// Requests on it that a predecessor of this process is taken to have put there.
    pub(super) inherited: u64,
    /// Kept for granted tickets.
    pub(super) reserved: Load,
    pub(super) parked: BTreeSet<ParkRank>,
    /// Its entry in [`Pool::ready`].
    pub(super) ready: Option<ParkRank>,
    /// Sheddable leases that weigh on it.
    pub(crate) victims: BTreeSet<VictimKey>,
    /// The part of `load` whose leases are revoked and neither ended nor overdue.
    pub(super) revoking: Load,
}

impl EndpointState {
    pub(super) fn has_room(&self) -> bool {
        self.in_pool && self.open_limit().has_room(self.load.plus(self.reserved))
    }

    /// What this process may book on it, beside what it has inherited.
    pub(super) const fn open_limit(&self) -> BookingLimit {
        BookingLimit { requests: self.limit.requests.saturating_sub(self.inherited), tokens: self.limit.tokens }
    }

    /// What it has to do if this process has put `load` on it.
    pub(super) const fn weight(&self, load: Load) -> Load {
        Load { requests: load.requests.saturating_add(self.inherited), tokens: load.tokens }
    }

    /// Requests that could start on it if `load` were booked beside what it keeps for granted tickets.
    pub(super) const fn places_beside(&self, load: Load) -> u64 {
        self.open_limit().requests.saturating_sub(load.requests + self.reserved.requests)
    }

    /// What the ends of its revoked leases are expected to take off the readings.
    pub(super) fn units_leaving(&self, saturation: &dyn Saturation) -> u64 {
        if !self.in_pool || self.revoking == Load::default() {
            return 0;
        }
        let units = |load| saturation.endpoint_units(&self.facts, self.weight(load));
        units(self.load) - units(self.load.minus(self.revoking))
    }

    /// Corrects the sums by what has changed since [`Self::units_leaving`] was `before`.
    pub(super) fn update_leaving(&self, sums: &mut PerPartition<u64>, before: u64, saturation: &dyn Saturation) {
        let after = self.units_leaving(saturation);
        for partition in self.facts.partitions.iter() {
            let sum = &mut sums[partition as usize];
            *sum = *sum + after - before;
        }
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.load.requests == 0 && self.load.tokens == 0 && self.reserved.requests == 0
    }
}

/// One endpoint in [`crate::Stats`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndpointStats {
    pub in_pool: bool,
    pub load: Load,
    /// Requests that a predecessor of this process is taken to have put on it ([`crate::Signal::Inherit`]).
    pub inherited: u64,
    /// Kept for granted tickets that had been parked.
    pub reserved: Load,
    pub limit: BookingLimit,
    /// Of an endpoint of the present pool, where saturation goes by what endpoints say of themselves.
    pub seen: Option<Seen>,
}
