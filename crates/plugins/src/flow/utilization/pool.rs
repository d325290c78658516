//! The endpoints together, kept up by increments.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluice_core::{Scraped, Time};
use sluice_flow::policy::{
    BookingLimit, Departure, EndpointFacts, Estimate, Reading, Saturation, SaturationDetector as _, Seen,
};
use sluice_flow::{EndpointKey, Load, Partition, Partitions};

use super::endpoint::{EndpointState, SETTLING, expected_waiting};
use super::{Aggregation, StalenessPolicy, UtilizationDetector};

/// A full endpoint. Shares are rounded up, so that what is at a threshold is never taken to be below it.
const WHOLE: u64 = 1 << 32;

/// More endpoints than a pool has: no share is larger, so that sums of shares stay in range.
const MOST: u64 = WHOLE << 16;

/// The least time between two wishes for a scrape of the same endpoint.
const ASK_INTERVAL: Duration = Duration::from_millis(5);

fn share(part: u64, limit: u64) -> u64 {
    let share = (u128::from(part) * u128::from(WHOLE)).div_ceil(u128::from(limit.max(1)));
    u64::try_from(share).unwrap_or(MOST).min(MOST)
}

#[derive(Debug)]
pub(super) struct PoolState {
    detector: UtilizationDetector,
    now: Time,
    endpoints: BTreeMap<EndpointKey, Member>,
    /// When each fresh endpoint becomes stale.
    expiries: BTreeSet<(Time, EndpointKey)>,
    sums: [Part; 3],
    /// The endpoints that count, by load; kept for [`Aggregation::Min`] only.
    by_load: [BTreeSet<(u64, EndpointKey)>; 3],
    /// Leases that were granted and not started.
    unstarted: [u64; 3],
}

#[derive(Debug, Default)]
struct Member {
    state: EndpointState,
    /// What it has in the sums.
    part: Part,
    /// Its entry in the expiries.
    expires: Option<Time>,
    /// When a scrape of it was last asked for.
    asked: Option<Time>,
}

/// What endpoints add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    endpoints: u64,
    stale: u64,
    /// Those that count, and what they weigh.
    counted: u64,
    load: u64,
    /// Those among them that are not stale, and what they weigh.
    fresh: u64,
    fresh_load: u64,
    /// Requests that they could take at once.
    room: u64,
    /// Those to which one more request would add less than its share of the threshold.
    lenient: u64,
}

impl Part {
    fn change(&mut self, before: &Self, after: &Self) {
        let replace = |sum: &mut u64, before: u64, after: u64| *sum = *sum + after - before;
        let Self { endpoints, stale, counted, load, fresh, fresh_load, room, lenient } = self;
        replace(endpoints, before.endpoints, after.endpoints);
        replace(stale, before.stale, after.stale);
        replace(counted, before.counted, after.counted);
        replace(load, before.load, after.load);
        replace(fresh, before.fresh, after.fresh);
        replace(fresh_load, before.fresh_load, after.fresh_load);
        replace(room, before.room, after.room);
        replace(lenient, before.lenient, after.lenient);
    }
}

impl UtilizationDetector {
    fn waiting_share(&self, waiting: u64) -> u64 {
        share(waiting, self.queue_depth_threshold)
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "usage is no larger than 1 by contract, and the conversion saturates"
    )]
    fn usage_share(&self, usage: f64) -> u64 {
        ((usage / self.kv_cache_util_threshold * WHOLE as f64).ceil() as u64).min(MOST)
    }

    /// What a fresh endpoint weighs once `gone` of its requests are not there.
    fn weight(&self, state: &EndpointState, gone: u64) -> u64 {
        let waiting = self.waiting_share(expected_waiting(state.balance(self, gone)));
        waiting.max(state.kv_usage(gone).map_or(0, |usage| self.usage_share(usage)))
    }

    /// The same by the last scrape alone.
    fn scraped_weight(&self, state: &EndpointState) -> u64 {
        let waiting = self.waiting_share(state.scraped_waiting(self));
        waiting.max(state.kv_usage(0).map_or(0, |usage| self.usage_share(usage)))
    }

    fn part(&self, state: &EndpointState) -> Part {
        let one = Part { endpoints: 1, ..Part::default() };
        if !state.fresh {
            return match self.staleness_policy {
                StalenessPolicy::Saturated => Part { stale: 1, counted: 1, load: WHOLE, ..one },
                StalenessPolicy::Ignore => Part { stale: 1, ..one },
            };
        }
        let (balance, load) = (state.balance(self, 0), self.weight(state, 0));
        let with_one_more = self.waiting_share(expected_waiting(balance.saturating_add(1)));
        let lenient = with_one_more.saturating_sub(load) < self.waiting_share(1) - 1;
        Part {
            counted: 1,
            load,
            fresh: 1,
            fresh_load: load,
            room: expected_waiting(balance.saturating_neg()),
            lenient: u64::from(lenient),
            ..one
        }
    }
}

