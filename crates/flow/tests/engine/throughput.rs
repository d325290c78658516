//! What a gate that goes by scrapes costs servers that are fast enough, and what it keeps from those that are not.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::Time;
use sluice_flow::Config;
use sluice_plugins::flow::{ConcurrencyDetector, UtilizationDetector};

use crate::harness::rig::plain;
use crate::harness::servers::{Outcome, Servers, Speed};

fn gated() -> Config {
    let mut config = plain();
    config.detector = Arc::new(UtilizationDetector::default());
    config
}

fn open() -> Config {
    let mut config = plain();
    config.detector = Arc::new(ConcurrencyDetector { max_concurrency: 1 << 30, ..ConcurrencyDetector::default() });
    config
}

/// So many clients, each with one request at a time, for some seconds after a warm-up.
fn closed_loop(config: Config, speeds: &[Speed], clients: usize, seconds: u64) -> Outcome {
    let mut servers = Servers::new(config, speeds);
    servers.run_until(Time::from_millis(100));
    (0..clients).for_each(|_| servers.submit());
    servers.run_until(Time::from_secs(1));
    servers.outcome = Outcome::default();
    servers.run_until(Time::from_secs(1 + seconds));
    servers.outcome
}

#[test]
fn servers_that_are_fast_enough_are_not_held_down() {
    let mut all = Vec::new();
    for endpoints in [1, 4, 16] {
        for (service, step) in [(1, 1), (3, 1), (10, 1), (10, 10), (30, 10), (100, 20), (1000, 20)] {
            // No more than four thousand requests per second: it takes time to simulate them.
            for clients in [2, 8, 32].into_iter().filter(|clients| clients * endpoints as u64 <= 4 * service) {
                let speed =
                    Speed { most: 1000, service: Duration::from_millis(service), step: Duration::from_millis(step) };
                let speeds = vec![speed; endpoints];
                let seconds = if service < 100 { 1 } else { 10 };
                let [gated, open] = [gated(), open()]
                    .map(|config| closed_loop(config, &speeds, usize::try_from(clients).unwrap() * endpoints, seconds));
                let share = gated.finished * 1000 / open.finished;
                all.push((endpoints, service, step, clients, gated.finished, open.finished, share, gated.scrapes));
            }
        }
    }
    let slow: Vec<_> = all.iter().filter(|run| run.6 < 970).collect();
    assert!(slow.is_empty(), "endpoints, service, step, clients, gated, open, share, scrapes: {slow:#?}");
}

#[test]
fn queues_stay_near_the_threshold_however_many_clients_there_are() {
    let speed = Speed { most: 128, service: Duration::from_millis(2000), step: Duration::from_millis(20) };
    for clients in [32, 96, 128, 160, 200, 400] {
        let [gated, open] = [gated(), open()].map(|config| closed_loop(config, &[speed], clients, 20));
        assert!(gated.finished * 1000 >= open.finished * 970, "{clients}: {} of {}", gated.finished, open.finished);
        assert!(gated.queue_p95() <= 6, "{clients}: {}", gated.queue_p95());
        if clients >= 200 {
            assert!(open.queue_p95() > 60, "{clients}: the gate makes no difference");
        }
    }
}

#[test]
fn a_burst_on_cold_servers_is_let_in_little_by_little() {
    let speed = Speed { most: 16, service: Duration::from_secs(1), step: Duration::from_millis(20) };
    let mut servers = Servers::new(gated(), &[speed; 2]);
    servers.run_until(Time::from_millis(100));
    (0..500).for_each(|_| servers.submit());
    servers.run_until(Time::from_secs(1));
    let queues = &servers.outcome.queues;
    assert!(queues.iter().all(|&queue| queue <= 6), "{queues:?}");
}
