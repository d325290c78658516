//! The eviction plan as the rules state it, worked out from scratch each time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sluice_core::Time;
use sluice_flow::{Booking, EndpointKey, EvictionConfig, Load, Partition, RevokeCause, Stage, VictimOrder};

use super::history::{Place, Request, Seen};
use super::oracle::{Entry, Oracle, Revocation, State};
use super::oracle_pool::{allows, is_in};

type ByPartition = BTreeMap<Partition, u64>;

impl Oracle {
    pub(crate) fn plan_evictions(&mut self) {
        let Some(config) = self.config.eviction else { return };
        if self.pool.is_empty() {
            return;
        }
        let mut load: ByPartition = BTreeMap::new();
        for partition in self.effective() {
            load.insert(partition, self.load(partition) - self.freed(&[], partition, Leaving::Revoked));
        }
        let outstanding = self.entries.iter().filter(|entry| is_pending(entry)).count() as u64;
        let mut quota = config.max_in_flight_revocations.map_or(u64::MAX, |limit| limit.saturating_sub(outstanding));
        let mut claims: BTreeMap<EndpointKey, u64> = BTreeMap::new();
        let bands: Vec<(i32, f64)> = self.bands.keys().map(|priority| priority.0).zip(self.gates()).collect();
        let Some(first_gated) = bands.iter().position(|(_, ceiling)| !self.is_open(*ceiling)) else { return };
        for &(priority, ceiling) in &bands[first_gated..] {
            if self.waiting(|entry| entry.priority == priority).0 == 0 {
                continue;
            }
            let slots: ByPartition =
                load.keys().map(|&partition| (partition, self.slots(partition, ceiling))).collect();
            if slots.values().any(|&slots| slots == 0) {
                continue;
            }
            self.for_pool(config, priority, &slots, &mut load, &mut quota);
            self.for_endpoints(config, priority, &slots, &mut load, &mut quota, &mut claims);
        }
    }

    fn for_pool(
        &mut self,
        config: EvictionConfig,
        priority: i32,
        slots: &ByPartition,
        load: &mut ByPartition,
        quota: &mut u64,
    ) {
        let victims: Vec<Request> =
            self.victims(config.victim_order, priority).into_iter().map(|entry| entry.request).collect();
        let mut need = ByPartition::new();
        let mut demand = ByPartition::new();
        for (&partition, &slots) in slots {
            let d = self.demand(priority, partition);
            let a = if d > 0 { self.freed(&victims, partition, Leaving::More) } else { 0 };
            if load[&partition].saturating_sub(a) >= slots {
                return;
            }
            need.insert(partition, (load[&partition] + d).saturating_sub(slots));
            demand.insert(partition, d);
        }
        if demand.values().all(|&d| d == 0) {
            return;
        }
        let mut chosen: Vec<Request> = Vec::new();
        for &victim in &victims {
            let lacks = |partition: &Partition| self.freed(&chosen, *partition, Leaving::More) < need[partition];
            let alone = |partition: Partition| self.weight(self.find(victim).expect("it is started"), partition);
            if need.keys().filter(|partition| lacks(partition)).any(|&partition| alone(partition) > 0) {
                chosen.push(victim);
            }
        }
        // Who would end in vain is spared, the last first.
        for victim in chosen.clone().into_iter().rev() {
            let without: Vec<Request> = chosen.iter().copied().filter(|other| *other != victim).collect();
            let freed = |who: &[Request], partition| self.freed(who, partition, Leaving::More);
            let needed = need.iter().filter(|(_, need)| **need > 0).map(|(&partition, _)| partition);
            if needed.into_iter().all(|partition| freed(&chosen, partition) == freed(&without, partition)) {
                chosen = without;
            }
        }
        chosen.truncate(usize::try_from(*quota).unwrap_or(usize::MAX));
        for (&partition, load) in &mut *load {
            let rest = load.saturating_sub(self.freed(&chosen, partition, Leaving::More));
            *load = rest + demand[&partition].min(slots[&partition].saturating_sub(rest));
        }
        for request in chosen {
            self.revoke(config, request, priority, quota);
        }
    }

