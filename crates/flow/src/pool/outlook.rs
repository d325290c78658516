//! What the pool would lose if certain leases ended.

use std::collections::BTreeMap;

use super::Pool;
use crate::load::{EndpointKey, Load, PerPartition};
use crate::start::Booking;

/// The pool as it will be once its revoked leases have ended, and certain others with them.
#[derive(Debug)]
pub(crate) struct Outlook<'a> {
    pool: &'a Pool,
    /// Where it differs from the pool without its revoked leases.
    loads: BTreeMap<EndpointKey, Load>,
    /// What the ends take off each partition, taken together.
    pub(crate) freed: PerPartition<u64>,
}

impl<'a> Outlook<'a> {
    pub(super) fn new(pool: &'a Pool) -> Self {
        Self { pool, loads: BTreeMap::new(), freed: PerPartition::default() }
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

    fn change(&mut self, key: EndpointKey, change: impl FnOnce(&mut Load)) {
        let Some(state) = self.pool.endpoint(key) else { return };
        let load = self.loads.entry(key).or_insert_with(|| state.load.minus(state.revoking));
        let units = |load| self.pool.saturation.endpoint_units(&state.facts, load);
        let before = units(*load);
        change(load);
        let after = units(*load);
        for partition in state.facts.partitions.iter() {
            let freed = &mut self.freed[partition as usize];
            *freed = *freed + before - after;
        }
    }
}
