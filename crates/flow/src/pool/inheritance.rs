//! The first moments of a process that takes over from another one: its books are empty, the endpoints are not.
//!
//! For twice the staleness, an endpoint weighs the larger of what this process has in flight there and what the endpoint
//! says that it runs and has waiting. The difference is what it has inherited. It is worked out anew with each scrape;
//! between two scrapes it stays as it is, so that what is let in meanwhile weighs on top of it.
//!
//! Endpoints tell requests, not tokens: a limit on tokens knows nothing of what was inherited. Where saturation goes by
//! what endpoints say in any case there is nothing to inherit, and where nothing is scraped nobody tells.

use std::time::Duration;

use sluice_core::{Endpoint, Scraped, Time};

use super::Pool;
use crate::load::EndpointKey;

/// Until when what endpoints say counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inheritance {
    until: Time,
}

impl Pool {
    /// From now on for twice as long as what endpoints say is not `stale`.
    pub(crate) fn start_inheriting(&mut self, now: Time, stale: Duration) {
        self.inheritance = Some(Inheritance { until: now.saturating_add(stale.saturating_mul(2)) });
        for key in self.present.clone() {
            let sample = self.endpoints.get(&key).and_then(|state| state.endpoint.scraped());
            if let Some(sample) = sample.filter(|sample| now.saturating_since(sample.began) < stale) {
                self.inherit(now, key, &sample);
            }
        }
    }

    /// When what was inherited is forgotten.
    pub(crate) fn inherits_until(&self) -> Option<Time> {
        self.inheritance.map(|Inheritance { until }| until)
    }

    pub(crate) fn stop_inheriting(&mut self) {
        self.inheritance = None;
        self.forget_inherited();
    }

    pub(super) fn forget_inherited(&mut self) {
        let keys: Vec<EndpointKey> = self.endpoints.keys().copied().collect();
        for key in keys {
            self.set_inherited(key, 0);
        }
    }

    /// Tells whether it makes a difference.
    pub(super) fn inherit(&mut self, now: Time, key: EndpointKey, sample: &Scraped) -> bool {
        if self.estimates || self.inherits_until().is_none_or(|until| until <= now) {
            return false;
        }
        let (Some(state), Some(said)) = (self.endpoint(key), in_the_engine(sample)) else { return false };
        let inherited = said.saturating_sub(state.load.requests);
        self.set_inherited(key, inherited)
    }

    fn set_inherited(&mut self, key: EndpointKey, requests: u64) -> bool {
        let Self { endpoints, saturation, leaving, estimates, .. } = self;
        let Some(state) = endpoints.get_mut(&key).filter(|state| state.inherited != requests) else { return false };
        if *estimates || !state.in_pool {
            state.inherited = requests;
            return false;
        }
        let (before, leaving_before) = (state.weight(state.load), state.units_leaving(&**saturation));
        state.inherited = requests;
        state.update_leaving(leaving, leaving_before, &**saturation);
        saturation.load_changed(&state.facts, before, state.weight(state.load));
        self.limits_changed = true;
        self.refresh_readings();
        self.refresh_ready(key);
        true
    }
}

/// Requests that the endpoint says it has; none if it says nothing of it.
fn in_the_engine(sample: &Scraped) -> Option<u64> {
    let (running, waiting) = (sample.running, sample.waiting);
    let said = running.or(waiting)?;
    let all = if running.is_some() { said.saturating_add(waiting.unwrap_or(0)) } else { said };
    Some(all.min(Endpoint::MAX_LIMIT))
}
