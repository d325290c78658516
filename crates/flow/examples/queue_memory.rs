//! Bytes of resident memory per queued request, beside its body: `queue_memory [COUNT]`.

use std::sync::Arc;

use sluice_core::{FlowKey, Priority, Time};
use sluice_flow::{Ask, BandConfig, Config, Engine, Waiter};
use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};

const TENANTS: usize = 1000;

#[expect(clippy::print_stdout, reason = "the result is for whoever ran the command")]
fn main() {
    let count = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(50_000);
    let template = BandConfig { max_requests: u64::MAX, ..BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin)) };
    let config = Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(ConcurrencyDetector::default()));
    let mut engine = Engine::new(config);
    let tenants: Vec<Arc<str>> = (0..TENANTS).map(|tenant| format!("tenant-{tenant}").into()).collect();
    let before = resident();
    for number in 0..count {
        let flow = FlowKey { tenant: Arc::clone(&tenants[number % TENANTS]), priority: Priority(0) };
        engine.submit(Time::from_nanos(number as u64), Ask::new(flow, Time::ZERO), Waiter(number as u64));
    }
    let grown = resident().saturating_sub(before);
    println!("{count} queued over {TENANTS} tenants: {} bytes each", grown / count);
    drop(engine);
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * 4096
}
