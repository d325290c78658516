//! Saturation by what this process has in flight: exact, and without any scraping.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_flow::policy::{BookingLimit, EndpointFacts, Reading, Saturation, SaturationDetector};
use sluice_flow::{Load, Partition, Partitions};
use sluice_schedule::{Candidates, Filter};

/// Compares requests, tokens, or whichever is worse, with a limit per endpoint.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyDetector {
    pub mode: ConcurrencyMode,
    /// Requests per endpoint that has no limit of its own; above zero.
    pub max_concurrency: u64,
    /// Tokens per endpoint; above zero.
    pub max_token_concurrency: u64,
    /// How far one endpoint may be booked beyond its limit, as a share of it. Saturation knows nothing of it.
    pub headroom: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConcurrencyMode {
    /// Requests in flight over the pool's limit.
    #[default]
    Requests,
    /// Tokens in flight over the pool's limit, no endpoint counting for more than its own.
    Tokens,
    /// The mean over endpoints of the worse of the two, tokens counting for at most 1.
    Hybrid,
}

impl Default for ConcurrencyDetector {
    fn default() -> Self {
        Self { mode: ConcurrencyMode::Requests, max_concurrency: 100, max_token_concurrency: 1_000_000, headroom: 0.0 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ConcurrencyDetectorParams {
    concurrency_mode: ConcurrencyMode,
    max_concurrency: u64,
    max_token_concurrency: u64,
    headroom: f64,
    in_flight_load_producer_name: Option<IgnoredAny>,
}

impl Default for ConcurrencyDetectorParams {
    fn default() -> Self {
        let ConcurrencyDetector { mode, max_concurrency, max_token_concurrency, headroom } =
            ConcurrencyDetector::default();
        Self {
            concurrency_mode: mode,
            max_concurrency,
            max_token_concurrency,
            headroom,
            in_flight_load_producer_name: None,
        }
    }
}

impl Plugin for ConcurrencyDetector {
    const TYPE: &'static str = "concurrency-detector";
    const STABILITY: Stability = Stability::Beta;
    type Params = ConcurrencyDetectorParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let ConcurrencyDetectorParams {
            concurrency_mode: mode,
            max_concurrency,
            max_token_concurrency,
            headroom,
            in_flight_load_producer_name,
        } = params;
        if max_concurrency == 0 {
            return Err(BuildError::new("maxConcurrency", "0 is not above zero"));
        }
        if max_token_concurrency == 0 {
            return Err(BuildError::new("maxTokenConcurrency", "0 is not above zero"));
        }
        for (parameter, limit) in [("maxConcurrency", max_concurrency), ("maxTokenConcurrency", max_token_concurrency)]
        {
            if limit > Endpoint::MAX_LIMIT {
                return Err(BuildError::new(parameter, format!("{limit} is above {}", Endpoint::MAX_LIMIT)));
            }
        }
        if !(headroom.is_finite() && headroom >= 0.0) {
            return Err(BuildError::new("headroom", format!("{headroom} is not a finite number from 0 up")));
        }
        if headroom > 1.0 {
            cx.warn("headroom", format!("{headroom} lets an endpoint be booked at more than twice its limit"));
        }
        if in_flight_load_producer_name.is_some() {
            cx.warn("inFlightLoadProducerName", "has no effect in this version, which counts requests in one place");
        }
        let detector = Self { mode, max_concurrency, max_token_concurrency, headroom };
        Ok(Roles { filter: Some(Arc::new(detector)), ..Roles::detector(detector) })
    }
}

/// Keeps the endpoints that have room for one more. Where none has, none is left.
impl Filter for ConcurrencyDetector {
    fn filter(&self, _: &Request, candidates: &mut Candidates<'_>) {
        candidates.retain(|endpoint| {
            let BookingLimit { requests, tokens } = self.limits(endpoint.max_concurrency());
            endpoint.load().requests() < requests && endpoint.load().tokens() < tokens
        });
    }

    fn is_by_load(&self) -> bool {
        true
    }
}

impl SaturationDetector for ConcurrencyDetector {
    fn new_state(&self) -> Box<dyn Saturation> {
        Box::new(Ledger { detector: *self, booked: [0; 3], unstarted: [0; 3], capacity: [0; 3] })
    }
}

impl ConcurrencyDetector {
    fn requests_limit(&self, max_concurrency: Option<u64>) -> u64 {
        max_concurrency.unwrap_or(self.max_concurrency)
    }

    /// `trunc(limit × (1 + headroom))`
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "limits are far below 2^53, and the conversion saturates"
    )]
    fn with_headroom(&self, limit: u64) -> u64 {
        (limit as f64 * (1.0 + self.headroom)).trunc() as u64
    }

