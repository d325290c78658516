//! The eviction plan: after every pass, which sheddable leases have to end so that waiting work of higher
//! bands gets in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_core::Priority;
use smallvec::SmallVec;

use super::Engine;
use crate::config::{EvictionConfig, VictimOrder};
use crate::effect::{Effect, RevokeCause};
use crate::eviction::{Shortage, Slack, VictimKey, Weight, add, sub};
use crate::invariant::check;
use crate::item::{Item, Lease, Revoked, State};
use crate::load::{EndpointKey, Partition, Partitions};
use crate::start::Booking;
use crate::ticket::Ticket;

/// What the plan knows while it goes down the bands.
struct Plan {
    config: EvictionConfig,
    effective: Partitions,
    /// L, by partition.
    load: Weight,
    /// Revocations that may still be issued.
    quota: u64,
    /// Free places of endpoints that hinted demand has been promised.
    claims: BTreeMap<EndpointKey, u64>,
}

impl Engine {
    pub(super) fn plan_evictions(&mut self) {
        let Some(config) = self.config.eviction else { return };
        if self.victims.is_empty() || self.pool.is_empty() || self.pool.saturation().is_stale() {
            return;
        }
        let Some(first_gated) = (0..self.bands.len()).find(|&index| !self.gate_is_open(index)) else { return };
        let limit = config.max_in_flight_revocations.unwrap_or(u64::MAX);
        let quota = limit.saturating_sub(self.revocations.outstanding);
        let effective = self.pool.effective();
        let mut plan = Plan { config, effective, load: self.pool.load_staying(), quota, claims: BTreeMap::new() };
        for index in first_gated..self.bands.len() {
            if plan.quota == 0 || self.victims.is_empty() {
                return;
            }
            if self.bands[index].waiting.requests == 0 {
                continue;
            }
            let slots = self.slots(index);
            if plan.effective.iter().any(|partition| slots[partition as usize] == 0) {
                continue;
            }
            self.plan_for_pool(&mut plan, index, &slots);
            self.plan_for_endpoints(&mut plan, index, &slots);
        }
    }

    fn slots(&mut self, index: usize) -> Weight {
        let readings = *self.pool.readings();
        let mut slots = Weight::default();
        for partition in self.pool.effective().iter() {
            let capacity = readings[partition as usize].capacity;
            slots[partition as usize] = self.bands[index].gate.slots(partition, capacity);
        }
        slots
    }

    /// For the tickets that may use the whole pool.
    fn plan_for_pool(&mut self, plan: &mut Plan, index: usize, slots: &Weight) {
        let band = &self.bands[index];
        let priority = band.priority;
        let shortage = |partition: Partition| {
            let at = partition as usize;
            Shortage { partition, load: plan.load[at], demand: band.demand[at], slots: slots[at] }
        };
        let shortages: Vec<Shortage> = plan.effective.iter().map(shortage).collect();
        if shortages.iter().all(|shortage| shortage.demand == 0) {
            return;
        }
        // At most this: enough to rule out a plan without looking at every victim.
        let at_most = self.victims.total_below(victim_bound(priority));
        if is_hopeless(&shortages, &at_most) {
            return;
        }
        let Some((chosen, freed)) = self.choose_victims(plan, &shortages, priority) else { return };
        for shortage in &shortages {
            let at = shortage.partition as usize;
            plan.load[at] = shortage.load_after(freed[at]);
        }
        for key in chosen {
            self.revoke_for(plan, key, priority);
        }
    }

    /// For the tickets that may use only some endpoints, each group against its own.
    fn plan_for_endpoints(&mut self, plan: &mut Plan, index: usize, slots: &Weight) {
        let priority = self.bands[index].priority;
        let one = self.pool.saturation().lease_units(0).max(1);
        let groups: Vec<(Arc<[EndpointKey]>, u64)> =
            self.bands[index].hinted.iter().map(|(targets, count)| (Arc::clone(targets), *count)).collect();
        for (targets, count) in groups {
            for _ in 0..count {
                if plan.quota == 0 {
                    return;
                }
                let fits = |load: &Weight| plan.effective.iter().all(|p| load[p as usize] < slots[p as usize]);
                let free = targets.iter().copied().find(|key| {
                    let claimed = plan.claims.get(key).copied().unwrap_or_default();
                    self.pool.endpoint(*key).is_some_and(|state| state.free_soon() > claimed)
                });
                if let Some(key) = free
                    && fits(&plan.load)
                {
                    *plan.claims.entry(key).or_default() += 1;
                    for partition in self.pool.partitions_of(key).iter() {
                        plan.load[partition as usize] += one;
                    }
                    continue;
                }
                let Some((key, at)) = self.first_victim_on(plan.config.victim_order, &targets, priority) else { break };
                let mut outlook = self.pool.outlook();
                outlook.end(self.bookings(&key));
                let mut after = plan.load;
                sub(&mut after, &outlook.freed);
                if !fits(&after) {
                    break;
                }
                *plan.claims.entry(at).or_default() += 1;
                self.revoke_for(plan, key, priority);
            }
        }
    }