impl PoolState {
    pub(super) fn new(detector: UtilizationDetector) -> Self {
        Self {
            detector,
            now: Time::ZERO,
            endpoints: BTreeMap::new(),
            expiries: BTreeSet::new(),
            sums: [Part::default(); 3],
            by_load: Default::default(),
            unstarted: [0; 3],
        }
    }

    /// Changes what is known of an endpoint, and the sums with it.
    fn change<R>(&mut self, key: EndpointKey, change: impl FnOnce(&mut EndpointState, Duration) -> R) -> Option<R> {
        let member = self.endpoints.get_mut(&key)?;
        let result = change(&mut member.state, self.detector.staleness);
        let Some(facts) = member.state.facts else { return Some(result) };
        let before = std::mem::replace(&mut member.part, self.detector.part(&member.state));
        let after = member.part;
        for at in facts.partitions.iter().map(|partition| partition as usize) {
            self.sums[at].change(&before, &after);
            if self.detector.aggregation == Aggregation::Min {
                self.by_load[at].remove(&(before.load, key));
                if after.counted > 0 {
                    self.by_load[at].insert((after.load, key));
                }
            }
        }
        Some(result)
    }

    /// What unstarted leases add to the queues, where they find no room.
    fn unstarted_share(&self, at: usize) -> u64 {
        self.detector.waiting_share(self.unstarted[at].saturating_sub(self.sums[at].room))
    }

    /// The pool is closed for want of news, and not by what is known.
    fn lacks_news(&self, at: usize) -> bool {
        let Part { stale, fresh, fresh_load, .. } = self.sums[at];
        let is_full = fresh > 0 && fresh_load + self.unstarted_share(at) >= fresh * WHOLE;
        stale > 0 && !is_full && self.detector.staleness_policy == StalenessPolicy::Saturated
    }

    fn state(&self, endpoint: &EndpointFacts) -> Option<&EndpointState> {
        self.endpoints.get(&endpoint.key).map(|member| &member.state)
    }
}

impl Saturation for PoolState {
    fn reset(&mut self, pool: &[(EndpointFacts, Load)]) {
        self.sums = [Part::default(); 3];
        self.by_load = Default::default();
        for member in self.endpoints.values_mut() {
            member.state.facts = None;
            member.state.prune(self.now, self.detector.staleness);
            member.part = Part::default();
        }
        for (facts, load) in pool {
            self.endpoints.entry(facts.key).or_default().state.facts = Some(*facts);
            self.change(facts.key, |state, _| state.booked = load.requests);
        }
        let expiries = &mut self.expiries;
        self.endpoints.retain(|key, member| {
            let keep = member.state.facts.is_some() || !member.state.is_idle();
            if let Some(expires) = member.expires.filter(|_| !keep) {
                expiries.remove(&(expires, *key));
            }
            keep
        });
    }

    fn charge(&mut self, partitions: Partitions, _: u64) {
        partitions.iter().for_each(|partition| self.unstarted[partition as usize] += 1);
    }

    fn discharge(&mut self, partitions: Partitions, _: u64) {
        partitions.iter().for_each(|partition| self.unstarted[partition as usize] -= 1);
    }

    fn load_changed(&mut self, endpoint: &EndpointFacts, _: Load, after: Load) {
        self.change(endpoint.key, |state, _| state.booked = after.requests);
    }

    fn reading(&self, partition: Partition) -> Reading {
        let at = partition as usize;
        let Part { endpoints, counted, load, .. } = self.sums[at];
        if endpoints > 0 && counted == 0 {
            return Reading { load: 0, capacity: WHOLE };
        }
        let unstarted = self.unstarted_share(at);
        match self.detector.aggregation {
            Aggregation::Mean => Reading { load: load + unstarted, capacity: counted * WHOLE },
            Aggregation::Min => {
                let least = self.by_load[at].first().map(|(load, _)| *load);
                least.map_or_else(Reading::default, |least| Reading { load: least + unstarted, capacity: WHOLE })
            }
        }
    }

    /// What is left once so many of those that are booked have gone, and those with them that have already ended.
    fn endpoint_units(&self, endpoint: &EndpointFacts, load: Load) -> u64 {
        let Some(state) = self.state(endpoint) else { return 0 };
        if !state.fresh {
            return self.detector.part(state).load;
        }
        let gone = state.booked.saturating_sub(load.requests);
        self.detector.weight(state, gone + state.departed())
    }

    fn most_freed(&self, _: &EndpointFacts, _: Load) -> u64 {
        self.detector.waiting_share(1).max(self.detector.usage_share(1.0))
    }

    fn demand_units(&self, partition: Partition, load: Load) -> u64 {
        // Where an endpoint would not be fuller for it, a gate that is just open is all that it needs.
        if self.sums[partition as usize].lenient > 0 {
            return load.requests;
        }
        // Rounded down: as much as the ends of so many take off, whose shares are rounded up.
        let units = u128::from(load.requests) * u128::from(WHOLE) / u128::from(self.detector.queue_depth_threshold);
        u64::try_from(units).unwrap_or(MOST).max(load.requests)
    }

