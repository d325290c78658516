//! Who may be cut off: started leases of a negative priority, kept in the order in which they would go.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use sluice_core::Priority;
use smallvec::SmallVec;

use super::Engine;
use crate::config::VictimOrder;
use crate::eviction::{Slack, VictimKey, Weight, add};
use crate::item::{Lease, State};
use crate::load::EndpointKey;
use crate::start::Booking;
use crate::ticket::Ticket;

impl Engine {
    /// The victims below `priority`, in their order; of those, the ones that weigh on `targets` if that is given.
    pub(super) fn candidates(
        &self,
        order: VictimOrder,
        targets: Option<&[EndpointKey]>,
        priority: Priority,
    ) -> Box<dyn Iterator<Item = VictimKey> + '_> {
        let ordered: Box<dyn Iterator<Item = VictimKey> + '_> = match targets {
            None => Box::new(self.victims.below(priority)),
            Some(targets) => {
                let states = targets.iter().filter_map(|&key| self.pool.endpoint(key));
                let on_targets = states.flat_map(|state| &state.victims).copied();
                let below: BTreeSet<VictimKey> = on_targets.filter(|victim| victim.priority < priority).collect();
                Box::new(below.into_iter())
            }
        };
        match order {
            VictimOrder::Newest | VictimOrder::MostSlack => ordered,
            VictimOrder::Cheapest => {
                let mut all: Vec<VictimKey> = ordered.collect();
                all.sort_by_cached_key(|victim| (victim.priority, self.sent(victim), *victim));
                Box::new(all.into_iter())
            }
        }
    }

    /// Bytes of the response that went to the client.
    fn sent(&self, victim: &VictimKey) -> u64 {
        let progress = self.lease(victim.ticket).and_then(|lease| lease.progress.as_ref());
        progress.map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    pub(super) fn bookings(&self, victim: &VictimKey) -> &[Booking] {
        self.lease(victim.ticket).map_or(&[], |lease| &lease.bookings)
    }

    /// What a started lease weighs on each partition of the present pool by itself.
    pub(super) fn weight(&self, ticket: Ticket) -> Weight {
        let mut weight = Weight::default();
        for booking in self.lease(ticket).map_or(&[][..], |lease| &lease.bookings) {
            add(&mut weight, &self.pool.weight_alone(booking));
        }
        weight
    }

    fn lease(&self, ticket: Ticket) -> Option<&Lease> {
        match &self.items.get(ticket)?.state {
            State::Started(lease) => Some(lease),
            State::New | State::Queued | State::Granted { .. } | State::Parked => None,
        }
    }

    pub(super) fn lease_mut(&mut self, ticket: Ticket) -> Option<&mut Lease> {
        match &mut self.items.get_mut(ticket)?.state {
            State::Started(lease) => Some(lease),
            State::New | State::Queued | State::Granted { .. } | State::Parked => None,
        }
    }

    /// Puts a started lease among the victims, if it may be one.
    pub(super) fn enlist_victim(&mut self, ticket: Ticket) {
        let Some(config) = self.config.eviction else { return };
        let item = &self.items[ticket];
        if !item.priority.is_sheddable() {
            return;
        }
        let weight = self.weight(ticket);
        let slack = match config.victim_order {
            VictimOrder::Newest | VictimOrder::Cheapest => Slack::Unordered,
            VictimOrder::MostSlack => {
                let ordering = self.band_index(item.priority).map(|index| &self.bands[index].config.ordering);
                ordering.and_then(|ordering| ordering.deadline(item.rank.key)).map_or(Slack::Endless, Slack::Until)
            }
        };
        let priority = item.priority;
        let Some(lease) = self.lease_mut(ticket) else { return };
        if lease.revoked.is_some() || lease.victim.is_some() {
            return;
        }
        if weight == Weight::default() {
            // It counts nowhere, as when all its endpoints have left the pool: its end would help nobody.
            self.victims.set_aside(ticket);
            return;
        }
        let key = VictimKey::new(priority, slack, lease.started, ticket);
        lease.victim = Some(key);
        let endpoints = endpoints_of(lease);
        self.victims.insert(key, weight);
        for endpoint in endpoints {
            if let Some(state) = self.pool.endpoint_mut(endpoint) {
                state.victims.insert(key);
            }
        }
    }

    pub(super) fn delist_victim(&mut self, ticket: Ticket) {
        self.victims.take_up(ticket);
        let Some(lease) = self.lease_mut(ticket) else { return };
        let Some(key) = lease.victim.take() else { return };
        let endpoints = endpoints_of(lease);
        self.victims.remove(&key);
        for endpoint in endpoints {
            if let Some(state) = self.pool.endpoint_mut(endpoint) {
                state.victims.remove(&key);
            }
        }
    }

    /// What the lease weighs, or its place among the victims, has changed.
    pub(super) fn reweigh(&mut self, ticket: Ticket) {
        self.delist_victim(ticket);
        self.enlist_victim(ticket);
    }

    /// Weighs all victims anew, after the pool changed.
    pub(super) fn reweigh_all(&mut self) {
        for ticket in self.victims.tickets().collect::<Vec<_>>() {
            self.reweigh(ticket);
        }
    }
}

fn endpoints_of(lease: &Lease) -> SmallVec<[EndpointKey; 2]> {
    lease.bookings.iter().map(|booking| booking.endpoint).collect()
}
