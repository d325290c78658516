//! The oracle's view of the pool: saturation, room, and who can be served at all.

use std::cmp::Reverse;

use sluice_core::Priority;
use sluice_flow::policy::BandView;
use sluice_flow::{EndpointKey, Load, Partition, Stage};
use sluice_plugins::flow::{ConcurrencyDetector, ConcurrencyMode};

use super::history::{Place, Request};
use super::oracle::{Entry, Oracle, State};

impl Oracle {
    pub(crate) fn is_open(&self, ceiling: f64) -> bool {
        let effective = self.effective();
        !effective.is_empty() && effective.into_iter().all(|partition| self.saturation(partition) < ceiling)
    }

    pub(crate) fn ceilings(&self) -> Vec<f64> {
        let views: Vec<BandView> = self
            .bands
            .keys()
            .map(|&Reverse(priority)| BandView { priority: Priority(priority), provisioned: self.keeps(priority) })
            .collect();
        let mut ceilings = vec![1.0; views.len()];
        self.config.usage_limit.new_state().ceilings(self.now, &views, 0.0, &mut ceilings);
        ceilings
    }

    pub(crate) fn effective(&self) -> Vec<Partition> {
        let stages = [Partition::Prefill, Partition::Decode];
        let present = |partition: &Partition| self.pool.iter().any(|place| is_in(place, *partition));
        let populated: Vec<Partition> = stages.into_iter().filter(present).collect();
        match (populated.is_empty(), self.pool.is_empty()) {
            (false, _) => populated,
            (true, false) => vec![Partition::Pool],
            (true, true) => vec![],
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "the rule as it is written")]
    pub(crate) fn saturation(&self, partition: Partition) -> f64 {
        self.load(partition) as f64 / self.capacity(partition) as f64
    }

    pub(crate) fn capacity(&self, partition: Partition) -> u64 {
        let places = self.pool.iter().filter(|place| is_in(place, partition));
        let capacity = |place: &Place| match self.detector.mode {
            ConcurrencyMode::Requests => place.limit.unwrap_or(self.detector.max_concurrency),
            ConcurrencyMode::Tokens => self.detector.max_token_concurrency,
            ConcurrencyMode::Hybrid => 1 << 32,
        };
        places.map(capacity).sum()
    }

    pub(crate) fn load(&self, partition: Partition) -> u64 {
        self.load_with(partition, |_| true)
    }

    /// The same where of the leases that have not started only those of `counts` are there.
    pub(crate) fn load_with(&self, partition: Partition, counts: impl Fn(&Entry) -> bool) -> u64 {
        let places = self.pool.iter().filter(|place| is_in(place, partition));
        let booked = places.map(|place| self.units(self.booked(place.key), place.limit));
        let unstarted = self.entries.iter().filter(|entry| matches!(entry.state, State::Granted(_)) && counts(entry));
        let unstarted = unstarted.filter(|entry| match partition {
            Partition::Prefill => entry.stages.contains(Stage::Prefill),
            Partition::Decode => entry.stages.contains(Stage::Decode),
            Partition::Pool => true,
        });
        // Whoever has not started may do so on the endpoint of which it takes the largest share.
        let smallest = self.limits(partition).min();
        booked.sum::<u64>() + unstarted.map(|entry| self.units(Load::one(entry.tokens), smallest)).sum::<u64>()
    }

    /// The limits on requests of the endpoints in the partition.
    fn limits(&self, partition: Partition) -> impl Iterator<Item = u64> {
        let places = self.pool.iter().filter(move |place| is_in(place, partition));
        places.map(|place| place.limit.unwrap_or(self.detector.max_concurrency))
    }

    /// What waiting requests are taken to weigh: as little as they can, wherever they start.
    pub(crate) fn demand_units(&self, partition: Partition, load: Load) -> u64 {
        match self.detector.mode {
            ConcurrencyMode::Requests => load.requests,
            ConcurrencyMode::Tokens => load.tokens,
            ConcurrencyMode::Hybrid => {
                let largest = self.limits(partition).max().unwrap_or(self.detector.max_concurrency);
                share(load.requests, largest).max(share(load.tokens, self.detector.max_token_concurrency))
            }
        }
    }

    pub(crate) fn units(&self, load: Load, limit: Option<u64>) -> u64 {
        let ConcurrencyDetector { mode, max_concurrency, max_token_concurrency, headroom: _, cap_endpoint_tokens } =
            self.detector;
        let tokens = if cap_endpoint_tokens { load.tokens.min(max_token_concurrency) } else { load.tokens };
        match mode {
            ConcurrencyMode::Requests => load.requests,
            ConcurrencyMode::Tokens => tokens,
            ConcurrencyMode::Hybrid => {
                let by_requests = share(load.requests, limit.unwrap_or(max_concurrency));
                by_requests.max(share(tokens, max_token_concurrency))
            }
        }
    }

    pub(crate) fn booked(&self, key: EndpointKey) -> Load {
        let mut sum = Load::default();
        for entry in &self.entries {
            if let State::Started { bookings, .. } = &entry.state {
                for booking in bookings.iter().filter(|booking| booking.endpoint == key) {
                    sum = sum.plus(Load::one(booking.tokens));
                }
            }
        }
        sum
    }

    /// Kept on the endpoint for others than `but`.
    pub(crate) fn reserved(&self, key: EndpointKey, but: Option<Request>) -> Load {
        let kept = self.entries.iter().filter(|entry| Some(entry.request) != but);
        let kept = kept.filter(|entry| matches!(entry.state, State::Granted(Some(at)) if at == key));
        kept.fold(Load::default(), |sum, entry| sum.plus(Load::one(entry.tokens)))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small")]
    pub(crate) fn requests_limit(&self, place: &Place) -> u64 {
        (place.limit.unwrap_or(self.detector.max_concurrency) as f64 * (1.0 + self.detector.headroom)) as u64
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small")]
    pub(crate) fn has_room(&self, place: &Place, load: Load) -> bool {
        let tokens = (self.detector.max_token_concurrency as f64 * (1.0 + self.detector.headroom)) as u64;
        let by_requests = load.requests < self.requests_limit(place);
        match self.detector.mode {
            ConcurrencyMode::Requests => by_requests,
            ConcurrencyMode::Tokens => load.tokens < tokens,
            ConcurrencyMode::Hybrid => by_requests && load.tokens < tokens,
        }
    }

    pub(crate) fn servable(&self, entry: &Entry) -> bool {
        let serves = |stage: Stage| {
            !entry.required.contains(stage) || self.pool.iter().any(|place| place.stages.contains(stage))
        };
        self.pool.is_empty()
            || (serves(Stage::Prefill) && serves(Stage::Decode) && self.pool.iter().any(|place| allows(entry, place)))
    }
}

/// In units of which an endpoint has 2^32.
fn share(part: u64, limit: u64) -> u64 {
    (part << 32).div_ceil(limit)
}

pub(crate) fn allows(entry: &Entry, place: &Place) -> bool {
    entry.hint.as_ref().is_none_or(|hint| hint.contains(&place.number))
}

pub(crate) fn is_in(place: &Place, partition: Partition) -> bool {
    match partition {
        Partition::Prefill => place.stages.contains(Stage::Prefill),
        Partition::Decode => place.stages.contains(Stage::Decode),
        Partition::Pool => true,
    }
}
