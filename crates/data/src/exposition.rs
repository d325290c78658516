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
//! that cannot be read spoils itself, not the page.

mod builtin;
mod config;
mod families;
mod mapping;
mod mappings;
mod rate;
mod sample;
mod spec;
mod tally;
#[cfg(test)]
mod tests;

pub use config::{CustomMetric, EngineConfig};
pub use mapping::{EngineMapping, ScanReport, ScanState};
pub use mappings::{EngineConfigError, EngineMappings};
pub use spec::{MetricSpec, SpecError};
