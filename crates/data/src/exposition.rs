//! Reads what a model server says of itself from its page of metrics, in the Prometheus text format.
//!
//! ```text
//! configuration ──> EngineMappings ──labels of an endpoint──> EngineMapping
//!                                                                  │ scan(page)
//!   page ──lines of wanted families──> samples ──> one tally per reading ──> Scraped
//! ```
//!
//! A page has hundreds of lines, of which half a dozen matter. The scanner goes from line end to line end, looks at one
//! byte of each line, and reads labels and value of no line that was not asked for. Nothing is allocated for a line; a line
//! that cannot be read spoils the readings of its family, not the page. What a hostile page can cost is bounded: by the length of
//! a line, the number of lines of a family, and by reading it in parts.

mod builtin;
mod config;
mod families;
mod mapping;
mod mappings;
mod memory;
mod rate;
mod sample;
mod spec;
mod tally;
#[cfg(test)]
mod tests;

pub use config::{CustomMetric, EngineConfig};
pub use mapping::{EngineMapping, Scan, ScanReport, ScanState};
pub use mappings::{EngineConfigError, EngineMappings};
pub use spec::{MetricSpec, SpecError};
