use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::Priority;

use crate::band::Waiting;
use crate::config::GlobalLimits;
use crate::effect::Outcome;
use crate::invariant::Violations;
use crate::load::{EndpointKey, Load, Partition};
use crate::pool::EndpointStats;

/// A plain copy of everything that can be seen of the engine at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Over all bands.
    pub waiting: Waiting,
    pub global: GlobalLimits,
    /// From the highest priority down.
    pub bands: Vec<BandStats>,
    pub leases: LeaseStats,
    /// By partition, for the partitions the gate looks at; empty for an empty pool.
    pub saturation: Vec<(Partition, f64)>,
    /// What the gate compares with the ceilings: the worst of `saturation`, 1 for an empty pool.
    pub effective_saturation: f64,
    /// Ceilings are counted and not applied: every band is let in up to a saturation of 1.
    pub dry_run_ceilings: bool,
    pub endpoints: BTreeMap<EndpointKey, EndpointStats>,
    /// Endpoints of the pool that have said nothing of themselves for too long. None where saturation does not go by
    /// what they say.
    pub stale_endpoints: Option<u64>,
    /// By priority; kept after a band is gone.
    pub totals: BTreeMap<Priority, BandTotals>,
    /// Ceilings that rose toward lower priority and were flattened.
    pub flattened_ceilings: u64,
    /// `x-llm-d-inference-ttl` values that could not be used.
    pub invalid_ttls: u64,
    pub revocations: RevocationStats,
    /// What the last eviction plan wanted back for all bands together, in what the saturation counts: requests, tokens,
    /// or endpoints. Zero while nothing waits behind a gate that an eviction could open.
    pub reclaim_target: f64,
    /// Admission has closed.
    pub closed: bool,
    pub violations: Violations,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BandStats {
    pub priority: Priority,
    /// Queued and parked.
    pub waiting: Waiting,
    pub parked: u64,
    /// How long the ticket that came first has waited; zero if none waits.
    pub oldest_wait: Duration,
    pub max_requests: u64,
    pub max_bytes: u64,
    pub ceiling: f64,
    /// The gate lets nothing pass now.
    pub gated: bool,
    pub flows: Vec<FlowStats>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FlowStats {
    pub tenant: Arc<str>,
    pub waiting: Waiting,
    pub oldest_wait: Duration,
    /// Leases, granted and started.
    pub in_flight: u64,
    /// It has as many in flight as it may have, and is passed over.
    pub capped: bool,
    /// What its started leases weigh on each endpoint.
    pub started: BTreeMap<EndpointKey, Load>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Granted and not yet started.
    pub granted: u64,
    pub started: u64,
    /// Started, revoked, and not ended; not those that a dry run only counted.
    pub revoked: u64,
}

/// What has happened to the tickets of one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandTotals {
    outcomes: [u64; Outcome::ALL.len()],
    /// Dropped to make room for more urgent work; counted as [`Outcome::RejectedCapacity`] too.
    pub displaced: u64,
    /// Leases revoked to serve this priority.
    pub revocations: u64,
    /// Grants that a ceiling would have held back, had it not been a dry run.
    pub would_gate: u64,
    /// Victims that would have been revoked to serve this priority, had it not been a dry run.
    pub would_revoke: u64,
}

impl BandTotals {
    pub const fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    pub(crate) const fn count(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevocationStats {
    /// Ended in time.
    pub confirmed: u64,
    /// Not ended when the confirmation was due.
    pub timed_out: u64,
    /// Neither. None of a dry run is among them.
    pub outstanding: u64,
}
