//! The eviction plan as the rules state it, worked out from scratch each time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sluice_core::Time;
use sluice_flow::{Booking, EndpointKey, EvictionConfig, Load, Partition, RevokeCause, Stage, VictimOrder};
use sluice_plugins::flow::ConcurrencyMode;

use super::history::{Place, Request, Seen};
use super::oracle::{Entry, Oracle, Revocation, State};
use super::oracle_pool::{allows, is_in};

type ByPartition = BTreeMap<Partition, u64>;

impl Oracle {
    pub(crate) fn plan_evictions(&mut self) {
        let Some(config) = self.config.eviction else { return };
        let bands: Vec<(i32, f64)> = self.bands.keys().map(|priority| priority.0).zip(self.gates()).collect();
        let Some(first_gated) = bands.iter().position(|(_, ceiling)| !self.is_open(*ceiling)) else { return };
        let mut load: ByPartition = BTreeMap::new();
        for partition in self.effective() {
            let load_to_come = self.load_with(partition, |entry| !self.is_stuck(entry));
            load.insert(partition, load_to_come - self.freed(&[], partition, Leaving::Revoked));
        }
        let told = |entry: &&Entry| is_pending(entry) && !is_dry(entry);
        let outstanding = self.entries.iter().filter(told).count() as u64;
        let quota = config.max_in_flight_revocations.map_or(u64::MAX, |limit| limit.saturating_sub(outstanding));
        let mut plan = Plan { config, load, quota, claims: BTreeMap::new() };
        for &(priority, ceiling) in &bands[first_gated..] {
            let slots: ByPartition =
                plan.load.keys().map(|&partition| (partition, self.slots(partition, ceiling))).collect();
            if !self.band_config(priority).shed && !self.pool.is_empty() && slots.values().all(|&slots| slots > 0) {
                self.serve(&mut plan, priority, &slots);
            }
        }
    }

