//! Saturation by what this process has in flight: exact, and without any scraping.

use sluice_flow::Load;
use sluice_flow::Partition;
use sluice_flow::Partitions;
use sluice_flow::policy::{BookingLimit, EndpointFacts, Reading, Saturation, SaturationDetector};

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        }
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

    /// What `load` weighs on an endpoint with this limit on requests, in the unit of the mode.
    fn units(&self, load: Load, requests_limit: u64) -> u64 {
        match self.mode {
            ConcurrencyMode::Requests => load.requests,
            ConcurrencyMode::Tokens => load.tokens,
            ConcurrencyMode::Hybrid => {
                share(load.requests, requests_limit).max(share(load.tokens, self.max_token_concurrency))
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

impl Ledger {
    fn endpoint_units(&self, endpoint: &EndpointFacts, load: Load) -> u64 {
        self.detector.units(load, self.detector.requests_limit(endpoint.max_concurrency))
    }
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
        let units = self.weigh(Load::one(tokens));
        for partition in partitions.iter() {
            self.unstarted[partition as usize] += units;
        }
    }

    fn discharge(&mut self, partitions: Partitions, tokens: u64) {
        let units = self.weigh(Load::one(tokens));
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

    fn weigh(&self, load: Load) -> u64 {
        self.detector.units(load, self.detector.max_concurrency)
    }

    fn booking_limit(&self, endpoint: &EndpointFacts) -> BookingLimit {
        let requests = self.detector.with_headroom(self.detector.requests_limit(endpoint.max_concurrency));
        let tokens = self.detector.with_headroom(self.detector.max_token_concurrency);
        match self.detector.mode {
            ConcurrencyMode::Requests => BookingLimit { requests, tokens: u64::MAX },
            ConcurrencyMode::Tokens => BookingLimit { requests: u64::MAX, tokens },
            ConcurrencyMode::Hybrid => BookingLimit { requests, tokens },
        }
    }
}

#[cfg(test)]
#[path = "concurrency_tests.rs"]
mod tests;