    fn limits(&self, max_concurrency: Option<u64>) -> BookingLimit {
        let requests = self.with_headroom(self.requests_limit(max_concurrency));
        let tokens = self.with_headroom(self.max_token_concurrency);
        match self.mode {
            ConcurrencyMode::Requests => BookingLimit { requests, tokens: u64::MAX },
            ConcurrencyMode::Tokens => BookingLimit { requests: u64::MAX, tokens },
            ConcurrencyMode::Hybrid => BookingLimit { requests, tokens },
        }
    }

    /// What `load` weighs on an endpoint with this limit on requests, in the unit of the mode. Tokens fill one
    /// endpoint and no more: one prompt of any size must not speak for endpoints that are idle.
    fn units(&self, load: Load, requests_limit: u64) -> u64 {
        let tokens = load.tokens.min(self.max_token_concurrency);
        match self.mode {
            ConcurrencyMode::Requests => load.requests,
            ConcurrencyMode::Tokens => tokens,
            ConcurrencyMode::Hybrid => {
                share(load.requests, requests_limit).max(share(tokens, self.max_token_concurrency))
            }
        }
    }

    fn capacity(&self, endpoint: &EndpointFacts) -> u64 {
        match self.mode {
            ConcurrencyMode::Requests => self.requests_limit(endpoint.max_concurrency),
            ConcurrencyMode::Tokens => self.max_token_concurrency,
            ConcurrencyMode::Hybrid => WHOLE,
        }
    }
}

/// One endpoint's whole capacity in hybrid mode. Shares are rounded up, so that unstarted leases, counted one
/// by one, never add up to less than the same work booked on one endpoint.
const WHOLE: u64 = 1 << 32;

fn share(part: u64, limit: u64) -> u64 {
    let share = (u128::from(part) * u128::from(WHOLE)).div_ceil(u128::from(limit.max(1)));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Sums over endpoints, in the unit of the mode.
#[derive(Debug)]
struct Ledger {
    detector: ConcurrencyDetector,
    booked: [u64; 3],
    unstarted: [u64; 3],
    capacity: [u64; 3],
}

impl Saturation for Ledger {
    fn reset(&mut self, pool: &[(EndpointFacts, Load)]) {
        self.booked = [0; 3];
        self.capacity = [0; 3];
        for (endpoint, load) in pool {
            for partition in endpoint.partitions.iter() {
                self.booked[partition as usize] += self.endpoint_units(endpoint, *load);
                self.capacity[partition as usize] += self.detector.capacity(endpoint);
            }
        }
    }

    fn charge(&mut self, partitions: Partitions, tokens: u64) {
        let units = self.lease_units(tokens);
        for partition in partitions.iter() {
            self.unstarted[partition as usize] += units;
        }
    }

    fn discharge(&mut self, partitions: Partitions, tokens: u64) {
        let units = self.lease_units(tokens);
        for partition in partitions.iter() {
            self.unstarted[partition as usize] -= units;
        }
    }

    fn load_changed(&mut self, endpoint: &EndpointFacts, before: Load, after: Load) {
        let (before, after) = (self.endpoint_units(endpoint, before), self.endpoint_units(endpoint, after));
        for partition in endpoint.partitions.iter() {
            self.booked[partition as usize] = self.booked[partition as usize] + after - before;
        }
    }

    fn reading(&self, partition: Partition) -> Reading {
        let at = partition as usize;
        Reading { load: self.booked[at] + self.unstarted[at], capacity: self.capacity[at] }
    }

    fn endpoint_units(&self, endpoint: &EndpointFacts, load: Load) -> u64 {
        self.detector.units(load, self.detector.requests_limit(endpoint.max_concurrency))
    }

    fn lease_units(&self, tokens: u64) -> u64 {
        self.detector.units(Load::one(tokens), self.detector.max_concurrency)
    }

    fn booking_limit(&self, endpoint: &EndpointFacts) -> BookingLimit {
        self.detector.limits(endpoint.max_concurrency)
    }
}

#[cfg(test)]
#[path = "concurrency_tests.rs"]
mod tests;
