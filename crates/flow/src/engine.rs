//! The engine itself: its state, and the small steps that all verbs share.

mod dispatch;
mod evict;
mod lease;
mod observe;
mod rebook;
mod report;
mod revoke;
mod scraped;
mod submit;
mod targets;
mod time;
mod victims;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use slotmap::SlotMap;
use sluice_core::{Priority, Time};

use crate::band::{Band, Waiting};
use crate::config::{Config, WhenFull};
use crate::effect::{Effect, Outcome, SOFT_BAND_LIMIT, Verdict};
use crate::eviction::{Revocations, Victims};
use crate::heap::{Heap, Positions};
use crate::invariant::{Violations, check};
use crate::item::{Item, State};
use crate::line::Links;
use crate::load::EndpointKey;
use crate::policy::{BandView, UsageLimit};
use crate::pool::Pool;
use crate::queue::Places;
use crate::rate::DrainRate;
use crate::stale::StaleWatch;
use crate::stats::{BandTotals, LeaseStats, RevocationStats};
use crate::ticket::Ticket;

/// Decides who may enter the pool, and when. See the crate's documentation for its verbs.
///
/// Every verb takes the present time, which must not go back. What it wants done comes out of
/// [`Engine::poll`], in order.
#[derive(Debug)]
pub struct Engine {
    now: Time,
    config: Config,
    items: SlotMap<Ticket, Item>,
    /// Where queued tickets stand in their flow's queue.
    places: Places,
    /// Waiting tickets by deadline, then order of arrival; but for those in the line of their band.
    expiry: Heap<(Time, u64)>,
    expiry_positions: Positions,
    /// Of the lines of all bands.
    links: Links<(Time, u64)>,
    /// From the highest priority down.
    bands: Vec<Band>,
    desired: BTreeSet<Priority>,
    /// There were more bands than the soft limit when they were last counted.
    many_bands: bool,
    pool: Pool,
    regime: Regime,
    usage_limit: Box<dyn UsageLimit>,
    /// The ceilings have to be computed before the next pass.
    ceilings_due: bool,
    band_views: Vec<BandView>,
    ceilings: Vec<f64>,
    /// Waiting tickets that may use only some endpoints, in the order of arrival, with the endpoints of the
    /// present pool among those.
    hinted: BTreeMap<u64, (Ticket, Arc<[EndpointKey]>)>,
    /// Granted tickets that may use only some endpoints, and have no place reserved on one.
    hinted_granted: BTreeSet<Ticket>,
    victims: Victims,
    revocations: Revocations,
    waiting: Waiting,
    leases: LeaseStats,
    sequence: u64,
    starts: u64,
    closed: bool,
    rate: DrainRate,
    totals: BTreeMap<Priority, BandTotals>,
    flattened_ceilings: u64,
    invalid_ttls: u64,
    revocation_stats: RevocationStats,
    /// What the last eviction plan wanted back, in the unit of the saturation.
    reclaim_target: u64,
    /// When endpoints may have more to say to somebody who waits at a closed gate.
    next_ask: Option<Time>,
    stale_watch: StaleWatch,
    effects: VecDeque<Effect>,
    violations: Violations,
}

/// Whether there is anywhere to send requests, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Regime {
    empty: bool,
    since: Time,
}

impl Engine {
    /// An engine with an empty pool.
    pub fn new(config: Config) -> Self {
        let mut engine = Self {
            now: Time::ZERO,
            items: SlotMap::with_key(),
            places: Places::default(),
            expiry: Heap::default(),
            expiry_positions: Positions::default(),
            links: Links::default(),
            bands: Vec::new(),
            desired: BTreeSet::new(),
            many_bands: false,
            pool: Pool::new(config.detector.new_state()),
            regime: Regime { empty: true, since: Time::ZERO },
            usage_limit: config.usage_limit.new_state(),
            ceilings_due: true,
            band_views: Vec::new(),
            ceilings: Vec::new(),
            hinted: BTreeMap::new(),
            hinted_granted: BTreeSet::new(),
            victims: Victims::default(),
            revocations: Revocations::default(),
            waiting: Waiting::default(),
            leases: LeaseStats::default(),
            sequence: 0,
            starts: 0,
            closed: false,
            rate: DrainRate::default(),
            totals: BTreeMap::new(),
            flattened_ceilings: 0,
            invalid_ttls: 0,
            revocation_stats: RevocationStats::default(),
            reclaim_target: 0,
            next_ask: None,
            stale_watch: StaleWatch::default(),
            effects: VecDeque::new(),
            violations: Violations::default(),
            config,
        };
        engine.provision_bands();
        engine
    }

    /// The next thing to do, if there is one.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The band of `priority`, if it exists.
    fn band_index(&self, priority: Priority) -> Option<usize> {
        self.bands.binary_search_by(|band| priority.cmp(&band.priority)).ok()
    }

    /// The index of the band of `priority`, which is made from its template if need be.
    fn band_for(&mut self, priority: Priority) -> usize {
        self.bands.binary_search_by(|band| priority.cmp(&band.priority)).unwrap_or_else(|index| {
            self.bands.insert(index, Band::new(priority, self.config.band(priority).clone(), self.config.budgets));
            self.ceilings_due = true;
            index
        })
    }

    /// The band exists whether or not it is used.
    fn is_provisioned(&self, priority: Priority) -> bool {
        priority.0 == 0 || self.config.bands.contains_key(&priority) || self.desired.contains(&priority)
    }

