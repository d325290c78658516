//! The policies of admission: the order inside a flow, the turn among flows, the ceiling of each band, and how
//! full the pool is.

mod concurrency;
mod edf;
mod fcfs;
mod global_strict;
mod priority_holdback;
mod round_robin;
mod slo_deadline;
mod static_usage_limit;
mod utilization;
mod weighted;

use serde::{Deserialize, Serialize};

pub use concurrency::{ConcurrencyDetector, ConcurrencyDetectorParams, ConcurrencyMode};
pub use edf::Edf;
pub use fcfs::Fcfs;
pub use global_strict::GlobalStrict;
pub use priority_holdback::{Curve, Domain, HoldbackError, PriorityHoldback, PriorityHoldbackParams};
pub use round_robin::RoundRobin;
pub use slo_deadline::SloDeadline;
pub use static_usage_limit::{StaticUsageLimit, StaticUsageLimitParams};
pub use utilization::{Aggregation, StalenessPolicy, UtilizationDetector, UtilizationDetectorParams};
pub use weighted::{Weighted, WeightedParams, Weights};

/// There is nothing to tell it.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoParams {}

#[cfg(test)]
#[path = "flow/params_tests.rs"]
mod params_tests;
