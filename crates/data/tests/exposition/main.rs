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

/// The same, stopping after parts of these sizes, over and over again.
fn scan_in_parts(mappings: &EngineMappings, page: &[u8], parts: &[usize]) -> ScanReport {
    let mut scan = mappings.for_labels(&BTreeMap::new()).begin(page);
    // A part has one line at least, and the last one may have none.
    let mut parts = parts.iter().copied().cycle().take(page.len() + 1);
    while !scan.advance(parts.next().expect("a page ends")) {}
    scan.finish(Time::ZERO, &mut ScanState::default())
}
