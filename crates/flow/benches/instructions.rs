//! What the engine's verbs cost in instructions. Each limit is the count that was measured when it was last
//! written, plus 3 %: above it the benchmark fails.

#![expect(unused_qualifications, clippy::exit, reason = "the macros of the benchmark write them")]

mod scenario;

use std::hint::black_box;

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use sluice_core::Time;
use sluice_flow::{Signal, Ticket, Waiter};

use crate::scenario::{Kind, Scenario, pool};

/// Calls in one benchmark.
const CALLS: usize = 1000;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, instructions + instructions * 3 / 100)]));
    config
}

fn open() -> (Scenario, Vec<sluice_flow::Ask>) {
    let mut scenario = Scenario::new(0, 1, 1, 1);
    scenario.engine.observe(Time::ZERO, pool(1, u64::from(u32::MAX)));
    scenario.drain();
    let asks = (0..CALLS).map(|_| scenario.ask()).collect();
    (scenario, asks)
}

#[library_benchmark(config = at_most(LIMITS.submit_and_grant))]
#[bench::open(open())]
fn submit_and_grant((mut scenario, asks): (Scenario, Vec<sluice_flow::Ask>)) -> Scenario {
    for ask in asks {
        black_box(scenario.engine.submit(Time::from_secs(1), ask, Waiter(1)));
        black_box(scenario.engine.poll());
    }
    scenario
}

#[library_benchmark]
#[bench::queued_500(args = (Scenario::new(500, 1000, 1, 100)), config = at_most(LIMITS.turn_over_500))]
#[bench::queued_50000(args = (Scenario::new(50_000, 1000, 1, 100)), config = at_most(LIMITS.turn_over_50000))]
#[bench::endpoints_1000(args = (Scenario::new(50_000, 1000, 1000, 1)), config = at_most(LIMITS.turn_over_50000))]
#[bench::parked_1000(
    args = (Scenario::with_parked(Kind::plain(), 50_000, 1000, 100, 1000)),
    config = at_most(LIMITS.turn_over_parked)
)]
#[bench::evicting_parked_1000(
    args = (Scenario::with_parked(Kind::evicting(), 50_000, 1000, 100, 1000)),
    config = at_most(LIMITS.turn_over_evicting)
)]
#[bench::idle_tenants_10000(
    args = (Scenario::with_idle_tenants(50_000, 10_000)),
    config = at_most(LIMITS.turn_over_idle_tenants)
)]
#[bench::edf_ttl_50000(
    args = (Scenario::of(Kind::by_deadline(), 50_000, 1000, 1, 100)),
    config = at_most(LIMITS.turn_over_by_deadline_50000)
)]
#[bench::edf_ttl_500000(
    args = (Scenario::of(Kind::by_deadline(), 500_000, 1000, 1, 100)),
    config = at_most(LIMITS.turn_over_by_deadline_500000)
)]
fn turn_over(mut scenario: Scenario) -> Scenario {
    for _ in 0..CALLS {
        scenario.turn_over();
    }
    scenario
}

#[library_benchmark]
#[bench::queued_50000(args = (Scenario::new(50_000, 1000, 1, 100)), config = at_most(LIMITS.turn_over_started))]
#[bench::weighted_50000(
    args = (Scenario::of(Kind::weighted(), 50_000, 1000, 1, 100)),
    config = at_most(LIMITS.turn_over_weighted)
)]
fn turn_over_started(mut scenario: Scenario) -> Scenario {
    for _ in 0..CALLS {
        scenario.turn_over_started();
    }
    scenario
}

fn doomed() -> (Scenario, Vec<Ticket>) {
    let scenario = Scenario::new(50_000, 1000, 1, 100);
    let tickets = scenario.queued.iter().step_by(49).take(CALLS).copied().collect();
    (scenario, tickets)
}

#[library_benchmark(config = at_most(LIMITS.cancel))]
#[bench::queued_50000(doomed())]
fn cancel((mut scenario, tickets): (Scenario, Vec<Ticket>)) -> Scenario {
    for ticket in tickets {
        scenario.cancel(ticket);
    }
    scenario
}

fn full() -> (Scenario, Signal) {
    (Scenario::new(10_000, 100, 1, 1), pool(1, 5_001))
}

#[library_benchmark(config = at_most(LIMITS.burst))]
#[bench::freed_5000(full())]
fn burst((mut scenario, freed): (Scenario, Signal)) -> Scenario {
    scenario.engine.observe(Time::from_secs(1), freed);
    scenario.drain();
    scenario
}

fn unchanged() -> (Scenario, Signal) {
    (Scenario::new(50_000, 1000, 1, 100), pool(1, 100))
}

#[library_benchmark(config = at_most(LIMITS.pool_signal))]
#[bench::queued_50000(unchanged())]
fn pool_signal((mut scenario, same): (Scenario, Signal)) -> Scenario {
    scenario.engine.observe(Time::from_secs(1), same);
    scenario
}

/// Instructions as measured.
struct Limits {
    submit_and_grant: u64,
    turn_over_500: u64,
    turn_over_50000: u64,
    turn_over_parked: u64,
    turn_over_evicting: u64,
    turn_over_idle_tenants: u64,
    turn_over_by_deadline_50000: u64,
    turn_over_by_deadline_500000: u64,
    turn_over_started: u64,
    turn_over_weighted: u64,
    cancel: u64,
    burst: u64,
    pool_signal: u64,
}

const LIMITS: Limits = Limits {
    submit_and_grant: 973_015,
    turn_over_500: 3_275_049,
    turn_over_50000: 2_825_917,
    turn_over_parked: 2_851_750,
    turn_over_evicting: 3_659_581,
    turn_over_idle_tenants: 2_819_695,
    turn_over_by_deadline_50000: 3_825_579,
    turn_over_by_deadline_500000: 3_958_871,
    turn_over_started: 4_090_917,
    turn_over_weighted: 6_930_851,
    cancel: 766_077,
    burst: 5_097_767,
    pool_signal: 2_771,
};

library_benchmark_group!(
    name = engine,
    benchmarks = [submit_and_grant, turn_over, turn_over_started, cancel, burst, pool_signal]
);
main!(library_benchmark_groups = engine);
