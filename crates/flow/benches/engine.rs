//! What the engine's verbs cost in time.

mod scenario;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use sluice_core::Time;
use sluice_flow::{Config, Engine, Signal, Waiter};

use crate::scenario::{Kind, Scenario, config, pool};

/// Calls measured together where one alone would leave nothing to go on with.
const BATCH: usize = 1000;

fn open_gate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("open gate");
    group.throughput(criterion::Throughput::Elements(BATCH as u64));
    group.bench_function("submit+grant x1000", |bencher| {
        let asks = || {
            let mut scenario = Scenario::new(0, 1, 1, 1);
            scenario.engine.observe(Time::ZERO, pool(1, u64::from(u32::MAX)));
            scenario.drain();
            let asks: Vec<_> = (0..BATCH).map(|_| scenario.ask()).collect();
            (scenario, asks)
        };
        bencher.iter_batched(
            asks,
            |(mut scenario, asks)| {
                for ask in asks {
                    scenario.engine.submit(Time::from_secs(1), ask, Waiter(1));
                    black_box(scenario.engine.poll());
                }
                scenario
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
    criterion.bench_function("open gate/submit+grant+release", |bencher| {
        let mut scenario = Scenario::new(0, 1, 1, 100);
        scenario.release();
        bencher.iter(|| scenario.turn_over());
    });
}

fn backlog(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("submit+grant+release");
    let mut bench = |name: &str, mut scenario: Scenario| {
        group.bench_function(name, |bencher| bencher.iter(|| scenario.turn_over()));
    };
    for queued in [500, 5_000, 50_000, 500_000] {
        bench(&format!("{queued} queued, 1000 tenants"), Scenario::new(queued, 1000, 1, 100));
    }
    for tenants in [1, 10_000] {
        bench(&format!("50000 queued, {tenants} tenants"), Scenario::new(50_000, tenants, 1, 100));
    }
    bench("50000 queued, 1000 endpoints", Scenario::new(50_000, 1000, 1000, 1));
    bench("50000 queued, 1000 parked", Scenario::with_parked(Kind::plain(), 50_000, 1000, 100, 1000));
    bench("50000 queued, 1000 parked, evicting", Scenario::with_parked(Kind::evicting(), 50_000, 1000, 100, 1000));
    bench("50000 queued beside 10000 idle tenants", Scenario::with_idle_tenants(50_000, 10_000));
    for queued in [50_000, 500_000] {
        bench(&format!("{queued} queued by deadline"), Scenario::of(Kind::by_deadline(), queued, 1000, 1, 100));
    }
    group.bench_function("50000 queued, with start", |bencher| {
        let mut scenario = Scenario::new(50_000, 1000, 1, 100);
        bencher.iter(|| scenario.turn_over_started());
    });
    group.bench_function("50000 queued, weighted, with start", |bencher| {
        let mut scenario = Scenario::of(Kind::weighted(), 50_000, 1000, 1, 100);
        bencher.iter(|| scenario.turn_over_started());
    });
    group.finish();
}

fn cancel(criterion: &mut Criterion) {
    criterion.bench_function("cancel at 50000 queued x1000", |bencher| {
        let mut scenario = Scenario::new(50_000, 1000, 1, 100);
        let mut next = 0;
        bencher.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                let gone: Vec<_> = (0..BATCH)
                    .map(|_| {
                        next = (next + 7919) % scenario.queued.len();
                        scenario.queued.swap_remove(next % scenario.queued.len())
                    })
                    .collect();
                #[expect(clippy::disallowed_methods, reason = "it measures")]
                let start = std::time::Instant::now();
                for ticket in gone {
                    scenario.cancel(ticket);
                }
                spent += start.elapsed();
                for _ in 0..BATCH {
                    let ticket = scenario.submit();
                    scenario.queued.push(ticket);
                }
            }
            spent
        });
    });
}

fn burst(criterion: &mut Criterion) {
    criterion.bench_function("10000 queued, 5000 places freed at once", |bencher| {
        let full = || {
            let mut scenario = Scenario::new(10_000, 100, 1, 1);
            scenario.drain();
            let Signal::Pool(members) = pool(1, 5_001) else { unreachable!("a pool is a pool") };
            (scenario, members)
        };
        bencher.iter_batched(
            full,
            |(mut scenario, members)| {
                scenario.engine.observe(Time::from_secs(1), Signal::Pool(members));
                scenario.drain();
                // All of them, and in the order in which they came: tenants came in turns.
                assert!(scenario.granted.iter().skip(1).eq(&scenario.queued[..5_000]));
                assert_eq!(scenario.granted.len(), 5_001);
                scenario
            },
            BatchSize::LargeInput,
        );
    });
}

fn idle(criterion: &mut Criterion) {
    criterion.bench_function("refusal of a full band", |bencher| {
        let mut config = config();
        config.template.max_requests = 0;
        let mut engine = Engine::new(config);
        let mut scenario = Scenario::new(0, 1, 1, 1);
        bencher.iter(|| {
            let ask = scenario.ask();
            engine.submit(Time::from_secs(1), ask, Waiter(1));
            black_box(engine.poll())
        });
    });
}

/// How long the queues stand still while another configuration is taken over.
fn reload(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reload");
    for queued in [500, 5_000, 50_000] {
        // Objects of their own, as the configuration gives them: each time another ordering and fairness.
        let mut bench = |name: &str, configs: [Config; 2]| {
            let mut scenario = Scenario::new(queued, 1000, 1, 100);
            let mut turn = 0;
            group.bench_function(format!("{queued} queued, {name}"), |bencher| {
                bencher.iter(|| {
                    turn ^= 1;
                    let config = Box::new(configs[turn].clone());
                    scenario.engine.observe(Time::from_secs(1), Signal::Reload { config, desired: None });
                    scenario.drain();
                });
            });
        };
        let same = config();
        bench("policies as before", [same.clone(), same]);
        bench("ordered anew", [config(), config()]);
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = open_gate, backlog, cancel, burst, idle, reload
}
criterion_main!(benches);