    /// d: what waits, as far as each tenant may hold more leases.
    fn demand(&self, priority: i32, partition: Partition) -> u64 {
        let mut by_tenant: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.priority == priority && entry.waits()) {
            let uses = match partition {
                Partition::Prefill => entry.stages.contains(Stage::Prefill),
                Partition::Decode => entry.stages.contains(Stage::Decode),
                Partition::Pool => true,
            };
            if uses && entry.hint.is_none() {
                by_tenant.entry(&entry.tenant).or_default().push(entry);
            }
        }
        let mut demand = 0;
        for waiting in by_tenant.into_values() {
            let units: u64 = waiting.iter().map(|entry| self.units(Load::one(entry.tokens), None)).sum();
            let count = waiting.len() as u64;
            let room = self.max_in_flight.map_or(u64::MAX, |limit| limit.saturating_sub(self.held(waiting[0])));
            demand += if count <= room { units } else { (units * room).div_ceil(count) };
        }
        demand
    }

    /// What the ends of `requests` take off beyond those of the revoked ones, or those of the revoked ones alone.
    fn freed(&self, requests: &[Request], partition: Partition, which: Leaving) -> u64 {
        let places = self.pool.iter().filter(|place| is_in(place, partition));
        let booked = |place: &Place, who: &dyn Fn(&Entry) -> bool| {
            let mut sum = Load::default();
            for entry in self.entries.iter().filter(|entry| who(entry)) {
                let State::Started { bookings, .. } = &entry.state else { continue };
                for booking in bookings.iter().filter(|booking| booking.endpoint == place.key) {
                    sum = sum.plus(Load::one(booking.tokens));
                }
            }
            self.units(sum, place.limit)
        };
        let freed = places.map(|place| {
            let staying = booked(place, &|entry| !is_pending(entry));
            match which {
                Leaving::Revoked => booked(place, &|_| true) - staying,
                Leaving::More => {
                    staying - booked(place, &|entry| !is_pending(entry) && !requests.contains(&entry.request))
                }
            }
        });
        freed.sum()
    }

    fn for_endpoints(
        &mut self,
        config: EvictionConfig,
        priority: i32,
        slots: &ByPartition,
        load: &mut ByPartition,
        quota: &mut u64,
        claims: &mut BTreeMap<EndpointKey, u64>,
    ) {
        let mut groups: BTreeMap<Vec<EndpointKey>, u64> = BTreeMap::new();
        for entry in self.entries.iter().filter(|e| e.priority == priority && e.waits() && e.hint.is_some()) {
            let targets = self.pool.iter().filter(|place| allows(entry, place)).map(|place| place.key).collect();
            *groups.entry(targets).or_default() += 1;
        }
        let one = self.units(Load::one(0), None).max(1);
        for (targets, count) in groups {
            for _ in 0..count {
                if *quota == 0 {
                    return;
                }
                let free = targets
                    .iter()
                    .copied()
                    .find(|key| self.free_soon(*key) > claims.get(key).copied().unwrap_or_default());
                if let Some(key) = free
                    && load.iter().all(|(partition, load)| *load < slots[partition])
                {
                    *claims.entry(key).or_default() += 1;
                    for (&partition, load) in &mut *load {
                        *load += if self.place(key).is_some_and(|place| is_in(place, partition)) { one } else { 0 };
                    }
                    continue;
                }
                let on = |entry: &Entry, key: EndpointKey| match &entry.state {
                    State::Started { bookings, .. } => bookings.iter().any(|booking| booking.endpoint == key),
                    State::New | State::Queued | State::Parked | State::Granted(_) => false,
                };
                let victims = self.victims(config.victim_order, priority);
                let Some(victim) = victims.into_iter().find(|entry| targets.iter().any(|&key| on(entry, key))) else {
                    break;
                };
                let opens = |(&partition, load): (&Partition, &u64)| {
                    load.saturating_sub(self.freed(&[victim.request], partition, Leaving::More)) < slots[&partition]
                };
                if !load.iter().all(opens) {
                    break;
                }
                let at = targets.iter().copied().filter(|&key| on(&victim, key)).min();
                *claims.entry(at.expect("it is on one of them")).or_default() += 1;
                self.revoke(config, victim.request, priority, quota);
            }
        }
    }

    fn place(&self, key: EndpointKey) -> Option<&Place> {
        self.pool.iter().find(|place| place.key == key)
    }

    fn free_soon(&self, key: EndpointKey) -> u64 {
        let Some(place) = self.place(key) else { return 0 };
        let limit = match self.detector.mode {
            sluice_plugins::flow::ConcurrencyMode::Tokens => u64::MAX,
            _ => self.requests_limit(place),
        };
        let mut revoking = 0_u64;
        for entry in self.entries.iter().filter(|entry| is_pending(entry)) {
            if let State::Started { bookings, .. } = &entry.state {
                revoking += bookings.iter().filter(|booking| booking.endpoint == key).count() as u64;
            }
        }
        limit.saturating_add(revoking).saturating_sub(self.booked(key).requests + self.reserved(key, None).requests)
    }

    /// Those that may be cut off for `priority`, in order.
    fn victims(&self, order: VictimOrder, priority: i32) -> Vec<Entry> {
        let mut victims: Vec<Entry> =
            self.entries.iter().filter(|entry| self.is_victim(entry, priority)).cloned().collect();
        victims.sort_by_key(|entry| {
            let deadline = self.band_config(entry.priority).ordering.deadline(entry.key);
            let slack = match order {
                VictimOrder::Newest | VictimOrder::Cheapest => Time::ZERO,
                VictimOrder::MostSlack => deadline.unwrap_or(Time::MAX),
            };
            let sent = if order == VictimOrder::Cheapest { entry.sent } else { 0 };
            let State::Started { order: started, .. } = entry.state else { unreachable!("only started requests") };
            (entry.priority, sent, Reverse(slack), Reverse(started))
        });
        victims
    }

    fn is_victim(&self, entry: &Entry, priority: i32) -> bool {
        let started = matches!(entry.state, State::Started { revoked: None, .. });
        let partitions = [Partition::Prefill, Partition::Decode, Partition::Pool];
        let helps = partitions.into_iter().any(|partition| self.weight(entry, partition) > 0);
        started && entry.priority < priority.min(0) && helps
    }

    /// What a request weighs if nothing else is booked beside it.
    fn weight(&self, entry: &Entry, partition: Partition) -> u64 {
        let State::Started { bookings, .. } = &entry.state else { return 0 };
        let alone = |booking: &Booking| {
            let place = self.place(booking.endpoint).filter(|place| is_in(place, partition));
            place.map_or(0, |place| self.units(Load::one(booking.tokens), place.limit))
        };
        bookings.iter().map(alone).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "the rule as it is written")]
    fn slots(&self, partition: Partition, ceiling: f64) -> u64 {
        let capacity = self.capacity(partition);
        if capacity > 1 << 20 {
            return bisect(ceiling, capacity);
        }
        (0..=capacity).find(|&k| k as f64 / capacity as f64 >= ceiling).unwrap_or(capacity)
    }

    fn revoke(&mut self, config: EvictionConfig, request: Request, for_priority: i32, quota: &mut u64) {
        *quota -= 1;
        let dry = self.config.dry_run.eviction;
        let overdue = (!dry).then(|| self.now.saturating_add(config.confirmation_timeout));
        if let State::Started { revoked, .. } = &mut self.entry(request).state {
            *revoked = Some(Revocation { pending: true, dry, overdue });
        }
        let counts = self.counts.entry(for_priority).or_default();
        if dry {
            counts.would_revoke += 1;
        } else {
            counts.revocations += 1;
            self.seen.push(Seen::Revoked { request, cause: RevokeCause::Eviction });
        }
    }
}

#[derive(Clone, Copy)]
enum Leaving {
    Revoked,
    More,
}

fn is_pending(entry: &Entry) -> bool {
    matches!(entry.state, State::Started { revoked: Some(Revocation { pending: true, .. }), .. })
}

/// For capacities too large to try every `k`: by bisection.
#[expect(clippy::cast_precision_loss, reason = "the rule as it is written")]
fn bisect(ceiling: f64, capacity: u64) -> u64 {
    let (mut low, mut high) = (0, capacity);
    while low < high {
        let middle = low + (high - low) / 2;
        if middle as f64 / capacity as f64 >= ceiling { high = middle } else { low = middle + 1 }
    }
    low
}
