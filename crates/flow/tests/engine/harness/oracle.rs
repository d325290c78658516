//! The rules of admission written down as plainly as possible: no index, no sum kept, everything scanned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Priority, Time};
use sluice_flow::policy::{OrderKey, OrderingFacts};
use sluice_flow::{
    BandConfig, Booking, Config, EndpointKey, Load, OTHER_TENANT, Outcome, Park, RevokeCause, Stage, Stages, StartError,
};
use sluice_plugins::flow::ConcurrencyDetector;

use super::history::{AskFacts, Counts, Place, Request, Seen};
use super::ops::{Policies, Setup, Turns, band_of};
use super::oracle_drain::Drain;
use super::oracle_turns::Flows;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) tenant: String,
    pub(crate) priority: i32,
    pub(crate) key: OrderKey,
    pub(crate) arrival: Time,
    pub(crate) own_deadline: Time,
    pub(crate) facts: OrderingFacts,
    pub(crate) bytes: u64,
    pub(crate) tokens: u64,
    pub(crate) stages: Stages,
    pub(crate) required: Stages,
    pub(crate) hint: Option<Vec<u8>>,
    /// Bytes of the response that the client has got.
    pub(crate) sent: u64,
    pub(crate) state: State,
}

#[derive(Clone, Debug)]
pub(crate) enum State {
    New,
    Queued,
    Parked,
    Granted(Option<EndpointKey>),
    Started { bookings: Vec<Booking>, order: u64, revoked: Option<Revocation> },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Revocation {
    pub(crate) pending: bool,
    pub(crate) dry: bool,
    pub(crate) overdue: Option<Time>,
}

impl Entry {
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, State::Queued | State::Parked)
    }

    pub(crate) fn holds_lease(&self) -> bool {
        matches!(self.state, State::Granted(_) | State::Started { .. })
    }

    pub(crate) fn rank(&self) -> (OrderKey, Request) {
        (self.key, self.request)
    }

    fn forget_dry_revocation(&mut self) {
        if let State::Started { revoked, .. } = &mut self.state {
            *revoked = revoked.filter(|revoked| !revoked.dry);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) config: Config,
    pub(crate) detector: ConcurrencyDetector,
    pub(crate) turns: Turns,
    pub(crate) max_in_flight: Option<u64>,
    pub(crate) now: Time,
    /// Those that have not ended, in the order of submission.
    pub(crate) entries: Vec<Entry>,
    pub(crate) bands: BTreeMap<Reverse<i32>, Flows>,
    pub(crate) desired: Vec<i32>,
    pub(crate) pool: Vec<Place>,
    pub(crate) empty_since: (bool, Time),
    pub(crate) closed: bool,
    pub(crate) starts: u64,
    /// What the engine has granted and the oracle has not yet, where it follows.
    pub(crate) ahead: VecDeque<Request>,
    pub(crate) counts: BTreeMap<i32, Counts>,
    pub(crate) invalid_ttls: u64,
    pub(super) drain: Drain,
    pub(crate) seen: Vec<Seen>,
}

impl Oracle {
    pub(crate) fn new(setup: &Setup) -> Self {
        let Policies { detector, turns, max_in_flight } = setup.policies(0);
        let mut oracle = Self {
            config: setup.config(0),
            detector,
            turns,
            max_in_flight,
            now: Time::ZERO,
            entries: Vec::new(),
            bands: BTreeMap::new(),
            desired: Vec::new(),
            pool: Vec::new(),
            empty_since: (true, Time::ZERO),
            closed: false,
            starts: 0,
            ahead: VecDeque::new(),
            counts: BTreeMap::new(),
            invalid_ttls: 0,
            drain: Drain::default(),
            seen: Vec::new(),
        };
        oracle.provision();
        oracle
    }

    // ---- verbs ----

