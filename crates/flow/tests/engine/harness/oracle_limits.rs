//! The oracle's queue limits: who is refused, and who has to go for whom.

use std::cmp::Reverse;

use sluice_core::Time;
use sluice_flow::{Outcome, WhenFull};

use super::oracle::{Entry, Oracle};

impl Oracle {
    pub(super) fn refusal(&self, entry: &Entry) -> Option<Outcome> {
        if self.closed {
            return Some(Outcome::RejectedOther);
        }
        if !self.servable(entry) {
            return Some(Outcome::RejectedNoEndpoints);
        }
        let hopeless = !self.band_config(entry.priority).shed && !self.fits(entry.priority, entry.bytes);
        hopeless.then(|| self.full())
    }

    /// The queues have room for a newcomer, or would have once all that it may displace is gone.
    fn fits(&self, priority: i32, newcomer: u64) -> bool {
        let config = self.band_config(priority);
        let (requests, bytes) = self.waiting(|other| other.priority == priority);
        if requests + 1 > config.max_requests || bytes + newcomer > config.max_bytes {
            return false;
        }
        let below = |other: &Entry| self.config.when_full == WhenFull::Displace && other.priority < priority;
        let (requests, bytes) = self.waiting(|other| !below(other));
        self.is_within_limits((requests + 1, bytes + newcomer))
    }

    pub(crate) fn refuse_by_headers(&mut self, now: Time, priority: i32, bytes: u64) -> Option<Outcome> {
        self.advance(now);
        let outcome = self.refusal_by_headers(priority, bytes)?;
        self.count(priority, outcome);
        Some(outcome)
    }

    fn refusal_by_headers(&mut self, priority: i32, bytes: u64) -> Option<Outcome> {
        if self.closed {
            return Some(Outcome::RejectedOther);
        }
        let hopeless = if self.band_config(priority).shed {
            // The ceilings may be others with this band than without it.
            self.bands.entry(Reverse(priority)).or_default();
            let gate = self.bands.keys().zip(self.gates()).find(|(band, _)| band.0 == priority);
            let open = gate.is_some_and(|(_, ceiling)| self.is_open(ceiling));
            self.tidy();
            !open
        } else {
            !self.fits(priority, bytes)
        };
        hopeless.then(|| self.full())
    }

    fn is_within_limits(&self, (requests, bytes): (u64, u64)) -> bool {
        let global = self.config.global;
        global.requests.is_none_or(|limit| requests <= limit) && global.bytes.is_none_or(|limit| bytes <= limit)
    }

    pub(super) fn displace(&mut self, priority: i32) {
        while self.config.when_full == WhenFull::Displace && !self.is_within_limits(self.waiting(|_| true)) {
            let below = self.entries.iter().filter(|other| other.waits() && other.priority < priority);
            let newest_of_lowest = below.min_by_key(|other| (other.priority, Reverse(other.request)));
            let Some((victim, of)) = newest_of_lowest.map(|victim| (victim.request, victim.priority)) else { return };
            self.counts.entry(of).or_default().displaced += 1;
            self.drop_request(victim, Outcome::RejectedCapacity);
        }
    }

    pub(super) fn full(&self) -> Outcome {
        if self.empty_since.0 { Outcome::RejectedNoEndpoints } else { Outcome::RejectedCapacity }
    }

    pub(crate) fn waiting(&self, which: impl Fn(&Entry) -> bool) -> (u64, u64) {
        let waiting = self.entries.iter().filter(|entry| entry.waits() && which(entry));
        waiting.fold((0, 0), |(requests, bytes), entry| (requests + 1, bytes + entry.bytes))
    }
}