    /// The first victim below `priority` among those that weigh on one of `targets`, and that endpoint.
    fn first_victim_on(
        &self,
        order: VictimOrder,
        targets: &[EndpointKey],
        priority: Priority,
    ) -> Option<(VictimKey, EndpointKey)> {
        let bound = victim_bound(priority);
        let on = |&key: &EndpointKey| {
            let victims = self.pool.endpoint(key).map(|state| state.victims.iter());
            victims.into_iter().flatten().map(move |victim| (*victim, key))
        };
        let below = targets.iter().flat_map(on).filter(|(victim, _)| victim.priority < bound);
        match order {
            VictimOrder::Newest | VictimOrder::MostSlack => below.min(),
            VictimOrder::Cheapest => {
                below.min_by_key(|(victim, key)| (victim.priority, self.sent(victim), *victim, *key))
            }
        }
    }

    /// The shortest prefix of the victim order that covers the shortages, as far as the quota goes, and what
    /// its ends free together. None if all victims together would not open the gate.
    ///
    /// Victims in stages that are not short are passed over, and those that would end in vain are spared: an
    /// endpoint that stays full without them frees nothing.
    fn choose_victims(
        &self,
        plan: &Plan,
        shortages: &[Shortage],
        priority: Priority,
    ) -> Option<(Vec<VictimKey>, Weight)> {
        let mut chosen = Vec::new();
        let mut outlook = self.pool.outlook();
        let is_short = |shortage: &&Shortage, freed: &Weight| !shortage.is_covered(freed[shortage.partition as usize]);
        // Tells whether to go on.
        let mut consider = |(key, weight): (VictimKey, Weight)| {
            let mut short = shortages.iter().filter(|shortage| is_short(shortage, &outlook.freed)).peekable();
            let go_on = short.peek().is_some();
            if short.any(|shortage| weight[shortage.partition as usize] > 0) {
                outlook.end(self.bookings(&key));
                chosen.push(key);
            }
            go_on
        };
        for class in self.victims.classes_below(victim_bound(priority)) {
            let go_on = match plan.config.victim_order {
                VictimOrder::Newest | VictimOrder::MostSlack => class.into_iter().all(&mut consider),
                VictimOrder::Cheapest => {
                    let mut members: Vec<_> = class.collect();
                    members.sort_by_cached_key(|(victim, _)| (self.sent(victim), *victim));
                    members.into_iter().all(&mut consider)
                }
            };
            if !go_on {
                break;
            }
        }
        if is_hopeless(shortages, &outlook.freed) {
            return None;
        }
        let wanted: Vec<&Shortage> = shortages.iter().filter(|shortage| shortage.need() > 0).collect();
        for index in (0..chosen.len()).rev() {
            let bookings = self.bookings(&chosen[index]);
            let with = outlook.freed;
            outlook.keep(bookings);
            if wanted.iter().all(|s| outlook.freed[s.partition as usize] == with[s.partition as usize]) {
                chosen.remove(index);
            } else {
                outlook.end(bookings);
            }
        }
        let quota = usize::try_from(plan.quota).unwrap_or(usize::MAX);
        for key in chosen.drain(chosen.len().min(quota)..) {
            outlook.keep(self.bookings(&key));
        }
        Some((chosen, outlook.freed))
    }

    /// Bytes of the response that went to the client.
    fn sent(&self, victim: &VictimKey) -> u64 {
        let progress = self.lease(victim.ticket).and_then(|lease| lease.progress.as_ref());
        progress.map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    fn bookings(&self, victim: &VictimKey) -> &[Booking] {
        self.lease(victim.ticket).map_or(&[], |lease| &lease.bookings)
    }

    fn revoke_for(&mut self, plan: &mut Plan, key: VictimKey, demand: Priority) {
        check!(self.violations, F10, key.priority < demand && key.priority.is_sheddable());
        plan.quota -= 1;
        let dry = self.config.dry_run.eviction;
        let totals = self.totals.entry(demand).or_default();
        if dry {
            totals.would_revoke += 1;
        } else {
            totals.revocations += 1;
        }
        let overdue = (!dry).then(|| self.now.saturating_add(plan.config.confirmation_timeout));
        self.mark_revoked(key.ticket, Revoked { pending: true, dry, overdue });
        if !dry {
            let waiter = self.items[key.ticket].waiter;
            self.effects.push_back(Effect::Revoke { ticket: key.ticket, waiter, cause: RevokeCause::Eviction });
        }
    }

    /// What a started lease weighs on each partition of the present pool by itself.
    fn weight(&self, ticket: Ticket) -> Weight {
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
            // All its endpoints have left the pool: its end would help nobody.
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

    /// Weighs all victims anew, after the pool, the detector or the victim order changed.
    pub(super) fn reweigh_all(&mut self) {
        let started = |(ticket, item): (Ticket, &Item)| matches!(item.state, State::Started(_)).then_some(ticket);
        let tickets: Vec<Ticket> = self.items.iter().filter_map(started).collect();
        for ticket in tickets {
            self.reweigh(ticket);
        }
    }
}

fn endpoints_of(lease: &Lease) -> SmallVec<[EndpointKey; 2]> {
    lease.bookings.iter().map(|booking| booking.endpoint).collect()
}

fn is_hopeless(shortages: &[Shortage], freed: &Weight) -> bool {
    shortages.iter().any(|shortage| {
        // An end in a stage that the demand does not use would be no help to it.
        let useful = if shortage.demand > 0 { freed[shortage.partition as usize] } else { 0 };
        shortage.is_hopeless(useful)
    })
}

/// Victims have a priority below this.
fn victim_bound(demand: Priority) -> Priority {
    demand.min(Priority(0))
}
