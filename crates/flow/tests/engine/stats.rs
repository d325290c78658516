//! What can be seen.

use std::time::Duration;

use sluice_core::Priority;
use sluice_flow::policy::{BandView, UsageLimit, UsageLimitPolicy};
use sluice_flow::{Ask, Outcome, Verdict};

use crate::harness::rig::{Rig, ask, plain, verdicts, with_ceilings};

#[test]
fn sizes_bytes_and_the_oldest_wait_per_band_and_flow() {
    let mut rig = Rig::new(plain(), &[1]);
    rig.run_on(0, ask("a", 0));
    rig.at_millis(1_000).queue(Ask { bytes: 10, ..ask("a", 0) });
    rig.at_millis(3_000).queue(Ask { bytes: 5, ..ask("b", 0) });
    rig.at_millis(4_000);
    let stats = rig.stats();
    let band = &stats.bands[0];
    assert_eq!((band.waiting.requests, band.waiting.bytes, band.gated), (2, 15, true));
    assert_eq!(band.oldest_wait, Duration::from_secs(3));
    let flows: Vec<_> = band.flows.iter().map(|f| (&*f.tenant, f.waiting.bytes, f.oldest_wait, f.in_flight)).collect();
    assert_eq!(flows, [("a", 10, Duration::from_secs(3), 1), ("b", 5, Duration::from_secs(1), 0)]);
    assert_eq!((stats.leases.started, stats.leases.granted), (1, 0));
}

#[test]
fn what_each_flow_has_running_on_each_endpoint() {
    let mut rig = Rig::new(plain(), &[2, 2]);
    rig.run_on(0, Ask { tokens: 5, ..ask("a", 0) });
    let ended = rig.run_on(1, Ask { tokens: 7, ..ask("a", 0) });
    rig.run_on(1, Ask { tokens: 11, ..ask("b", 0) });
    rig.release(ended);
    let stats = rig.stats();
    let running = |flow: usize| stats.bands[0].flows[flow].started.values().map(|load| (load.requests, load.tokens));
    assert_eq!(running(0).collect::<Vec<_>>(), [(1, 5)]);
    assert_eq!(running(1).collect::<Vec<_>>(), [(1, 11)]);
    assert_ne!(stats.bands[0].flows[0].started.keys().next(), stats.bands[0].flows[1].started.keys().next());
}

#[test]
fn a_band_starved_by_a_higher_one_shows_in_its_oldest_wait() {
    let mut rig = Rig::new(plain(), &[1]);
    let mut running = rig.run_on(0, ask("a", 10));
    rig.queue(ask("b", 0));
    for step in 1..=50 {
        rig.at_millis(step * 100);
        let next = rig.queue(ask("a", 10));
        rig.release(running);
        running = next;
    }
    assert_eq!(rig.stats().bands[1].oldest_wait, Duration::from_secs(5));
}

#[test]
fn a_dry_run_of_ceilings_counts_what_they_would_have_held_back() {
    let mut config = with_ceilings(&[(0, 0.5)]);
    config.dry_run.ceilings = true;
    let mut rig = Rig::new(config, &[4]);
    for _ in 0..4 {
        rig.grant(ask("a", 0));
    }
    rig.queue(ask("a", 0));
    let stats = rig.stats();
    assert_eq!(stats.totals[&Priority(0)].would_gate, 2);
    assert!((stats.bands[0].ceiling - 0.5).abs() < f64::EPSILON, "the ceiling is shown though it is not applied");
}

#[derive(Clone, Copy, Debug)]
struct Rising;

impl UsageLimitPolicy for Rising {
    fn new_state(&self) -> Box<dyn UsageLimit> {
        Box::new(*self)
    }
}

impl UsageLimit for Rising {
    fn ceilings(&mut self, _: sluice_core::Time, _: &[BandView], _: f64, ceilings: &mut [f64]) {
        for (ceiling, value) in ceilings.iter_mut().zip([0.5, 1.0]) {
            *ceiling = value;
        }
    }
}

#[test]
fn ceilings_that_rise_toward_lower_priority_are_flattened_and_counted() {
    let mut config = with_ceilings(&[(10, 1.0), (0, 1.0)]);
    config.usage_limit = std::sync::Arc::new(Rising);
    let mut rig = Rig::new(config, &[4]);
    rig.run_many(2, "a", 0);
    rig.queue(ask("a", 0));
    assert_eq!(rig.stats().flattened_ceilings, 1);
}

#[test]
fn each_way_to_end_has_its_own_name() {
    let names: std::collections::BTreeSet<_> = Outcome::ALL.into_iter().map(Outcome::as_str).collect();
    assert_eq!(names.len(), Outcome::ALL.len());
    let mut rig = Rig::new(plain(), &[0]);
    rig.queue(ask("a", 0));
    rig.at_millis(60_000);
    let effects = rig.on_time();
    let expected = Verdict::Dropped { outcome: Outcome::EvictedTtl, retry_after: Some(15) };
    assert_eq!(verdicts(&effects)[0].1, expected);
    assert_eq!(rig.stats().totals[&Priority(0)].outcome(Outcome::EvictedTtl), 1);
}