    pub(crate) fn submit(&mut self, now: Time, request: Request, ask: &AskFacts) {
        self.advance(now);
        let ttl = ask.ttl_millis.map(Duration::from_millis);
        self.invalid_ttls += u64::from(ask.ttl_is_invalid);
        let own = ttl.map_or(Time::MAX, |ttl| self.now.saturating_add(ttl));
        let tenant = self.flow_for(&format!("t{}", ask.tenant), ask.priority);
        let facts = OrderingFacts {
            arrival: self.now,
            received: self.now,
            ttl,
            saturation_budget: self.budgets(ask.priority).0,
            ttft: ask.ttft_millis.map(Duration::from_millis),
        };
        let entry = Entry {
            request,
            tenant,
            priority: ask.priority,
            key: self.band_config(ask.priority).ordering.key(&facts),
            arrival: self.now,
            own_deadline: own.min(ask.stream_deadline.unwrap_or(Time::MAX)),
            facts,
            bytes: ask.bytes,
            tokens: ask.tokens,
            stages: ask.stages,
            required: ask.required,
            hint: ask.hint.clone(),
            sent: 0,
            state: State::New,
        };
        self.entries.push(entry.clone());
        let refusal = self.refusal(&entry);
        self.entry(request).state = State::Queued;
        self.line_up(entry.priority, entry.tenant);
        if let Some(outcome) = refusal {
            self.drop_request(request, outcome);
            return;
        }
        self.dispatch();
        if self.find(request).is_some_and(Entry::waits) {
            if self.band_config(ask.priority).shed {
                self.drop_request(request, self.full());
            } else {
                self.begin_wait(request);
            }
        }
        if self.find(request).is_some_and(Entry::waits) {
            self.displace(ask.priority);
        }
        self.plan_evictions();
    }

    pub(crate) fn start(&mut self, now: Time, request: Request, bookings: &[Booking]) -> Result<(), StartError> {
        self.advance(now);
        let Some(State::Granted(reserved)) = self.find(request).map(|entry| entry.state.clone()) else {
            return Err(StartError::NotGranted);
        };
        for (index, booking) in bookings.iter().enumerate() {
            let key = booking.endpoint;
            let place = self.pool.iter().find(|place| place.key == key).ok_or(StartError::Left(key))?;
            let earlier = bookings[..index].iter().filter(|earlier| earlier.endpoint == key);
            let taken = earlier.fold(Load::default(), |sum, booking| sum.plus(Load::one(booking.tokens)));
            let others = self.booked(key).plus(self.reserved(key, (reserved == Some(key)).then_some(request)));
            if !self.has_room(place, others.plus(taken)) {
                return Err(StartError::Full(key));
            }
        }
        self.starts += 1;
        let priority = self.entry(request).priority;
        self.count(priority, Outcome::Dispatched);
        let order = self.starts;
        self.entry(request).state = State::Started { bookings: bookings.to_vec(), order, revoked: None };
        self.run();
        Ok(())
    }

    pub(crate) fn park(&mut self, now: Time, request: Request, hint: &[u8]) -> Park {
        self.advance(now);
        let Some(State::Granted(reserved)) = self.find(request).map(|entry| entry.state.clone()) else {
            return Park::NotGranted;
        };
        let allowed = |place: &&Place| hint.contains(&place.number);
        for place in self.pool.iter().filter(allowed) {
            let own = (reserved == Some(place.key)).then_some(request);
            if self.has_room(place, self.booked(place.key).plus(self.reserved(place.key, own))) {
                return Park::RoomAppeared(place.key);
            }
        }
        let shed = self.find(request).is_some_and(|entry| self.band_config(entry.priority).shed);
        let entry = self.entry(request);
        entry.hint = Some(hint.to_vec());
        entry.state = State::Parked;
        let entry = entry.clone();
        if self.closed {
            self.drop_request(request, Outcome::EvictedOther);
        } else if !self.servable(&entry) {
            self.drop_request(request, Outcome::RejectedNoEndpoints);
        } else if shed {
            self.drop_request(request, Outcome::RejectedCapacity);
        } else {
            self.begin_wait(request);
        }
        self.run();
        Park::Waiting
    }

    pub(crate) fn first_chunk(&mut self, now: Time, request: Request, release_tokens: bool) {
        self.advance(now);
        let Some(Entry { state: State::Started { bookings, .. }, .. }) =
            self.entries.iter_mut().find(|entry| entry.request == request)
        else {
            return;
        };
        bookings.retain(|booking| booking.stage != Stage::Prefill);
        if release_tokens {
            bookings.iter_mut().for_each(|booking| booking.tokens = 0);
        }
        self.run();
    }

    pub(crate) fn rebook(&mut self, now: Time, request: Request, endpoint: EndpointKey) {
        self.advance(now);
        if !self.pool.iter().any(|place| place.key == endpoint) {
            return;
        }
        if let Some(Entry { state: State::Started { bookings, .. }, .. }) =
            self.entries.iter_mut().find(|entry| entry.request == request)
        {
            let decode = bookings.iter_mut().find(|booking| booking.stage == Stage::Decode);
            decode.into_iter().for_each(|booking| booking.endpoint = endpoint);
            self.run();
        }
    }

