//! When each endpoint is scraped. Pure: time and randomness are arguments.
//!
//! ```text
//!            take_due                    finished, answered: an interval after it began
//!  due ─────────────────> running ─┬──────────────────────────────────────────────────────> due
//!   ^ request: sooner        ^     └ failed: twice the pause of the last failure, up to MAX_PAUSE
//!   └ add: at once           └ request: again as soon as it has rested
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::{Rng, RngExt as _};
use sluice_core::Time;

/// Two scrapes of one endpoint begin at least this far apart, whoever asks.
pub(super) const MIN_GAP: Duration = Duration::from_millis(5);
/// Scrapes by schedule begin at multiples of this, so that one wake-up of the process serves several endpoints.
const TICK: Duration = Duration::from_millis(5);
/// So much of an interval it is longer or shorter than told.
const JITTER: f64 = 0.1;
/// The longest pause of an endpoint that does not answer, unless the interval itself is longer.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The scrapes of many endpoints, each known by its [serial](sluice_core::Endpoint::serial).
///
/// * Endpoints keep out of step: the first interval of each is cut at random, and every one is up to a tenth longer or
///   shorter than told. Those whose turns are next to each other have them together, at a [`TICK`].
/// * One that takes longer than an interval is left alone for as long as it took, to answer or to be read, whoever asks
///   for it meanwhile.
/// * One that fails is asked again after an interval, then after two, four and so on. The first answer ends that.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Duration,
    endpoints: BTreeMap<u64, Entry>,
    /// What of `endpoints` is not running, by the time it is due.
    due: BTreeSet<(Time, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// No scrape begins before, whoever asks.
    rests_until: Time,
    answered: bool,
    /// In a row, up to now.
    failures: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Due(Time),
    Running { began: Time, again: bool },
}

impl Schedule {
    /// `interval` is at least [`MIN_GAP`].
    pub(super) const fn new(interval: Duration) -> Self {
        Self { interval, endpoints: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// Every endpoint is due within the new interval, if not before, and out of step as ever.
    pub(super) fn set_interval(&mut self, now: Time, interval: Duration, rng: &mut impl Rng) {
        self.interval = interval;
        self.due.clear();
        for (serial, Entry { state, rests_until, .. }) in &mut self.endpoints {
            if let State::Due(at) = state {
                let latest = now.saturating_add(interval.mul_f64(rng.random_range(0.0..=1.0)));
                *at = (*at).min(latest.max(*rests_until));
                self.due.insert((*at, *serial));
            }
        }
    }

    /// An endpoint that is not there yet: it is due at once.
    pub(super) fn add(&mut self, now: Time, serial: u64) {
        let entry = Entry { state: State::Due(now), rests_until: now, answered: false, failures: 0 };
        debug_assert!(!self.endpoints.contains_key(&serial), "added twice");
        self.endpoints.insert(serial, entry);
        self.due.insert((now, serial));
    }

    /// Nothing is heard of the endpoint any more; its running scrape is to be given up.
    pub(super) fn remove(&mut self, serial: u64) {
        if let Some(Entry { state: State::Due(at), .. }) = self.endpoints.remove(&serial) {
            self.due.remove(&(at, serial));
        }
    }

    /// Asks for a scrape that begins after now, as soon as may be. An endpoint that does not answer is not asked more
    /// often for it, nor does one that is slow rest for less.
    pub(super) fn request(&mut self, now: Time, serial: u64) {
        let Some(entry) = self.endpoints.get_mut(&serial).filter(|entry| entry.failures == 0) else { return };
        match &mut entry.state {
            State::Running { again, .. } => *again = true,
            State::Due(at) => {
                let sooner = now.max(entry.rests_until);
                if sooner < *at {
                    self.due.remove(&(*at, serial));
                    *at = sooner;
                    self.due.insert((sooner, serial));
                }
            }
        }
    }

    /// When the next endpoint is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// An endpoint that is due: its scrape begins now and runs until [`Schedule::finished`].
    pub(super) fn take_due(&mut self, now: Time) -> Option<u64> {
        let &(at, serial) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.remove(&(at, serial));
        let entry = self.endpoints.get_mut(&serial)?;
        entry.state = State::Running { began: now, again: false };
        Some(serial)
    }

    /// The running scrape of an endpoint is over, and brought a page if there is an [`effort`](super::pace::effort). Returns
    /// how many had failed in a row before it; none if the endpoint is not there any more.
    pub(super) fn finished(
        &mut self,
        now: Time,
        serial: u64,
        effort: Option<Duration>,
        rng: &mut impl Rng,
    ) -> Option<u32> {
        let entry = self.endpoints.get_mut(&serial)?;
        let State::Running { began, again } = entry.state else { return None };
        let failures_before = entry.failures;
        let answered = effort.is_some();
        let first_answer = answered && !entry.answered;
        entry.answered |= answered;
        entry.failures = if answered { 0 } else { failures_before.saturating_add(1) };

        let rest = effort.filter(|effort| *effort > self.interval).unwrap_or_default();
        entry.rests_until = began.saturating_add(MIN_GAP).max(now.saturating_add(rest));

        let at = if !answered {
            nearest_tick(now.saturating_add(jittered(pause(self.interval, failures_before), rng)))
        } else if again {
            entry.rests_until
        } else {
            let interval = if first_answer {
                self.interval.mul_f64(rng.random_range(0.0..=1.0))
            } else {
                jittered(self.interval, rng)
            };
            nearest_tick(began.saturating_add(interval)).max(entry.rests_until)
        };
        entry.state = State::Due(at);
        self.due.insert((at, serial));
        Some(failures_before)
    }
}

/// After a failure that followed `failures` others.
fn pause(interval: Duration, failures: u32) -> Duration {
    let doubled = interval.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
    doubled.min(MAX_PAUSE.max(interval))
}

/// The multiple of [`TICK`] next to `time`.
fn nearest_tick(time: Time) -> Time {
    let tick = u64::try_from(TICK.as_nanos()).unwrap_or(u64::MAX);
    Time::from_nanos((time.as_nanos().saturating_add(tick / 2) / tick).saturating_mul(tick))
}

/// Up to a tenth more or less.
fn jittered(duration: Duration, rng: &mut impl Rng) -> Duration {
    duration.mul_f64(rng.random_range(1.0 - JITTER..=1.0 + JITTER))
}

/// The longest that two scrapes of an endpoint begin apart by schedule, if it answers within `interval`.
pub(super) fn longest_gap(interval: Duration) -> Duration {
    interval.mul_f64(1.0 + JITTER).saturating_add(TICK / 2)
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
