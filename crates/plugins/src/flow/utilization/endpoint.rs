//! How many requests wait on one endpoint: what it said, corrected by what was sent to it and what has ended since.
//!
//! ```text
//!   balance = waiting + hidden + sent − over − room          expected waiting if positive, room left if negative
//!
//!   waiting, running    as scraped
//!   hidden              sent before the scrape began, but so shortly that it may not show them yet
//!   sent                sent since the scrape began, and not over
//!   over                over since the scrape began, of those that were sent before
//!   room                max(0, the most it runs at once − running), and none where it says itself that requests wait
//! ```
//!
//! "The most it runs at once" is learned: the largest `running` that was scraped. It has run so many, so it can, until it
//! has a lasting queue and runs fewer. Where `running_limit` tells the most, the room is what that leaves, queue or not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Endpoint, Scraped, Time};
use sluice_flow::policy::{Departure, EndpointFacts, Seen};

use super::UtilizationDetector;

/// A scrape shows what was sent so long before it began. Model servers renew their metrics once per step.
pub(super) const SETTLING: Duration = Duration::from_millis(20);

/// A queue that was there for so long is not just one between two steps: the endpoint runs no more than it does.
const LASTING_QUEUE: Duration = Duration::from_millis(100);

/// Larger figures are taken for this: sums of them stay in range.
const MOST: u64 = Endpoint::MAX_LIMIT;

/// One endpoint, whether it is in the pool or has left it a moment ago.
#[derive(Debug, Default)]
pub(super) struct EndpointState {
    /// None once it has left the pool.
    pub(super) facts: Option<EndpointFacts>,
    /// Requests that are booked on it.
    pub(super) booked: u64,
    sample: Option<Sample>,
    /// What its pages are read as.
    engine: Option<Arc<str>>,
    /// The sample is recent enough to go by.
    pub(super) fresh: bool,
    /// The largest number of requests that it was seen to run at once, since it last had a lasting queue.
    learned: u64,
    /// When the first of the latest samples began all of which show a queue.
    queue_since: Option<Time>,
    /// Requests of others that it was seen to have beside those from here.
    foreign: u64,
    /// When those were sent that run, but for those that were sent too long ago to matter.
    starts: BTreeMap<Time, u64>,
    /// Those that have ended since the last scrape began, in that order.
    ends: VecDeque<End>,
    /// Sent since the sample began, and not over.
    sent: u64,
    /// Over since the sample began, of those that were sent before.
    over: u64,
    /// Revoked ones that have ended, and count until a later sample.
    departed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    began: Time,
    /// From when on its age counts.
    good_since: Time,
    waiting: Option<u64>,
    running: Option<u64>,
    kv_usage: Option<KvUsage>,
    /// In flight when it began, and not shown by it.
    hidden: u64,
}

/// A figure that may be from an earlier scrape than the rest.
#[derive(Clone, Copy, Debug)]
struct KvUsage {
    good_since: Time,
    used: f64,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Time,
    started: Time,
    revoked: bool,
}

impl EndpointState {
    /// Takes note of what the endpoint said; tells whether it can be gone by: what is neither old nor
    /// [half the truth](Scraped::tells_load), which would look like an idle endpoint.
    pub(super) fn scraped(&mut self, now: Time, staleness: Duration, scraped: &Scraped) -> bool {
        let good_since = scraped.good_since();
        let Scraped { began, lenience: _, engine, lost_queue: _, waiting, running, kv_usage, .. } = scraped;
        let began = *began;
        let is_old = self.sample.is_some_and(|last| began <= last.began) || !scraped.is_fresh(now, staleness);
        if is_old || !scraped.tells_load() {
            return false;
        }
        if !is_same_reading(self.engine.as_ref(), engine.as_ref()) {
            self.engine.clone_from(engine);
            (self.learned, self.queue_since) = (0, None);
        }
        let (waiting, running) = (waiting.map(|waiting| waiting.min(MOST)), running.map(|running| running.min(MOST)));
        let hidden = self.catch_up(began, waiting.zip(running).map(|(waiting, running)| waiting + running));
        self.learn(began, waiting, running);
        let kv_usage = kv_usage.map(|used| KvUsage { good_since, used });
        let kv_usage = kv_usage.or_else(|| self.kv_usage_before(good_since, staleness));
        self.sample = Some(Sample { began, good_since, waiting, running, kv_usage, hidden });
        self.fresh = true;
        true
    }