    fn provision_bands(&mut self) {
        let named = self.config.bands.keys().chain(&self.desired).copied();
        let named: BTreeSet<Priority> = named.chain([Priority(0)]).collect();
        let lacking: Vec<Priority> = named.into_iter().filter(|&named| self.band_index(named).is_none()).collect();
        // All at once: to make room for thousands one by one would move those behind thousands of times.
        let made = lacking.into_iter().rev();
        self.bands
            .extend(made.map(|priority| Band::new(priority, self.config.band(priority).clone(), self.config.budgets)));
        self.bands.sort_by_key(|band| Reverse(band.priority));
        let keep: Vec<bool> = self.bands.iter().map(|b| b.tickets > 0 || self.is_provisioned(b.priority)).collect();
        let mut keep = keep.into_iter();
        self.bands.retain(|_| keep.next().unwrap_or(true));
        self.ceilings_due = true;
        self.count_bands();
    }

    /// Says when there have come to be too many bands.
    fn count_bands(&mut self) {
        let bands = self.bands.len();
        let many = bands > SOFT_BAND_LIMIT;
        if many && !self.many_bands {
            self.effects.push_back(Effect::ManyBands { bands });
        }
        self.many_bands = many;
    }

    /// Lets the ticket wait: in its flow's queue or for room on its endpoints, as its state says.
    fn begin_wait(&mut self, ticket: Ticket) {
        let item = &self.items[ticket];
        let Some(index) = self.band_index(item.priority) else { return };
        let band = &mut self.bands[index];
        band.waiting.add(item.bytes);
        band.flows[item.flow].waiting.add(item.bytes);
        self.waiting.add(item.bytes);
        if self.waiting.requests == 1 {
            self.rate.resume(self.now);
        }
        if self.config.when_full == WhenFull::Displace {
            band.arrivals.insert(item.rank.sequence, ticket);
        }
        match item.state {
            State::Queued => {
                band.flows[item.flow].queue.push(&mut self.places, item.rank, ticket);
                band.sync_head(&self.items, item.flow);
            }
            State::Parked => {}
            State::New | State::Granted { .. } | State::Started(_) => debug_assert!(false, "it does not wait"),
        }
        if self.heeds_targets(&self.items[ticket]) {
            self.find_targets(ticket);
        }
    }

    /// Takes the ticket out of every place where waiting tickets are.
    fn end_wait(&mut self, ticket: Ticket) {
        let item = &self.items[ticket];
        let Some(index) = self.band_index(item.priority) else { return };
        let band = &mut self.bands[index];
        band.waiting.sub(item.bytes);
        band.flows[item.flow].waiting.sub(item.bytes);
        self.waiting.sub(item.bytes);
        if self.waiting.requests == 0 {
            self.rate.pause(self.now);
        }
        band.arrivals.remove(&item.rank.sequence);
        if matches!(item.state, State::Queued) {
            let removed = band.flows[item.flow].queue.remove(&mut self.places, ticket);
            check!(self.violations, F2, removed);
            band.sync_head(&self.items, item.flow);
        }
        if self.heeds_targets(&self.items[ticket]) {
            self.forget_targets(ticket);
        }
        self.forget_deadline(index, ticket);
    }

    /// Ends a ticket that waits or was never let in, and says so.
    fn drop_ticket(&mut self, ticket: Ticket, outcome: Outcome) {
        if self.items[ticket].is_waiting() {
            self.end_wait(ticket);
        }
        let priority = self.items[ticket].priority;
        let retry_after = self.retry_after(outcome, priority);
        let waiter = self.items[ticket].waiter;
        let verdict = Verdict::Dropped { outcome, retry_after };
        self.effects.push_back(Effect::Verdict { ticket, waiter, verdict });
        self.count_outcome(priority, outcome);
        self.forget(ticket);
    }

    /// Removes the last trace of a ticket; its band may end with it.
    fn forget(&mut self, ticket: Ticket) {
        let item = self.items.remove(ticket);
        check!(self.violations, F1, item.is_some());
        let Some(item) = item else { return };
        let Some(index) = self.band_index(item.priority) else { return };
        self.bands[index].forget_ticket(item.flow);
        self.retire_band(index);
    }

    /// Removes a band that has no tickets, unless it exists without.
    fn retire_band(&mut self, index: usize) {
        if self.bands[index].tickets == 0 && !self.is_provisioned(self.bands[index].priority) {
            self.bands.remove(index);
            self.ceilings_due = true;
            self.count_bands();
        }
    }

    fn count_outcome(&mut self, priority: Priority, outcome: Outcome) {
        self.totals.entry(priority).or_default().count(outcome);
    }

    /// The base of `Retry-After` for a request of `priority` that ends with `outcome`: seconds, in `1..=15`. None
    /// where a retry is no use.
    pub fn retry_after(&mut self, outcome: Outcome, priority: Priority) -> Option<u8> {
        match outcome {
            Outcome::Dispatched | Outcome::EvictedContextCancelled => None,
            Outcome::RejectedCapacity
            | Outcome::RejectedNoEndpoints
            | Outcome::RejectedOther
            | Outcome::EvictedTtl
            | Outcome::EvictedNoEndpoints
            | Outcome::EvictedOther => Some(self.retry_after_at(priority)),
        }
    }

    /// The base of `Retry-After` for a request of `priority`: seconds, in `1..=15`.
    fn retry_after_at(&mut self, priority: Priority) -> u8 {
        let ahead = self.bands.iter().take_while(|band| band.priority >= priority);
        let queued = ahead.map(|band| band.waiting.requests).sum();
        self.rate.seconds_for(self.now, queued)
    }
}
