//! The endpoints, what is booked on each, and who waits for room on one of them.

mod endpoint;
mod inheritance;
mod outlook;
mod saturation;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_core::{Endpoint, Priority, Time};

use crate::ask::Eligibility;
use crate::band::Map;
use crate::load::{EndpointKey, Load, Partition, Partitions, PerPartition, Stages};
use crate::policy::{BookingLimit, Departure, EndpointFacts, Rank, Reading, Saturation};
use crate::signal::PoolMember;
use crate::ticket::Ticket;

use self::endpoint::EndpointState;
pub use self::endpoint::EndpointStats;
use self::inheritance::Inheritance;
pub(crate) use self::outlook::Outlook;
use self::saturation::gating;

/// The order in which parked tickets are offered room: highest band, then lowest key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ParkRank {
    pub(crate) priority: Reverse<Priority>,
    pub(crate) rank: Rank,
    pub(crate) ticket: Ticket,
}

/// Why what is booked on an endpoint changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Occasion {
    /// A request that was sent at this time runs there.
    Started(Time),
    /// Some of its tokens are worked through.
    TokensDone,
    /// A request that was sent at `started` has left.
    Ended { now: Time, started: Time, departure: Departure },
}

#[derive(Debug)]
pub(crate) struct Pool {
    endpoints: Map<EndpointKey, EndpointState>,
    /// The present pool in the order it was given.
    present: Vec<EndpointKey>,
    /// Partitions that have endpoints.
    populated: Partitions,
    /// Partitions the gate looks at.
    effective: Partitions,
    saturation: Box<dyn Saturation>,
    /// The saturation goes by what endpoints say of themselves: its readings change without the loads, and lag behind.
    estimates: bool,
    readings: PerPartition<Reading>,
    /// What the ends of revoked leases are expected to take off the readings. Not kept where the readings are estimates.
    leaving: PerPartition<u64>,
    /// For each endpoint with room, the parked ticket it is offered to first.
    ready: BTreeSet<(ParkRank, EndpointKey)>,
    inheritance: Option<Inheritance>,
    /// [`Pool::booking_limits`] are others than when that was last asked.
    limits_changed: bool,
}

