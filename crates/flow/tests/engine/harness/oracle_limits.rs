//! The oracle's queue limits: who is refused, and who has to go for whom.

use std::cmp::Reverse;

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
        let config = self.band_config(entry.priority).clone();
        if config.shed {
            return None;
        }
        let (requests, bytes) = self.waiting(|other| other.priority == entry.priority);
        if requests + 1 > config.max_requests || bytes + entry.bytes > config.max_bytes {
            return Some(self.full());
        }
        let below = |other: &Entry| self.config.when_full == WhenFull::Displace && other.priority < entry.priority;
        let (requests, bytes) = self.waiting(|other| !below(other));
        (!self.is_within_limits((requests + 1, bytes + entry.bytes))).then(|| self.full())
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
