//! Another configuration.

use std::sync::Arc;

use sluice_core::{Priority, Time};
use sluice_flow::{Ask, Config, GlobalLimits, Outcome, Signal, TtlHeader, WhenFull};
use sluice_plugins::flow::{
    ConcurrencyDetector, ConcurrencyMode, Edf, GlobalStrict, StaticUsageLimit, Weighted, Weights,
};

use crate::harness::rig::{Rig, ask, band, budgets, dropped, granted, plain};

fn reload(rig: &mut Rig, config: &Config) -> Vec<sluice_flow::Effect> {
    rig.observe(Signal::Reload(Box::new(config.clone())))
}

#[test]
fn another_ordering_orders_what_waits_anew() {
    let config = plain();
    let mut rig = Rig::new(config.clone(), &[1]);
    let running = rig.run_on(0, ask("a", 0));
    rig.queue(ask("a", 0));
    let soon = rig.queue(Ask { ttl: TtlHeader::Within(std::time::Duration::from_secs(1)), ..ask("a", 0) });
    let ordering = band(Edf, GlobalStrict).ordering;
    reload(&mut rig, &Config { template: sluice_flow::BandConfig { ordering, ..config.template.clone() }, ..config });
    assert_eq!(granted(&rig.release(running)), [soon]);
}

#[test]
fn the_same_fairness_keeps_its_turn_and_another_begins_anew() {
    let config = plain();
    let mut rig = Rig::new(config.clone(), &[1]);
    let mut next = rig.run_on(0, ask("x", 5));
    let a: Vec<_> = (0..3).map(|_| rig.queue(ask("a", 0))).collect();
    let b: Vec<_> = (0..2).map(|_| rig.queue(ask("b", 0))).collect();
    assert_eq!(granted(&rig.release(next)), [a[0]]);
    reload(&mut rig, &config);
    next = a[0];
    assert_eq!(granted(&rig.release(next)), [b[0]], "the turn of a was remembered");
    let fairness = band(Edf, GlobalStrict).fairness;
    reload(&mut rig, &Config { template: sluice_flow::BandConfig { fairness, ..config.template.clone() }, ..config });
    assert_eq!(granted(&rig.release(b[0])), [a[1]], "the band is one queue now");
    assert_eq!(granted(&rig.release(a[1])), [a[2]]);
    assert_eq!(granted(&rig.release(a[2])), [b[1]]);
}

#[test]
fn another_fairness_brings_its_limit_per_tenant() {
    let config = plain();
    let mut rig = Rig::new(config.clone(), &[4]);
    let running = rig.run_many(2, "a", 0);
    let fairness = band(Edf, Weighted::new(Weights::default(), Some(2))).fairness;
    let template = sluice_flow::BandConfig { fairness, ..config.template.clone() };
    reload(&mut rig, &Config { template, ..config.clone() });
    let waiting = rig.queue(ask("a", 0));
    rig.grant(ask("b", 0));
    assert_eq!(granted(&rig.release(running[0])), [waiting]);
    // And takes it away again.
    rig.queue(ask("a", 0));
    assert_eq!(granted(&reload(&mut rig, &config)).len(), 1);
}

#[test]
fn smaller_queue_limits_drop_nobody() {
    let mut config = plain();
    let mut rig = Rig::new(config.clone(), &[0]);
    for _ in 0..3 {
        rig.queue(ask("a", 0));
    }
    config.template.max_requests = 1;
    assert_eq!(reload(&mut rig, &config), []);
    assert_eq!(rig.stats().waiting.requests, 3);
    assert_eq!(dropped(&rig.submit(ask("a", 0)).1).len(), 1);
}

#[test]
fn another_detector_goes_on_from_the_facts() {
    let mut config = plain();
    config.detector = Arc::new(ConcurrencyDetector { max_concurrency: 4, ..ConcurrencyDetector::default() });
    let mut rig = Rig::new(config.clone(), &[4]);
    rig.run_on(0, Ask { tokens: 60, ..ask("a", 0) });
    rig.grant(Ask { tokens: 20, ..ask("a", 0) });
    config.detector = Arc::new(ConcurrencyDetector {
        mode: ConcurrencyMode::Tokens,
        max_token_concurrency: 100,
        ..ConcurrencyDetector::default()
    });
    reload(&mut rig, &config);
    assert!((rig.stats().effective_saturation - 0.8).abs() < f64::EPSILON);
    rig.grant(Ask { tokens: 20, ..ask("a", 0) });
    rig.queue(Ask { tokens: 1, ..ask("a", 0) });
}

#[test]
fn a_higher_ceiling_grants_in_the_same_call() {
    let mut config = plain();
    config.usage_limit = Arc::new(StaticUsageLimit::new(0.5).unwrap());
    let mut rig = Rig::new(config.clone(), &[4]);
    rig.run_many(2, "a", 0);
    let waiting = rig.queue(ask("a", 0));
    config.usage_limit = Arc::new(StaticUsageLimit::default());
    assert_eq!(granted(&reload(&mut rig, &config)), [waiting]);
}

#[test]
fn shorter_budgets_hold_for_what_waits() {
    let mut config = plain();
    let mut rig = Rig::new(config.clone(), &[0]);
    let ticket = rig.queue(ask("a", 0));
    config.budgets = budgets(5, 5);
    reload(&mut rig, &config);
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(5)));
    rig.at_millis(7_000);
    config.budgets = budgets(60, 60);
    assert_eq!(dropped(&reload(&mut rig, &config))[0].0, ticket, "time comes before the signal");
}

#[test]
fn bands_that_are_no_longer_configured_end_when_empty() {
    let mut config = plain();
    config.bands.insert(Priority(9), config.template.clone());
    let mut rig = Rig::new(config.clone(), &[1]);
    config.bands.clear();
    reload(&mut rig, &config);
    assert_eq!(rig.stats().bands.len(), 1);
}

#[test]
fn whoever_waits_already_can_be_displaced_once_that_is_allowed() {
    let mut config = plain();
    config.global = GlobalLimits { requests: Some(2), bytes: None };
    let mut rig = Rig::new(config.clone(), &[0]);
    rig.queue(ask("a", -1));
    let newest = rig.queue(ask("a", -1));
    config.when_full = WhenFull::Displace;
    reload(&mut rig, &config);
    assert_eq!(dropped(&rig.submit(ask("a", 0)).1), [(newest, Outcome::RejectedCapacity)]);
    config.when_full = WhenFull::Reject;
    reload(&mut rig, &config);
    let (newcomer, effects) = rig.submit(ask("a", 5));
    assert_eq!(dropped(&effects), [(newcomer, Outcome::RejectedCapacity)]);
}