impl Pool {
    pub(crate) fn new(saturation: Box<dyn Saturation>) -> Self {
        Self {
            endpoints: Map::default(),
            present: Vec::new(),
            populated: Partitions::NONE,
            effective: Partitions::NONE,
            estimates: saturation.estimate().is_some(),
            saturation,
            readings: PerPartition::default(),
            leaving: PerPartition::default(),
            ready: BTreeSet::new(),
            inheritance: None,
            limits_changed: false,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// The endpoints of the present pool.
    pub(crate) const fn len(&self) -> u64 {
        self.present.len() as u64
    }

    /// Every stage of `stages` has an endpoint.
    pub(crate) const fn has_stages(&self, stages: Stages) -> bool {
        let populated = self.populated;
        (!stages.contains(crate::Stage::Prefill) || populated.contains(Partition::Prefill))
            && (!stages.contains(crate::Stage::Decode) || populated.contains(Partition::Decode))
    }

    /// Those that have endpoints.
    pub(crate) fn stages(&self) -> Stages {
        self.populated.stages()
    }

    /// The endpoints of the present pool that `eligible` allows, in the order of the pool.
    pub(crate) fn targets(&self, eligible: &dyn Eligibility) -> Arc<[EndpointKey]> {
        let allowed = |key: &&EndpointKey| eligible.allows(&self.endpoints[*key].endpoint);
        self.present.iter().filter(allowed).copied().collect()
    }

    /// `targets` are all the endpoints of the present pool.
    pub(crate) fn is_whole(&self, targets: &[EndpointKey]) -> bool {
        targets.len() == self.present.len()
    }

    pub(crate) fn endpoint(&self, key: EndpointKey) -> Option<&EndpointState> {
        self.endpoints.get(&key).filter(|state| state.in_pool)
    }

    pub(crate) fn endpoint_mut(&mut self, key: EndpointKey) -> Option<&mut EndpointState> {
        self.endpoints.get_mut(&key)
    }

    pub(crate) fn outlook(&self) -> Outlook<'_> {
        Outlook::new(self)
    }

    /// It is in the pool, and one more request could start on it.
    pub(crate) fn has_room(&self, key: EndpointKey) -> bool {
        self.endpoint(key).is_some_and(EndpointState::has_room)
    }

    /// Whether one more request may start on `key`, which `taken` of the same request already does, and
    /// where `own_reservation` is kept for it. None if it is not in the pool.
    pub(crate) fn may_book(&self, key: EndpointKey, taken: Load, own_reservation: Load) -> Option<bool> {
        let state = self.endpoint(key)?;
        let mut others = state.load.plus(state.reserved);
        others.sub(own_reservation);
        Some(state.open_limit().has_room(others.plus(taken)))
    }

    /// The endpoints of the present pool, each with the most that may be booked on it.
    pub(crate) fn booking_limits(&self) -> impl Iterator<Item = (&Arc<Endpoint>, BookingLimit)> {
        self.present.iter().filter_map(|&key| self.endpoint(key)).map(|state| (&state.endpoint, state.open_limit()))
    }

    /// Whether those have changed with time or by what endpoints said, told once.
    pub(crate) const fn limits_changed(&mut self) -> bool {
        std::mem::replace(&mut self.limits_changed, false)
    }

    /// Puts the present pool in place of the old one. Parked tickets have to be parked anew.
    pub(crate) fn replace(&mut self, now: Time, members: Vec<PoolMember>) {
        self.ready.clear();
        for state in self.endpoints.values_mut() {
            state.in_pool = false;
            state.ready = None;
            state.parked.clear();
            state.victims.clear();
        }
        self.present.clear();
        self.populated = Partitions::NONE;
        for PoolMember { key, endpoint, stages, max_concurrency } in members {
            let facts = EndpointFacts { key, partitions: stages.partitions(), max_concurrency };
            let limit = self.saturation.booking_limit(&facts);
            for partition in facts.partitions.iter() {
                self.populated = self.populated.with(partition);
            }
            self.present.push(key);
            self.endpoints
                .entry(key)
                .and_modify(|state| {
                    state.endpoint = Arc::clone(&endpoint);
                    state.facts = facts;
                    state.limit = limit;
                    state.in_pool = true;
                })
                .or_insert_with(|| EndpointState {
                    endpoint,
                    facts,
                    limit,
                    in_pool: true,
                    load: Load::default(),
                    inherited: 0,
                    reserved: Load::default(),
                    parked: BTreeSet::new(),
                    ready: None,
                    victims: BTreeSet::new(),
                    revoking: Load::default(),
                });
        }
        self.endpoints.retain(|_, state| state.in_pool || !state.is_idle());
        self.effective = gating(self.populated);
        self.reset_saturation(now, []);
    }

    /// Changes what is booked on one endpoint; an endpoint that has left the pool is forgotten once nothing
    /// is.
    pub(crate) fn change_load(&mut self, key: EndpointKey, occasion: Occasion, change: impl FnOnce(&mut Load)) {
        if self.estimates {
            self.change_estimated_load(key, occasion, change);
            return;
        }
        let Self { endpoints, saturation, leaving, .. } = self;
        let Some(state) = endpoints.get_mut(&key) else {
            debug_assert!(false, "load changed on an endpoint that was forgotten");
            return;
        };
        let (before, leaving_before) = (state.weight(state.load), state.units_leaving(&**saturation));
        change(&mut state.load);
        if state.in_pool {
            state.update_leaving(leaving, leaving_before, &**saturation);
            saturation.load_changed(&state.facts, before, state.weight(state.load));
            self.refresh_readings();
            self.refresh_ready(key);
        } else if state.is_idle() {
            self.endpoints.remove(&key);
        }
    }

    /// The same where saturation goes by what endpoints say of themselves: it hears of the occasion, too.
    fn change_estimated_load(&mut self, key: EndpointKey, occasion: Occasion, change: impl FnOnce(&mut Load)) {
        let Self { endpoints, saturation, .. } = self;
        let Some(state) = endpoints.get_mut(&key) else {
            debug_assert!(false, "load changed on an endpoint that was forgotten");
            return;
        };
        let before = state.load;
        change(&mut state.load);
        if state.in_pool {
            saturation.load_changed(&state.facts, before, state.load);
        }
        if let Some(estimate) = saturation.estimate_mut() {
            match occasion {
                Occasion::Started(at) => estimate.started(&state.facts, at),
                Occasion::Ended { now, started, departure } => estimate.ended(now, key, started, departure),
                Occasion::TokensDone => {}
            }
        }
        if state.in_pool {
            self.refresh_readings();
            self.refresh_ready(key);
        } else if state.is_idle() {
            self.endpoints.remove(&key);
        }
    }

    pub(crate) fn reserve(&mut self, key: EndpointKey, load: Load) {
        if let Some(state) = self.endpoints.get_mut(&key) {
            state.reserved.add(load);
            self.refresh_ready(key);
        }
    }

    pub(crate) fn unreserve(&mut self, key: EndpointKey, load: Load) {
        let Some(state) = self.endpoints.get_mut(&key) else { return };
        state.reserved.sub(load);
        if state.in_pool {
            self.refresh_ready(key);
        } else if state.is_idle() {
            self.endpoints.remove(&key);
        }
    }

    /// Lets a ticket wait for room on any of `targets`.
    pub(crate) fn park(&mut self, targets: &[EndpointKey], rank: ParkRank) {
        for &key in targets {
            if let Some(state) = self.endpoints.get_mut(&key) {
                state.parked.insert(rank);
                self.refresh_ready(key);
            }
        }
    }

    pub(crate) fn unpark(&mut self, targets: &[EndpointKey], rank: ParkRank) {
        for &key in targets {
            if let Some(state) = self.endpoints.get_mut(&key) {
                state.parked.remove(&rank);
                self.refresh_ready(key);
            }
        }
    }

    /// The parked ticket of `priority` that goes first among those for which there is room, and the endpoint
    /// that has it. `admits` may pass over tickets.
    pub(crate) fn ready_ticket(
        &self,
        priority: Priority,
        mut admits: impl FnMut(Ticket) -> bool,
    ) -> Option<(Ticket, EndpointKey)> {
        // The entries are the first of each endpoint. If one is passed over, a later one of the same
        // endpoint may stand before the next entry, so the best is sought among all of them.
        let of_band = |rank: &&ParkRank| rank.priority == Reverse(priority);
        let mut best: Option<(ParkRank, EndpointKey)> = None;
        for &(first, key) in &self.ready {
            if first.priority > Reverse(priority) || best.is_some_and(|(rank, _)| rank < first) {
                break;
            }
            let parked = &self.endpoints[&key].parked;
            let candidate = parked.iter().skip_while(|rank| rank.priority < Reverse(priority)).take_while(of_band);
            let found = candidate.copied().find(|rank| admits(rank.ticket)).map(|rank| (rank, key));
            best = best.into_iter().chain(found).min();
        }
        best.map(|(rank, key)| (rank.ticket, key))
    }

    fn refresh_ready(&mut self, key: EndpointKey) {
        let Some(state) = self.endpoints.get_mut(&key) else { return };
        if state.parked.is_empty() && state.ready.is_none() {
            return;
        }
        let ready = if state.has_room() { state.parked.first().copied() } else { None };
        if state.ready == ready {
            return;
        }
        if let Some(old) = std::mem::replace(&mut state.ready, ready) {
            self.ready.remove(&(old, key));
        }
        if let Some(new) = ready {
            self.ready.insert((new, key));
        }
    }

    /// What is booked, and known, per endpoint, by key.
    pub(crate) fn endpoint_stats(&self, now: Time) -> BTreeMap<EndpointKey, EndpointStats> {
        let estimate = self.estimate();
        let stats = |state: &EndpointState| EndpointStats {
            in_pool: state.in_pool,
            load: state.load,
            inherited: state.inherited,
            reserved: state.reserved,
            limit: state.limit,
            seen: estimate.filter(|_| state.in_pool).and_then(|estimate| estimate.seen(now, state.facts.key)),
        };
        self.endpoints.iter().map(|(&key, state)| (key, stats(state))).collect()
    }
}
