//! What "saturated" means: by what is booked, or by what endpoints say of themselves.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use sluice_core::{Scraped, Time};

use crate::load::{EndpointKey, Load, Partition, Partitions};

/// Says how full the pool is.
pub trait SaturationDetector: fmt::Debug + Send + Sync {
    fn new_state(&self) -> Box<dyn Saturation>;

    /// Whether requests can be evicted for its readings. They cannot where nobody knows what the end of a request takes off
    /// them: then [`Saturation::is_stale`] always holds.
    fn supports_eviction(&self) -> bool {
        true
    }
}

/// Saturation as a fraction in whole numbers of a unit that the detector chooses: `load / capacity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub load: u64,
    pub capacity: u64,
}

impl Reading {
    /// Nothing to put load on counts as saturated.
    #[expect(clippy::cast_precision_loss, reason = "loads beyond 2^53 do not occur")]
    pub fn saturation(self) -> f64 {
        if self.capacity == 0 { 1.0 } else { self.load as f64 / self.capacity as f64 }
    }
}

/// The most that may be booked on one endpoint: a request may start there while both are above its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BookingLimit {
    pub requests: u64,
    pub tokens: u64,
}

impl BookingLimit {
    pub const UNLIMITED: Self = Self { requests: u64::MAX, tokens: u64::MAX };

    pub(crate) const fn has_room(self, load: Load) -> bool {
        load.requests < self.requests && load.tokens < self.tokens
    }
}

/// What a detector may know about an endpoint of the present pool.
#[derive(Clone, Copy, Debug)]
pub struct EndpointFacts {
    pub key: EndpointKey,
    pub partitions: Partitions,
    /// The endpoint's own limit on concurrent requests, where it has one.
    pub max_concurrency: Option<u64>,
}

/// The load of the pool, kept up by increments so that a reading costs the same however large the pool is.
pub trait Saturation: fmt::Debug + Send {
    /// Begins anew with these endpoints and what is booked on each; unstarted leases are carried on.
    fn reset(&mut self, pool: &[(EndpointFacts, Load)]);

    /// A lease was granted: until it starts it weighs on all partitions it might use.
    fn charge(&mut self, partitions: Partitions, tokens: u64);

    /// Takes back one [`Saturation::charge`].
    fn discharge(&mut self, partitions: Partitions, tokens: u64);

    /// What is booked on one endpoint changed.
    fn load_changed(&mut self, endpoint: &EndpointFacts, before: Load, after: Load);

    fn reading(&self, partition: Partition) -> Reading;

    /// What an endpoint with `load` adds to the readings of its partitions, once all that was revoked on it has gone. It
    /// never falls as `load` grows.
    fn endpoint_units(&self, endpoint: &EndpointFacts, load: Load) -> u64;

    /// The most that the end of one request of `load` takes off those readings, at any time. The ends of several take off
    /// no more than that each.
    fn most_freed(&self, endpoint: &EndpointFacts, load: Load) -> u64 {
        self.endpoint_units(endpoint, load)
    }

    /// What waiting requests that add up to `load` will weigh on `partition` at the least, wherever they come to run.
    /// Others have to make room for no more than that: what more it turns out to be is asked for later.
    fn demand_units(&self, partition: Partition, load: Load) -> u64;

    /// The tokens that fill one endpoint: a waiting request of more is no reason to clear a second one.
    fn tokens_per_endpoint(&self) -> u64 {
        u64::MAX
    }

    /// `units` in what the detector counts: requests, tokens, endpoints.
    #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
    fn in_its_terms(&self, units: u64) -> f64 {
        units as f64
    }

    fn booking_limit(&self, endpoint: &EndpointFacts) -> BookingLimit;

    /// The readings rest on data too old to act upon, or do not tell what ends would take off them: nothing is evicted
    /// for them.
    fn is_stale(&self) -> bool {
        false
    }

    /// When, without any other call, a reading would change.
    fn next_change(&self) -> Option<Time> {
        None
    }

    /// Brings the readings up to `now`.
    fn advance(&mut self, now: Time) {
        let _ = now;
    }

    /// The part of it that goes by what endpoints say of themselves; none if it counts what is booked and nothing else.
    fn estimate(&self) -> Option<&dyn Estimate> {
        None
    }

    /// The same, to be told of what happens.
    fn estimate_mut(&mut self) -> Option<&mut dyn Estimate> {
        None
    }
}

/// Saturation by what endpoints say of themselves, now and then. It lags behind what happens, and makes up for that by
/// estimates, for which it has to know when requests start and end.
///
/// Its state goes by [`EndpointFacts::key`] and outlives [`Saturation::reset`], which only says who is in the pool.
pub trait Estimate: fmt::Debug + Send {
    /// The endpoint was scraped. A sample that is not newer than the last one changes nothing.
    fn scraped(&mut self, now: Time, endpoint: &EndpointFacts, sample: &Scraped);

    /// A request that was sent at `at` runs on the endpoint. Told beside [`Saturation::load_changed`].
    fn started(&mut self, endpoint: &EndpointFacts, at: Time);

    /// One that was sent at `started` has left the endpoint, which may have left the pool.
    fn ended(&mut self, now: Time, endpoint: EndpointKey, started: Time, departure: Departure);

    /// What those who are revoked still add to the readings of the endpoint's partitions: `revoking`, which is a part of
    /// its `load`, and those who have ended since the last scrape.
    fn leaving_units(&self, endpoint: &EndpointFacts, load: Load, revoking: Load) -> u64;

    /// Somebody waits at a closed gate. If the figures as they were scraped would not close it, appends the endpoints
    /// that could now say more than the estimate knows. Returns when it makes sense to ask again if nothing else happens.
    fn doubtful(&mut self, now: Time, endpoints: &mut Vec<EndpointKey>) -> Option<Time>;

    /// What is known of an endpoint of the present pool.
    fn seen(&self, now: Time, endpoint: EndpointKey) -> Option<Seen>;

    /// The endpoints of the present pool whose figures are too old.
    fn stale_endpoints(&self) -> u64;

    /// All that it knows of endpoints, for [`Estimate::take_over`] of the one that takes its place.
    fn hand_over(&mut self) -> Box<dyn Any> {
        Box::new(())
    }

    /// Goes on with what its predecessor knew at `now`; the pool is told after that. Tells whether it does: then it knows
    /// of everything that runs, and is not told of it again.
    fn take_over(&mut self, now: Time, known: Box<dyn Any>) -> bool {
        let _ = (now, known);
        false
    }
}

/// How a request left an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It is over.
    Over,
    /// It was revoked: the endpoint may work on for a moment, until a scrape shows that it does not.
    Revoked,
    /// It has been elsewhere all along.
    Moved,
}

/// What an endpoint said of itself, and what is made of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// As scraped.
    pub waiting: Option<u64>,
    /// As scraped.
    pub running: Option<u64>,
    /// As scraped.
    pub kv_usage: Option<f64>,
    /// How long ago the last usable scrape began; none before the first one.
    pub age: Option<Duration>,
    /// Requests that are taken to wait in its queue now.
    pub expected_waiting: u64,
    /// Further requests that it is taken to run at once.
    pub room: u64,
    /// What it said is too old to go by.
    pub stale: bool,
}
