//! Saturation by what this process has in flight: exact, and without any scraping.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_flow::policy::{BookingLimit, EndpointFacts, Reading, Saturation, SaturationDetector};
use sluice_flow::{Load, Partition, Partitions};
use sluice_schedule::{Candidates, Filter};

use crate::ignored_params::LoadProducerName;

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
    /// The tokens on one endpoint count for no more than its limit, so that one prompt of any size does not speak for
    /// endpoints that are idle.
    pub cap_endpoint_tokens: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConcurrencyMode {
    /// Requests in flight over the pool's limit.
    #[default]
    Requests,
    /// Tokens in flight over the pool's limit.
    Tokens,
    /// The mean over endpoints of the worse of the two.
    Hybrid,
}

impl Default for ConcurrencyDetector {
    fn default() -> Self {
        Self {
            mode: ConcurrencyMode::Requests,
            max_concurrency: 100,
            max_token_concurrency: 1_000_000,
            headroom: 0.0,
            cap_endpoint_tokens: false,
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ConcurrencyDetectorParams {
    concurrency_mode: ConcurrencyMode,
    max_concurrency: u64,
    max_token_concurrency: u64,
    headroom: f64,
    cap_endpoint_tokens: bool,
    in_flight_load_producer_name: LoadProducerName,
}

impl Default for ConcurrencyDetectorParams {
    fn default() -> Self {
        let ConcurrencyDetector { mode, max_concurrency, max_token_concurrency, headroom, cap_endpoint_tokens } =
            ConcurrencyDetector::default();
        Self {
            concurrency_mode: mode,
            max_concurrency,
            max_token_concurrency,
            headroom,
            cap_endpoint_tokens,
            in_flight_load_producer_name: LoadProducerName::default(),
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
            cap_endpoint_tokens,
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
        in_flight_load_producer_name.warn(cx);
        let detector = Self { mode, max_concurrency, max_token_concurrency, headroom, cap_endpoint_tokens };
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
        Box::new(Ledger::new(*self))
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

    /// What `load` weighs on an endpoint with this limit on requests, in the unit of the mode.
    fn units(&self, load: Load, requests_limit: u64) -> u64 {
        let most = if self.cap_endpoint_tokens { self.max_token_concurrency } else { u64::MAX };
        let tokens = load.tokens.min(most);
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

/// More endpoints than a pool has: no share is larger, so that sums of shares stay in range.
const MOST: u64 = WHOLE << 16;

fn share(part: u64, limit: u64) -> u64 {
    let share = (u128::from(part) * u128::from(WHOLE)).div_ceil(u128::from(limit.max(1)));
    u64::try_from(share).unwrap_or(MOST).min(MOST)
}

/// Sums over endpoints, in the unit of the mode.
#[derive(Debug)]
struct Ledger {
    detector: ConcurrencyDetector,
    booked: [u64; 3],
    unstarted: [u64; 3],
    capacity: [u64; 3],
    /// The limits on requests of the endpoints in each partition: the lowest and the highest.
    limits: [(u64, u64); 3],
    /// How many unstarted leases there are of each kind. Kept in hybrid mode only, where they have to be weighed anew
    /// when the limits change.
    kinds: BTreeMap<(Partitions, u64), u64>,
}

impl Ledger {
    fn new(detector: ConcurrencyDetector) -> Self {
        let limits = [(detector.max_concurrency, detector.max_concurrency); 3];
        Self { detector, booked: [0; 3], unstarted: [0; 3], capacity: [0; 3], limits, kinds: BTreeMap::new() }
    }

    /// What an unstarted lease weighs: as much as on that endpoint of `partition` of which it takes the largest share,
    /// because that may be the one it starts on.
    fn lease_units(&self, partition: Partition, tokens: u64) -> u64 {
        let (lowest, _) = self.limits[partition as usize];
        self.detector.units(Load::one(tokens), lowest)
    }

    fn weigh_unstarted(&mut self) {
        self.unstarted = [0; 3];
        for (&(partitions, tokens), &count) in &self.kinds {
            for partition in partitions.iter() {
                self.unstarted[partition as usize] += count * self.lease_units(partition, tokens);
            }
        }
    }
}

impl Saturation for Ledger {
    fn reset(&mut self, pool: &[(EndpointFacts, Load)]) {
        self.booked = [0; 3];
        self.capacity = [0; 3];
        self.limits = Self::new(self.detector).limits;
        let mut found: [Option<(u64, u64)>; 3] = [None; 3];
        for (endpoint, load) in pool {
            let limit = self.detector.requests_limit(endpoint.max_concurrency);
            for partition in endpoint.partitions.iter() {
                let at = partition as usize;
                self.booked[at] += self.endpoint_units(endpoint, *load);
                self.capacity[at] += self.detector.capacity(endpoint);
                let (lowest, highest) = found[at].unwrap_or((limit, limit));
                found[at] = Some((lowest.min(limit), highest.max(limit)));
            }
        }
        for (limits, found) in self.limits.iter_mut().zip(found) {
            *limits = found.unwrap_or(*limits);
        }
        if self.detector.mode == ConcurrencyMode::Hybrid {
            self.weigh_unstarted();
        }
    }

    fn charge(&mut self, partitions: Partitions, tokens: u64) {
        for partition in partitions.iter() {
            self.unstarted[partition as usize] += self.lease_units(partition, tokens);
        }
        if self.detector.mode == ConcurrencyMode::Hybrid {
            *self.kinds.entry((partitions, tokens)).or_default() += 1;
        }
    }

    fn discharge(&mut self, partitions: Partitions, tokens: u64) {
        for partition in partitions.iter() {
            self.unstarted[partition as usize] -= self.lease_units(partition, tokens);
        }
        if self.detector.mode == ConcurrencyMode::Hybrid
            && let Entry::Occupied(mut count) = self.kinds.entry((partitions, tokens))
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
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

    fn demand_units(&self, partition: Partition, load: Load) -> u64 {
        let (_, highest) = self.limits[partition as usize];
        match self.detector.mode {
            ConcurrencyMode::Requests => load.requests,
            ConcurrencyMode::Tokens => load.tokens,
            ConcurrencyMode::Hybrid => {
                share(load.requests, highest).max(share(load.tokens, self.detector.max_token_concurrency))
            }
        }
    }

    fn tokens_per_endpoint(&self) -> u64 {
        self.detector.max_token_concurrency
    }

    #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
    fn in_its_terms(&self, units: u64) -> f64 {
        match self.detector.mode {
            ConcurrencyMode::Requests | ConcurrencyMode::Tokens => units as f64,
            ConcurrencyMode::Hybrid => units as f64 / WHOLE as f64,
        }
    }

    fn booking_limit(&self, endpoint: &EndpointFacts) -> BookingLimit {
        self.detector.limits(endpoint.max_concurrency)
    }
}

#[cfg(test)]
#[path = "concurrency_tests.rs"]
mod tests;
