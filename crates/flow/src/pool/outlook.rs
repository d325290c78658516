//! What the pool would lose if certain leases ended.

use std::collections::BTreeMap;

use super::Pool;
use crate::load::{EndpointKey, Load, PerPartition};
use crate::start::Booking;

/// The pool as it will be once its revoked leases have ended, and certain others with them.
#[derive(Clone, Debug)]
pub(crate) struct Outlook<'a> {
    pool: &'a Pool,
    /// Where it differs from the pool without its revoked leases.
    loads: BTreeMap<EndpointKey, Load>,
    /// Places that are promised to somebody.
    claims: BTreeMap<EndpointKey, u64>,
    /// What the ends take off each partition, taken together.
    pub(crate) freed: PerPartition<u64>,
}

impl<'a> Outlook<'a> {
    pub(super) fn new(pool: &'a Pool) -> Self {
        Self { pool, loads: BTreeMap::new(), claims: BTreeMap::new(), freed: PerPartition::default() }
    }

    pub(crate) fn end(&mut self, bookings: &[Booking]) {
        for booking in bookings {
            self.change(booking.endpoint, |load| load.sub(Load::one(booking.tokens)));
        }
    }

    /// Takes back [`Outlook::end`].
    pub(crate) fn keep(&mut self, bookings: &[Booking]) {
        for booking in bookings {
            self.change(booking.endpoint, |load| load.add(Load::one(booking.tokens)));
        }
    }

    /// Requests that could start on `targets`, beside those that were promised a place.
    pub(crate) fn places(&self, targets: &[EndpointKey]) -> u64 {
        targets.iter().fold(0, |sum, &key| sum.saturating_add(self.places_on(key)))
    }

    /// Promises `count` requests a place on any of `targets`, as far as there are places.
    pub(crate) fn claim(&mut self, targets: &[EndpointKey], mut count: u64) {
        for &key in targets {
            let claimed = self.places_on(key).min(count);
            count -= claimed;
            *self.claims.entry(key).or_default() += claimed;
        }
    }

    fn places_on(&self, key: EndpointKey) -> u64 {
        let Some(state) = self.pool.endpoint(key) else { return 0 };
        let load = self.loads.get(&key).copied().unwrap_or_else(|| state.load.minus(state.revoking));
        state.places_beside(load).saturating_sub(self.claims.get(&key).copied().unwrap_or_default())
    }

    fn change(&mut self, key: EndpointKey, change: impl FnOnce(&mut Load)) {
        let Some(state) = self.pool.endpoint(key) else { return };
        let load = self.loads.entry(key).or_insert_with(|| state.load.minus(state.revoking));
        let units = |load| self.pool.saturation.endpoint_units(&state.facts, state.weight(load));
        let before = units(*load);
        change(load);
        let after = units(*load);
        for partition in state.facts.partitions.iter() {
            let freed = &mut self.freed[partition as usize];
            *freed = *freed + before - after;
        }
    }
}