    /// What it last said of its KV cache, if it has only just ceased to: one page without it opens no gate.
    fn kv_usage_before(&self, time: Time, staleness: Duration) -> Option<KvUsage> {
        self.sample?.kv_usage.filter(|usage| time.saturating_since(usage.good_since) <= staleness)
    }

    fn learn(&mut self, began: Time, waiting: Option<u64>, running: Option<u64>) {
        self.queue_since = waiting.filter(|waiting| *waiting > 0).map(|_| self.queue_since.unwrap_or(began));
        let Some(running) = running else { return };
        let is_lasting = self.queue_since.is_some_and(|since| began.saturating_since(since) >= LASTING_QUEUE);
        self.learned = if is_lasting { running } else { self.learned.max(running) };
    }

    /// Counts anew from a sample that began at `began` and shows `shown` requests, and forgets what it makes irrelevant.
    /// Returns how many it may not show.
    ///
    /// Where it is known how many there are beside those from here, the sample tells how many it shows: at most the
    /// difference is hidden.
    fn catch_up(&mut self, began: Time, shown: Option<u64>) -> u64 {
        let covered = began.saturating_sub(SETTLING);
        self.ends.retain(|end| end.at > began);
        self.starts = self.starts.split_off(&just_after(covered));
        let count = |(_, count): (&Time, &u64)| *count;
        let since: u64 = self.starts.range(began..).map(count).sum();
        let mut unsettled: u64 = self.starts.range(..began).map(count).sum();
        let mut in_flight = self.booked.saturating_sub(since);
        (self.sent, self.over, self.departed) = (since, 0, 0);
        for &End { at: _, started, revoked } in &self.ends {
            let sent_before = started < began;
            in_flight += u64::from(sent_before);
            unsettled += u64::from(sent_before && started > covered);
            self.over += u64::from(sent_before && !revoked);
            self.sent += u64::from(!sent_before && revoked);
            self.departed += u64::from(revoked);
        }
        let Some(shown) = shown else { return unsettled };
        let hidden = (in_flight + self.foreign).saturating_sub(shown).min(unsettled);
        self.foreign = (shown + hidden).saturating_sub(in_flight);
        hidden
    }

    pub(super) fn started(&mut self, at: Time, staleness: Duration) {
        self.prune(at, staleness);
        *self.starts.entry(at).or_default() += 1;
        if self.is_after_sample(at) {
            self.sent += 1;
        }
    }

    pub(super) fn ended(&mut self, now: Time, started: Time, departure: Departure, staleness: Duration) {
        self.prune(now, staleness);
        if let Some(count) = self.starts.get_mut(&started) {
            *count -= 1;
            if *count == 0 {
                self.starts.remove(&started);
            }
        }
        let is_after_sample = self.is_after_sample(started);
        match departure {
            Departure::Revoked => self.departed += 1,
            Departure::Over | Departure::Moved if is_after_sample => self.sent = self.sent.saturating_sub(1),
            Departure::Over => self.over += 1,
            Departure::Moved => {}
        }
        if departure != Departure::Moved {
            self.ends.push_back(End { at: now, started, revoked: departure == Departure::Revoked });
        }
    }

    /// No sample can show what happened at `time`.
    fn is_after_sample(&self, time: Time) -> bool {
        self.sample.is_none_or(|sample| time >= sample.began)
    }

    /// Forgets what no sample from now on can be missing: one that began so long ago is too old itself.
    pub(super) fn prune(&mut self, now: Time, staleness: Duration) {
        let oldest = now.saturating_sub(staleness.saturating_add(Scraped::MOST_LENIENCE));
        while self.ends.front().is_some_and(|end| end.at < oldest) {
            self.ends.pop_front();
        }
        let oldest = oldest.saturating_sub(SETTLING);
        while let Some(first) = self.starts.first_entry().filter(|first| *first.key() < oldest) {
            first.remove();
        }
    }