    #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
    fn in_its_terms(&self, units: u64) -> f64 {
        units as f64 / WHOLE as f64
    }

    fn booking_limit(&self, _: &EndpointFacts) -> BookingLimit {
        BookingLimit::UNLIMITED
    }

    fn is_stale(&self) -> bool {
        !self.detector.supports_eviction() || (0..self.sums.len()).any(|at| self.lacks_news(at))
    }

    fn next_change(&self) -> Option<Time> {
        self.expiries.first().map(|(time, _)| *time)
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(&(time, key)) = self.expiries.first()
            && time <= self.now
        {
            self.expiries.pop_first();
            if let Some(member) = self.endpoints.get_mut(&key) {
                member.expires = None;
            }
            self.change(key, |state, _| state.fresh = false);
        }
    }

    fn estimate(&self) -> Option<&dyn Estimate> {
        Some(self)
    }

    fn estimate_mut(&mut self) -> Option<&mut dyn Estimate> {
        Some(self)
    }
}

impl Estimate for PoolState {
    fn scraped(&mut self, now: Time, endpoint: &EndpointFacts, sample: &Scraped) {
        self.now = self.now.max(now);
        let key = endpoint.key;
        if self.change(key, |state, staleness| state.scraped(now, staleness, sample)) != Some(true) {
            return;
        }
        if let Some(member) = self.endpoints.get_mut(&key) {
            let expires = member.state.expiry(self.detector.staleness);
            let before = std::mem::replace(&mut member.expires, expires);
            before.map(|time| self.expiries.remove(&(time, key)));
            self.expiries.extend(expires.map(|time| (time, key)));
        }
    }

    fn started(&mut self, endpoint: &EndpointFacts, at: Time) {
        self.change(endpoint.key, |state, staleness| state.started(at, staleness));
    }

    fn ended(&mut self, now: Time, endpoint: EndpointKey, started: Time, departure: Departure) {
        self.change(endpoint, |state, staleness| state.ended(now, started, departure, staleness));
    }

    fn leaving_units(&self, endpoint: &EndpointFacts, load: Load, revoking: Load) -> u64 {
        let staying = Load { requests: load.requests - revoking.requests, tokens: load.tokens };
        let weight = self.endpoints.get(&endpoint.key).map_or(0, |member| member.part.load);
        weight.saturating_sub(self.endpoint_units(endpoint, staying))
    }

    fn doubtful(&mut self, now: Time, endpoints: &mut Vec<EndpointKey>) -> Option<Time> {
        let fresh = self.endpoints.values().filter(|member| member.state.facts.is_some() && member.state.fresh);
        let scraped = fresh.fold((0, 0), |(count, sum): (u64, u64), member| {
            (count + 1, sum + self.detector.scraped_weight(&member.state))
        });
        let (fresh, load) = scraped;
        if load >= fresh * WHOLE {
            return None;
        }
        let mut again: Option<Time> = None;
        for (&key, member) in &mut self.endpoints {
            let Member { state, part, expires: _, asked } = member;
            if state.facts.is_none() || !state.fresh || part.load <= self.detector.scraped_weight(state) {
                continue;
            }
            if asked.is_none_or(|asked| asked.saturating_add(ASK_INTERVAL) <= now) {
                *asked = Some(now);
                endpoints.push(key);
            }
            let settles = state.oldest_doubt().map_or(now, |start| start.saturating_add(SETTLING));
            let next = settles.max(now.saturating_add(ASK_INTERVAL));
            again = Some(again.map_or(next, |again| again.min(next)));
        }
        again
    }

    fn seen(&self, now: Time, endpoint: EndpointKey) -> Option<Seen> {
        let member = self.endpoints.get(&endpoint).filter(|member| member.state.facts.is_some())?;
        Some(member.state.seen(now, &self.detector))
    }

    fn stale_endpoints(&self) -> u64 {
        self.sums[Partition::Pool as usize].stale
    }

    fn hand_over(&mut self) -> Box<dyn Any> {
        Box::new(Known(std::mem::take(&mut self.endpoints)))
    }

    /// What is known of endpoints are facts: thresholds come in where it is weighed, staleness where it is recent enough.
    fn take_over(&mut self, now: Time, known: Box<dyn Any>) -> bool {
        let Ok(known) = known.downcast::<Known>() else { return false };
        self.now = self.now.max(now);
        let Known(endpoints) = *known;
        for (key, Member { mut state, part: _, expires: _, asked }) in endpoints {
            state.facts = None;
            let expires = state.expiry(self.detector.staleness).filter(|time| *time > now);
            state.fresh = expires.is_some();
            self.expiries.extend(expires.map(|time| (time, key)));
            self.endpoints.insert(key, Member { state, part: Part::default(), expires, asked });
        }
        true
    }
}

/// What one detector has learned, for the next one.
#[derive(Debug)]
struct Known(BTreeMap<EndpointKey, Member>);