    /// need = max(0, L + d - S) and n = min(a, need, quota), but that each of the band's waiting requests has victims
    /// on its own endpoints only.
    fn serve(&mut self, plan: &mut Plan, priority: i32, slots: &ByPartition) {
        let mut by_targets: BTreeMap<(usize, Vec<EndpointKey>), Vec<Request>> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.priority == priority && entry.waits()) {
            let targets: Vec<EndpointKey> =
                self.pool.iter().filter(|place| allows(entry, place)).map(|place| place.key).collect();
            by_targets.entry((targets.len(), targets)).or_default().push(entry.request);
        }
        let (start, claims) = (plan.load.clone(), plan.claims.clone());
        let (mut load, mut gone, mut served) = (plan.load.clone(), Vec::new(), BTreeMap::new());
        for ((_, targets), waiting) in by_targets {
            if plan.quota == 0 || self.facts(&waiting, Partition::Pool).requests == 0 {
                continue;
            }
            let whole = targets.len() == self.pool.len();
            let places = |oracle: &Self, gone: &[Request], claims: &BTreeMap<EndpointKey, u64>| {
                let on = |key: &EndpointKey| oracle.places_on(*key, gone, claims);
                if whole { u64::MAX } else { targets.iter().map(on).fold(0, u64::saturating_add) }
            };
            let mut victims: Vec<Request> = self
                .victims(plan.config.victim_order, priority)
                .into_iter()
                .filter(|entry| whole || targets.iter().any(|&key| is_on(entry, key)))
                .map(|entry| entry.request)
                .filter(|victim| !gone.contains(victim))
                .collect();
            let requests = self.facts(&waiting, Partition::Pool).requests;
            let units = |oracle: &Self, partition: Partition, room: u64| {
                oracle.demand_units(partition, at_most(oracle.facts(&waiting, partition), room))
            };
            let need: ByPartition = slots
                .iter()
                .map(|(&partition, slots)| (partition, units(self, partition, u64::MAX), slots))
                .filter(|(_, d, _)| *d > 0)
                .map(|(partition, d, slots)| (partition, (load[&partition] + d).saturating_sub(*slots)))
                .collect();
            let freed = |oracle: &Self, chosen: &[Request], partition: Partition| {
                let both: Vec<Request> = gone.iter().chain(chosen).copied().collect();
                oracle.freed(&both, partition, Leaving::More) - oracle.freed(&gone, partition, Leaving::More)
            };
            let places_with =
                |oracle: &Self, chosen: &[Request]| places(oracle, &[&gone[..], chosen].concat(), &plan.claims);
            let mut chosen: Vec<Request> = Vec::new();
            for victim in victims.drain(..) {
                let lacks_place = places_with(self, &chosen) < requests;
                let relieves = |(&partition, &need): (&Partition, &u64)| {
                    freed(self, &chosen, partition) < need
                        && self.weight(self.find(victim).expect("runs"), partition) > 0
                };
                if lacks_place || need.iter().any(relieves) {
                    chosen.push(victim);
                }
            }
            // Who would end in vain is spared, the last first.
            let lacked_place = places_with(self, &[]) < requests;
            for victim in chosen.clone().into_iter().rev() {
                let without: Vec<Request> = chosen.iter().copied().filter(|other| *other != victim).collect();
                let needed = need.iter().filter(|(_, need)| **need > 0).map(|(&partition, _)| partition);
                let same = |partition| freed(self, &chosen, partition) == freed(self, &without, partition);
                let same_places = places_with(self, &chosen) == places_with(self, &without);
                if needed.into_iter().all(same) && (!lacked_place || same_places) {
                    chosen = without;
                }
            }
            if places_with(self, &chosen) == 0 {
                continue;
            }
            let mut left = places_with(self, &chosen).min(requests);
            for (&partition, load) in &mut load {
                let d = units(self, partition, left);
                *served.entry(partition).or_insert_with(Load::default) = served
                    .get(&partition)
                    .copied()
                    .unwrap_or_default()
                    .plus(at_most(self.facts(&waiting, partition), left));
                let rest = load.saturating_sub(freed(self, &chosen, partition));
                *load = rest + d.min(slots[&partition].saturating_sub(rest));
            }
            gone.extend(chosen);
            for key in targets.into_iter().filter(|_| !whole) {
                let here = self.places_on(key, &gone, &plan.claims).min(left);
                left -= here;
                *plan.claims.entry(key).or_default() += here;
            }
        }
        let d = |oracle: &Self, partition: Partition| {
            oracle.demand_units(partition, served.get(&partition).copied().unwrap_or_default())
        };
        let hopeless = |(&partition, load): (&Partition, &u64)| {
            let a = if d(self, partition) > 0 { self.freed(&gone, partition, Leaving::More) } else { 0 };
            load.saturating_sub(a) >= slots[&partition]
        };
        if start.iter().any(hopeless) {
            plan.claims = claims;
            return;
        }
        gone.truncate(usize::try_from(plan.quota).unwrap_or(usize::MAX));
        for (&partition, load) in &start {
            let rest = load.saturating_sub(self.freed(&gone, partition, Leaving::More));
            let filled = rest + d(self, partition).min(slots[&partition].saturating_sub(rest));
            plan.load.insert(partition, filled);
        }
        for request in gone {
            self.revoke(plan, request, priority);
        }
    }

    /// It was granted, may use only some endpoints, and none of these has room.
    fn is_stuck(&self, entry: &Entry) -> bool {
        let mut allowed = self.pool.iter().filter(|place| allows(entry, place));
        let room = |place: &Place| self.has_room(place, self.booked(place.key).plus(self.reserved(place.key, None)));
        matches!(entry.state, State::Granted(None)) && entry.hint.is_some() && !allowed.any(room)
    }

    /// Requests and tokens of those of `waiting` that use the partition, as far as each tenant may hold more leases.
    fn facts(&self, waiting: &[Request], partition: Partition) -> Load {
        let mut by_tenant: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in waiting.iter().filter_map(|request| self.find(*request)) {
            let uses = match partition {
                Partition::Prefill => entry.stages.contains(Stage::Prefill),
                Partition::Decode => entry.stages.contains(Stage::Decode),
                Partition::Pool => true,
            };
            if uses {
                by_tenant.entry(&entry.tenant).or_default().push(entry);
            }
        }
        by_tenant.into_values().fold(Load::default(), |sum, waiting| {
            // None of them will take more than one endpoint.
            let most = self.detector.max_token_concurrency;
            let all = waiting.iter().fold(Load::default(), |sum, entry| sum.plus(Load::one(entry.tokens.min(most))));
            let room = self.max_in_flight.map_or(u64::MAX, |limit| limit.saturating_sub(self.held(waiting[0])));
            sum.plus(at_most(all, room))
        })
    }

    /// Places for requests on the endpoint once those of `gone` and the revoked ones have ended.
    fn places_on(&self, key: EndpointKey, gone: &[Request], claims: &BTreeMap<EndpointKey, u64>) -> u64 {
        let Some(place) = self.place(key) else { return 0 };
        let limit = match self.detector.mode {
            ConcurrencyMode::Tokens => u64::MAX,
            ConcurrencyMode::Requests | ConcurrencyMode::Hybrid => self.requests_limit(place),
        };
        let mut taken = self.reserved(key, None).requests;
        for entry in self.entries.iter().filter(|entry| !is_pending(entry) && !gone.contains(&entry.request)) {
            if let State::Started { bookings, .. } = &entry.state {
                taken += bookings.iter().filter(|booking| booking.endpoint == key).count() as u64;
            }
        }
        limit.saturating_sub(taken).saturating_sub(claims.get(&key).copied().unwrap_or_default())
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

    fn place(&self, key: EndpointKey) -> Option<&Place> {
        self.pool.iter().find(|place| place.key == key)
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

    fn revoke(&mut self, plan: &mut Plan, request: Request, for_priority: i32) {
        plan.quota -= 1;
        let dry = self.config.dry_run.eviction;
        let overdue = (!dry).then(|| self.now.saturating_add(plan.config.confirmation_timeout));
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

struct Plan {
    config: EvictionConfig,
    load: ByPartition,
    quota: u64,
    /// Places that were promised to somebody.
    claims: BTreeMap<EndpointKey, u64>,
}

#[derive(Clone, Copy)]
enum Leaving {
    Revoked,
    More,
}

fn is_pending(entry: &Entry) -> bool {
    matches!(entry.state, State::Started { revoked: Some(Revocation { pending: true, .. }), .. })
}

fn is_dry(entry: &Entry) -> bool {
    matches!(entry.state, State::Started { revoked: Some(Revocation { dry: true, .. }), .. })
}

fn is_on(entry: &Entry, key: EndpointKey) -> bool {
    matches!(&entry.state, State::Started { bookings, .. } if bookings.iter().any(|booking| booking.endpoint == key))
}

/// `room` requests out of those that make up `load`, at the mean size if that is not all of them.
fn at_most(load: Load, room: u64) -> Load {
    if load.requests <= room {
        return load;
    }
    Load { requests: room, tokens: (load.tokens * room).div_ceil(load.requests) }
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
