//! What reading a page of metrics costs in instructions. The limit is the count that was measured when it was last written,
//! plus 3 %: above it the benchmark fails.

#![expect(unused_qualifications, clippy::exit, reason = "the macros of the benchmark write them")]

use std::collections::BTreeMap;
use std::hint::black_box;

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use model_server_sim::page::{EngineGauges, Page};
use sluice_core::Time;
use sluice_data::{EngineMapping, EngineMappings, ScanState};

/// Instructions as measured.
const PAGE: u64 = 109_853;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, instructions + instructions * 3 / 100)]));
    config
}

fn page() -> (EngineMapping, String, ScanState) {
    let mapping = EngineMappings::default().for_labels(&BTreeMap::new()).clone();
    let page = Page::new([EngineGauges { running: 12, waiting: 3, kv_cache_usage: 0.25 }]).to_string();
    let mut state = ScanState::default();
    // So that nothing is done for the first time.
    mapping.scan(page.as_bytes(), Time::ZERO, &mut state);
    (mapping, page, state)
}

#[library_benchmark(config = at_most(PAGE))]
#[bench::one_engine(page())]
fn scan((mapping, page, mut state): (EngineMapping, String, ScanState)) -> (EngineMapping, String) {
    black_box(mapping.scan(black_box(page.as_bytes()), Time::ZERO, &mut state));
    (mapping, page)
}

library_benchmark_group!(name = exposition, benchmarks = [scan]);
main!(library_benchmark_groups = exposition);
