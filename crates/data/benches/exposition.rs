//! What reading a page of metrics costs in time: that of the processor, which other work on the machine changes least.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use model_server_sim::page::{EngineGauges, Page};
use sluice_core::Time;
use sluice_data::{EngineMappings, ScanState};

fn pages(criterion: &mut Criterion) {
    let mappings = EngineMappings::default();
    let mapping = mappings.for_labels(&BTreeMap::new());
    let mut group = criterion.benchmark_group("page of vLLM");
    for engines in [1, 2, 8] {
        let gauges = EngineGauges { running: 12, waiting: 3, kv_cache_usage: 0.25 };
        let page = Page::new(vec![gauges; engines]).to_string();
        group.throughput(Throughput::Bytes(page.len() as u64));
        group.bench_function(format!("{engines} engines, {} kB", page.len() / 1000), |bencher| {
            let mut state = ScanState::default();
            bencher.iter_custom(|rounds| {
                let start = processor_time();
                for _ in 0..rounds {
                    black_box(mapping.scan(black_box(page.as_bytes()), Time::ZERO, &mut state));
                }
                processor_time() - start
            });
        });
    }
    group.finish();
}

/// What this thread has had of the processor.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("time is not negative")
}

criterion_group!(benches, pages);
criterion_main!(benches);
