//! The endpoints of the pool: where they come from, which are there now, what they say of themselves, and what this
//! process has in flight on each.
//!
//! ```text
//! file discovery ──> EndpointTable ──snapshot──> router, scheduler
//!                         │                         │ Permit::start
//!                         v                         v
//!                      Scraper ──> Endpoint      InFlight        RAII: dropped = released
//! ```

mod booking;
mod discovery;
mod endpoint_file;
mod exposition;
#[cfg(test)]
mod log_lines;
mod scrape;
mod subset;
mod table;

pub use booking::{Full, InFlight, Permit};
pub use discovery::{Discovery, DiscoveryError, FileDiscovery};
pub use endpoint_file::{
    EndpointFile, EndpointFileError, EndpointFileWarning, EndpointFileWarningKind, EntryError, parse_endpoint_file,
};
pub use exposition::{
    CustomMetric, EngineConfig, EngineConfigError, EngineMapping, EngineMappings, MetricSpec, Scan, ScanReport,
    ScanState, SpecError,
};
pub use scrape::{
    ClientPair, HttpsOptions, MIN_SCRAPE_INTERVAL, MetricsPath, MetricsSource, Observer, PoolGauges, ScrapeContext,
    ScrapeMetrics, ScrapeNow, Scraper, Scraping, TlsFileError, Transport, Verify,
};
pub use subset::Subset;
pub use table::{EndpointSpec, EndpointTable, Snapshot};
