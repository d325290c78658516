//! What the checker makes of the pool, of limits and of deadlines.

use std::time::Duration;

use sluice_core::Time;
use sluice_flow::policy::{OrderKey, OrderingFacts};
use sluice_flow::{EndpointKey, Stages};
use sluice_plugins::flow::ConcurrencyMode;

use super::checker::{Live, Model, State};
use super::history::{AskFacts, Place};
use super::ops::band_of;

impl Model<'_> {
    pub(super) fn has_dispatchable(&self, band: i32) -> bool {
        self.live.values().any(|live| {
            let may_go = match live.state {
                State::Queued => true,
                State::Parked => self.places.iter().any(|place| live.allows(place) && self.has_room(place)),
                State::Granted(_) | State::Started(_) => false,
            };
            may_go && live.ask.priority == band && !self.is_capped(live)
        })
    }

    pub(super) fn is_capped(&self, live: &Live) -> bool {
        let same = |other: &&Live| (other.ask.priority, other.ask.tenant) == (live.ask.priority, live.ask.tenant);
        let held = self.live.values().filter(same).filter(|other| !other.waits()).count() as u64;
        self.policies.max_in_flight.is_some_and(|limit| held >= limit)
    }

    pub(super) fn is_open(&self, ceiling: f64) -> bool {
        let ceiling = if self.config.dry_run.ceilings { 1.0 } else { ceiling };
        let serving = |stages: Stages| self.places.iter().any(|place| place.stages.covers(stages));
        let stages: Vec<Stages> =
            [Stages::PREFILL, Stages::DECODE].into_iter().filter(|&stages| serving(stages)).collect();
        match (stages.is_empty(), self.places.is_empty()) {
            (false, _) => stages.into_iter().all(|stages| self.saturation(stages) < ceiling),
            (true, false) => self.saturation(Stages::NONE) < ceiling,
            (true, true) => false,
        }
    }

    /// Of the endpoints that serve all of `stages`.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn saturation(&self, stages: Stages) -> f64 {
        let places = || self.places.iter().filter(|place| place.stages.covers(stages));
        let booked: u64 = places().map(|place| self.booked(place.key)).sum();
        let unstarted = self.live.values().filter(|live| matches!(live.state, State::Granted(_)));
        let unstarted = unstarted.filter(|live| live.ask.stages.covers(stages)).count() as u64;
        let capacity: u64 = places().map(|place| place.limit.unwrap_or(self.policies.detector.max_concurrency)).sum();
        (booked + unstarted) as f64 / capacity as f64
    }

    fn booked(&self, key: EndpointKey) -> u64 {
        let on = |live: &Live| match &live.state {
            State::Started(bookings) => bookings.iter().filter(|(endpoint, _)| *endpoint == key).count() as u64,
            State::Queued | State::Parked | State::Granted(_) => 0,
        };
        self.live.values().map(on).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    pub(super) fn has_room(&self, place: &Place) -> bool {
        if self.policies.detector.mode != ConcurrencyMode::Requests {
            return true;
        }
        let limit = place.limit.unwrap_or(self.policies.detector.max_concurrency) as f64;
        let kept =
            self.live.values().filter(|live| matches!(live.state, State::Granted(Some(key)) if key == place.key));
        let load = self.booked(place.key) + kept.count() as u64;
        (load as f64) < (limit * (1.0 + self.policies.detector.headroom)).trunc()
    }

    fn budgets(&self, priority: i32) -> (Duration, Duration) {
        let band = band_of(&self.config, priority);
        let budgets = self.config.budgets;
        (band.request_ttl.unwrap_or(budgets.saturation), band.no_endpoint_request_ttl.unwrap_or(budgets.no_endpoint))
    }

    pub(super) fn key(&self, ask: &AskFacts, arrival: Time) -> OrderKey {
        band_of(&self.config, ask.priority).ordering.key(&OrderingFacts {
            arrival,
            received: arrival,
            ttl: ask.ttl_millis.map(Duration::from_millis),
            saturation_budget: self.budgets(ask.priority).0,
            ttft: ask.ttft_millis.map(Duration::from_millis),
        })
    }

    pub(super) fn deadline(&self, live: &Live) -> Time {
        let (saturation, no_endpoint) = self.budgets(live.ask.priority);
        let (empty, since) = self.regime;
        let ttl = live.ask.ttl_millis.map(|ttl| live.arrival.saturating_add(Duration::from_millis(ttl)));
        let budget = if empty { no_endpoint } else { saturation };
        let regime = (!budget.is_zero()).then(|| live.arrival.max(since).saturating_add(budget));
        let both = (!saturation.is_zero() && !no_endpoint.is_zero())
            .then(|| live.arrival.saturating_add(saturation + no_endpoint));
        [ttl, live.ask.stream_deadline, regime, both].into_iter().flatten().min().unwrap_or(Time::MAX)
    }
}
