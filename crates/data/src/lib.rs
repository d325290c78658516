//! The endpoints of the pool: where they come from, which are there now, and what this process has in flight
//! on each.
//!
//! ```text
//! file discovery ──> EndpointTable ──snapshot──> router, scheduler
//!                                                   │ Permit::start
//!                                                   v
//!                                                InFlight        RAII: dropped = released
//! ```

mod booking;
mod discovery;
mod endpoint_file;
mod exposition;
#[cfg(test)]
mod log_lines;
mod subset;
mod table;

pub use booking::{Full, InFlight, Permit};
pub use discovery::{Discovery, DiscoveryError, FileDiscovery};
pub use endpoint_file::{EndpointFileError, EntryError, parse_endpoint_file};
pub use exposition::{
    CustomMetric, EngineConfig, EngineConfigError, EngineMapping, EngineMappings, MetricSpec, ScanReport, ScanState,
    SpecError,
};
pub use subset::Subset;
pub use table::{EndpointSpec, EndpointTable, Snapshot};