    /// Release and cancel: the request ends without a verdict; `unstarted` is counted if it never started.
    pub(crate) fn end(&mut self, now: Time, request: Request, unstarted: Outcome) {
        self.advance(now);
        if let Some(entry) = self.find(request) {
            if !matches!(entry.state, State::Started { .. }) {
                self.count(entry.priority, unstarted);
            }
            self.entries.retain(|entry| entry.request != request);
            self.tidy();
            self.run();
        }
    }

    pub(crate) fn pool(&mut self, now: Time, pool: Vec<Place>) {
        self.advance(now);
        self.pool = pool;
        if self.pool.is_empty() != self.empty_since.0 {
            self.empty_since = (self.pool.is_empty(), self.now);
        }
        let doomed = |entry: &&Entry| entry.waits() && !self.servable(entry);
        let doomed: Vec<Request> = self.entries.iter().filter(doomed).map(|entry| entry.request).collect();
        for request in doomed {
            self.drop_request(request, Outcome::EvictedNoEndpoints);
        }
        self.expire();
        self.run();
    }

    pub(crate) fn desired(&mut self, now: Time, desired: Vec<i32>) {
        self.advance(now);
        self.desired = desired;
        self.provision();
        self.run();
    }

    pub(crate) fn reload(&mut self, now: Time, config: Config, policies: Policies) {
        self.advance(now);
        let turns = self.turns;
        Policies { detector: self.detector, turns: self.turns, max_in_flight: self.max_in_flight } = policies;
        let old = std::mem::replace(&mut self.config, config);
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            let before = &band_of(&old, entry.priority).ordering;
            let after = &self.band_config(entry.priority).ordering;
            if !Arc::ptr_eq(before, after) {
                let facts = OrderingFacts { saturation_budget: self.budgets(entry.priority).0, ..entry.facts };
                self.entries[index].key = after.key(&facts);
            }
        }
        if self.turns != turns {
            self.line_up_anew();
        }
        if old.dry_run.eviction && !self.config.dry_run.eviction {
            self.entries.iter_mut().for_each(Entry::forget_dry_revocation);
        }
        self.provision();
        self.expire();
        self.run();
    }

    pub(crate) fn close(&mut self, now: Time, revoke: bool) {
        self.advance(now);
        self.closed = true;
        let waiting: Vec<Request> = self.entries.iter().filter(|entry| entry.waits()).map(|e| e.request).collect();
        for request in waiting {
            self.drop_request(request, Outcome::EvictedOther);
        }
        if revoke {
            let mut started: Vec<(u64, Request)> = Vec::new();
            for entry in &mut self.entries {
                entry.forget_dry_revocation();
                if let State::Started { order, revoked, .. } = &mut entry.state
                    && revoked.is_none()
                {
                    *revoked = Some(Revocation { pending: true, dry: false, overdue: None });
                    started.push((*order, entry.request));
                }
            }
            started.sort_unstable();
            for (_, request) in started {
                self.seen.push(Seen::Revoked { request, cause: RevokeCause::Shutdown });
            }
        }
        self.run();
    }

    pub(crate) fn time(&mut self, now: Time) {
        self.advance(now);
        self.run();
    }

    // ---- what the verbs share ----

    pub(super) fn advance(&mut self, now: Time) {
        self.drain.pass(self.now, now, self.entries.iter().any(Entry::waits));
        self.now = now;
        self.expire();
        let mut timed_out = false;
        for entry in &mut self.entries {
            if let State::Started { revoked: Some(revocation), .. } = &mut entry.state
                && revocation.pending
                && revocation.overdue.is_some_and(|overdue| overdue <= now)
            {
                revocation.pending = false;
                timed_out = true;
            }
        }
        if timed_out {
            self.run();
        }
    }

    fn expire(&mut self) {
        let due = |entry: &&Entry| entry.waits() && self.deadline(entry) <= self.now;
        let mut due: Vec<(Time, Request)> =
            self.entries.iter().filter(due).map(|entry| (self.deadline(entry), entry.request)).collect();
        due.sort_unstable();
        for (_, request) in due {
            self.drop_request(request, self.out_of_time());
        }
    }

    /// Less than a millisecond is no wait.
    fn begin_wait(&mut self, request: Request) {
        let deadline = self.find(request).map(|entry| self.deadline(entry));
        if deadline.is_some_and(|deadline| deadline < self.now.saturating_add(Duration::from_millis(1))) {
            self.drop_request(request, self.out_of_time());
        }
    }

    fn out_of_time(&self) -> Outcome {
        if self.empty_since.0 { Outcome::EvictedNoEndpoints } else { Outcome::EvictedTtl }
    }

    pub(crate) fn deadline(&self, entry: &Entry) -> Time {
        let (saturation, no_endpoint) = self.budgets(entry.priority);
        let (empty, since) = self.empty_since;
        let budget = if empty { no_endpoint } else { saturation };
        let mut deadline = entry.own_deadline;
        if budget > Duration::ZERO {
            deadline = deadline.min(entry.arrival.max(since).saturating_add(budget));
        }
        if saturation > Duration::ZERO && no_endpoint > Duration::ZERO {
            deadline = deadline.min(entry.arrival.saturating_add(saturation).saturating_add(no_endpoint));
        }
        deadline
    }

    fn run(&mut self) {
        self.dispatch();
        self.plan_evictions();
    }

    pub(crate) fn is_capped(&self, entry: &Entry) -> bool {
        self.max_in_flight.is_some_and(|limit| self.held(entry) >= limit)
    }

    /// Leases that the entry's flow holds.
    pub(crate) fn held(&self, entry: &Entry) -> u64 {
        let same = |other: &&Entry| other.priority == entry.priority && other.tenant == entry.tenant;
        self.entries.iter().filter(same).filter(|other| other.holds_lease()).count() as u64
    }

    pub(crate) fn band_config(&self, priority: i32) -> &BandConfig {
        band_of(&self.config, priority)
    }

    fn budgets(&self, priority: i32) -> (Duration, Duration) {
        let band = self.band_config(priority);
        (
            band.request_ttl.unwrap_or(self.config.budgets.saturation),
            band.no_endpoint_request_ttl.unwrap_or(self.config.budgets.no_endpoint),
        )
    }

    pub(crate) fn keeps(&self, priority: i32) -> bool {
        priority == 0 || self.config.bands.contains_key(&Priority(priority)) || self.desired.contains(&priority)
    }

    fn provision(&mut self) {
        let named: Vec<i32> = self.config.bands.keys().map(|priority| priority.0).chain([0]).collect();
        for priority in named.into_iter().chain(self.desired.clone()) {
            self.bands.entry(Reverse(priority)).or_default();
        }
        self.tidy();
    }

    /// Bands and flows that have ended.
    pub(super) fn tidy(&mut self) {
        let mut bands = std::mem::take(&mut self.bands);
        bands.retain(|&Reverse(priority), flows| {
            let tickets = || self.entries.iter().filter(|entry| entry.priority == priority);
            flows.all.retain(|tenant| tickets().any(|entry| entry.tenant == *tenant));
            flows.row.retain(|tenant| self.has_queued(priority, tenant));
            self.keeps(priority) || tickets().next().is_some()
        });
        self.bands = bands;
    }

    fn flow_for(&mut self, tenant: &str, priority: i32) -> String {
        let flows = self.bands.entry(Reverse(priority)).or_default();
        let known = |name: &str| flows.all.iter().any(|flow| flow == name);
        let over = flows.all.len() >= self.config.max_flows_per_band;
        let name = if !known(tenant) && over { OTHER_TENANT } else { tenant };
        if !known(name) {
            flows.all.push(name.to_owned());
        }
        name.to_owned()
    }

    pub(super) fn drop_request(&mut self, request: Request, outcome: Outcome) {
        let priority = self.entry(request).priority;
        self.entries.retain(|entry| entry.request != request);
        let (ahead, _) = self.waiting(|entry| entry.priority >= priority);
        let retry_after = (outcome != Outcome::EvictedContextCancelled).then(|| self.drain.retry_after(ahead));
        self.seen.push(Seen::Dropped { request, outcome, retry_after });
        self.count(priority, outcome);
        self.tidy();
    }

    pub(super) fn count(&mut self, priority: i32, outcome: Outcome) {
        self.counts.entry(priority).or_default().outcomes[outcome as usize] += 1;
    }

    pub(crate) fn find(&self, request: Request) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.request == request)
    }

    pub(crate) fn entry(&mut self, request: Request) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.request == request).expect("the request has not ended")
    }
}
