//! The reader of metrics pages beside a plain one, and on the pages of a server.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod agreement;
mod expected;
mod pages;
mod plain;
mod simulator;

use std::collections::BTreeMap;

use sluice_core::Time;
use sluice_data::{EngineMappings, ScanReport, ScanState};

/// What is read of a page when it is the first one of an endpoint of the default engine.
fn scan(mappings: &EngineMappings, page: &[u8]) -> ScanReport {
    mappings.for_labels(&BTreeMap::new()).scan(page, Time::ZERO, &mut ScanState::default())
}