    /// Nothing that matters is known of it.
    pub(super) fn is_idle(&self) -> bool {
        self.starts.is_empty() && self.ends.is_empty()
    }

    /// When the sample begins to be too old.
    pub(super) fn expiry(&self, staleness: Duration) -> Option<Time> {
        self.sample.map(|sample| just_after(sample.good_since.saturating_add(staleness)))
    }

    /// The first that was sent and may not be in the sample.
    pub(super) fn oldest_doubt(&self) -> Option<Time> {
        self.starts.keys().next().copied()
    }

    /// Requests taken to wait, if positive; those it could take at once, if negative. `gone` of those on it are left out.
    pub(super) fn balance(&self, detector: &UtilizationDetector, gone: u64) -> i64 {
        let sample = self.sample.unwrap_or(Sample::UNKNOWN);
        let Sample { waiting, hidden, .. } = sample;
        let there = waiting.unwrap_or(0) + hidden + self.sent;
        signed(there) - signed(self.over) - signed(gone) - signed(self.room(detector, sample))
    }

    fn room(&self, detector: &UtilizationDetector, sample: Sample) -> u64 {
        let has_queue = sample.waiting.is_some_and(|waiting| waiting > 0);
        let most = detector.running_limit.unwrap_or(if has_queue { 0 } else { self.learned });
        sample.running.map_or(0, |running| most.saturating_sub(running))
    }

    /// The used part of its KV cache, once `gone` of those on it are not.
    #[expect(clippy::cast_precision_loss, reason = "requests are far fewer than 2^53")]
    pub(super) fn kv_usage(&self, gone: u64) -> Option<f64> {
        let sample = self.sample?;
        let usage = sample.kv_usage?.used;
        let running = sample.running.unwrap_or(self.booked).max(1);
        Some(usage * (running.saturating_sub(gone) as f64 / running as f64))
    }

    /// How many the sample itself has waiting beyond the room that it shows.
    pub(super) fn scraped_waiting(&self, detector: &UtilizationDetector) -> u64 {
        let sample = self.sample.unwrap_or(Sample::UNKNOWN);
        sample.waiting.unwrap_or(0).saturating_sub(self.room(detector, sample))
    }

    /// Revoked ones that have ended, and are not known to be gone.
    pub(super) const fn departed(&self) -> u64 {
        self.departed
    }

    pub(super) fn seen(&self, now: Time, detector: &UtilizationDetector) -> Seen {
        let balance = self.balance(detector, 0);
        let sample = self.sample;
        Seen {
            waiting: sample.and_then(|sample| sample.waiting),
            running: sample.and_then(|sample| sample.running),
            kv_usage: sample.and_then(|sample| sample.kv_usage).map(|usage| usage.used),
            age: sample.map(|sample| now.saturating_since(sample.began)),
            expected_waiting: expected_waiting(balance),
            room: expected_waiting(balance.saturating_neg()),
            stale: !self.fresh,
        }
    }
}

impl Sample {
    /// Stands in where there is none.
    const UNKNOWN: Self =
        Self { began: Time::ZERO, good_since: Time::ZERO, waiting: None, running: None, kv_usage: None, hidden: 0 };
}

/// Two pages were read in the same way, as their [`engine`](Scraped::engine) says.
fn is_same_reading(before: Option<&Arc<str>>, after: Option<&Arc<str>>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => Arc::ptr_eq(before, after),
        (before, after) => before.is_none() && after.is_none(),
    }
}

/// The positive part of a balance.
pub(super) fn expected_waiting(balance: i64) -> u64 {
    u64::try_from(balance).unwrap_or(0)
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX >> 4)
}

const fn just_after(time: Time) -> Time {
    Time::from_nanos(time.as_nanos().saturating_add(1))
}
