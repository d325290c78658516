//! Another configuration.

use std::sync::Arc;

use sluice_core::{Priority, Time};
use sluice_flow::{
    Ask, Config, Effect, EvictionConfig, GlobalLimits, Outcome, Park, RevocationStats, Signal, Stages, TtlHeader,
    VictimOrder, WhenFull,
};
use sluice_plugins::flow::{
    ConcurrencyDetector, ConcurrencyMode, Edf, GlobalStrict, StaticUsageLimit, Weighted, Weights,
};

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, band, budgets, dropped, evicting, granted, hint, plain, revoked, with_ceilings};

fn reload(rig: &mut Rig, config: &Config) -> Vec<Effect> {
    rig.observe(Signal::Reload { config: Box::new(config.clone()), desired: None })
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

/// As [`plain`], ordered by deadline.
fn by_deadline() -> Config {
    let mut config = plain();
    config.template.ordering = band(Edf, GlobalStrict).ordering;
    config
}

fn within_seconds(seconds: u64, ask: Ask) -> Ask {
    Ask { ttl: TtlHeader::Within(std::time::Duration::from_secs(seconds)), ..ask }
}

#[test]
fn bands_where_somebody_waits_are_named_when_their_order_changes() {
    let mut rig = Rig::new(plain(), &[0]);
    for priority in [5, 5, -1] {
        rig.queue(ask("a", priority));
    }
    let reordered = |priority, waiting| Effect::Reordered { priority: Priority(priority), waiting };
    assert_eq!(reload(&mut rig, &by_deadline()), [reordered(5, 2), reordered(-1, 1)]);
    let same = by_deadline();
    assert_eq!(reload(&mut rig, &same), [reordered(5, 2), reordered(-1, 1)], "another object, another policy");
    assert_eq!(reload(&mut rig, &same), []);
}

#[test]
fn whoever_waits_for_room_on_an_endpoint_is_ordered_anew_too() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let running = rig.run_on(0, ask("a", 0));
    let parked: Vec<_> = [20, 5, 10]
        .into_iter()
        .map(|seconds| {
            let ticket = rig.grant(within_seconds(seconds, Ask { eligible: hint(&[0]), ..ask("a", 0) }));
            assert!(matches!(rig.park(ticket, &[0]), Park::Waiting));
            ticket
        })
        .collect();
    reload(&mut rig, &by_deadline());
    let mut next = running;
    for expected in [parked[1], parked[2], parked[0]] {
        assert_eq!(granted(&rig.release(next)), [expected]);
        rig.start(expected, 0).unwrap();
        next = expected;
    }
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
fn the_same_weighted_fairness_keeps_what_each_tenant_has_had() {
    let mut config = plain();
    let weights = Weights::new(1.0, [("a".to_owned(), 2.0)], []).unwrap();
    config.template.fairness = Arc::new(Weighted::new(weights, None));
    let turns = |reloads: bool| {
        let mut rig = Rig::new(config.clone(), &[1]);
        let mut running = rig.run_on(0, ask("x", 5));
        let waiting: Vec<_> =
            ["a", "a", "a", "a", "b", "b"].map(|tenant| rig.queue(Ask { tokens: 10, ..ask(tenant, 0) })).into();
        let mut turns = Vec::new();
        for _ in &waiting {
            let next = granted(&rig.release(running));
            running = next[0];
            turns.extend(waiting.iter().position(|ticket| *ticket == running));
            rig.start(running, 0).unwrap();
            if reloads {
                reload(&mut rig, &config);
            }
        }
        turns
    };
    assert_eq!(turns(true), turns(false));
}

#[test]
fn a_band_may_be_named_by_the_configuration_first_and_by_an_objective_then() {
    let mut config = plain();
    config.bands.insert(Priority(9), config.template.clone());
    let mut rig = Rig::new(config.clone(), &[1]);
    let running = rig.run_on(0, ask("a", 9));
    rig.release(running);
    // Nobody is there now: all that is left of the band is that it is named.
    config.bands.clear();
    rig.observe(Signal::Reload { config: Box::new(config), desired: Some([Priority(9)].into()) });
    let priorities: Vec<_> = rig.stats().bands.iter().map(|band| band.priority.0).collect();
    assert_eq!(priorities, [9, 0]);
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
fn smaller_limits_over_all_bands_and_fewer_flows_drop_nobody() {
    let mut config = plain();
    let mut rig = Rig::new(config.clone(), &[0]);
    for tenant in ["a", "b", "c"] {
        rig.queue(ask(tenant, 0));
    }
    config.global = GlobalLimits { requests: Some(1), bytes: None };
    config.max_flows_per_band = 1;
    assert_eq!(reload(&mut rig, &config), []);
    let stats = rig.stats();
    assert_eq!((stats.waiting.requests, stats.bands[0].flows.len()), (3, 3));
    assert_eq!(dropped(&rig.submit(ask("a", 0)).1).len(), 1);
    config.global = GlobalLimits::default();
    reload(&mut rig, &config);
    rig.queue(ask("d", 0));
    let tenants: Vec<_> = rig.stats().bands[0].flows.iter().map(|flow| flow.tenant.to_string()).collect();
    assert!(!tenants.contains(&"d".to_owned()) && tenants.contains(&"other".to_owned()), "{tenants:?}");
}

/// With `limit` requests per endpoint.
fn limited(limit: u64) -> Config {
    let detector = ConcurrencyDetector { max_concurrency: limit, ..ConcurrencyDetector::default() };
    Config { detector: Arc::new(detector), ..evicting(plain()) }
}

#[test]
fn a_limit_below_what_runs_revokes_nobody_and_grants_nothing_until_it_fits() {
    let mut rig = Rig::new(limited(4), &[]);
    rig.observe(Signal::Pool(vec![member(0, 0, Stages::DECODE, None)]));
    let running = rig.run_many(4, "batch", -10);
    assert_eq!(reload(&mut rig, &limited(2)), []);
    assert_eq!(rig.on_time(), []);
    // Nor may the same kind of work push others out.
    let waiting = rig.queue(ask("batch", -10));
    for ticket in &running[..2] {
        assert_eq!(rig.release(*ticket), []);
    }
    assert_eq!(granted(&rig.release(running[2])), [waiting]);
    assert_eq!(rig.stats().revocations, RevocationStats::default());
}

#[test]
fn a_ceiling_below_what_runs_revokes_nobody() {
    let mut config = evicting(with_ceilings(&[(0, 1.0), (-10, 1.0)]));
    let mut rig = Rig::new(config.clone(), &[4]);
    rig.run_many(4, "batch", -10);
    config.usage_limit = with_ceilings(&[(0, 0.5), (-10, 0.25)]).usage_limit;
    assert_eq!(reload(&mut rig, &config), []);
    assert_eq!(rig.on_time(), []);
    // Only somebody who waits is a reason.
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1).len(), 3, "one place, below the ceiling of 2");
}

#[test]
fn who_was_told_to_go_still_counts_when_eviction_is_switched_off() {
    let config = plain();
    let mut rig = Rig::new(evicting(config.clone()), &[2]);
    let batch = rig.run_many(2, "batch", -10);
    let (urgent, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [batch[1]]);
    assert_eq!(reload(&mut rig, &config), []);
    assert_eq!(rig.stats().leases.revoked, 1);
    rig.queue(ask("chat", 0));
    assert_eq!(granted(&rig.release(batch[1])), [urgent]);
    let stats = rig.stats();
    assert_eq!((stats.leases.revoked, stats.revocations.confirmed, stats.revocations.outstanding), (0, 1, 0));
}

#[test]
fn the_victim_order_and_the_number_at_a_time_are_those_of_the_new_configuration() {
    let mut config = evicting(plain());
    let mut rig = Rig::new(config.clone(), &[3]);
    let deadlines = [20, 40, 30];
    config.template.ordering = by_deadline().template.ordering;
    reload(&mut rig, &config);
    let batch: Vec<_> =
        deadlines.into_iter().map(|seconds| rig.run_on(0, within_seconds(seconds, ask("batch", -10)))).collect();
    config.eviction = Some(EvictionConfig {
        victim_order: VictimOrder::MostSlack,
        max_in_flight_revocations: Some(1),
        ..EvictionConfig::default()
    });
    reload(&mut rig, &config);
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), [batch[1]]);
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), []);
    config.eviction = Some(EvictionConfig { max_in_flight_revocations: None, ..EvictionConfig::default() });
    assert_eq!(revoked(&reload(&mut rig, &config)), [batch[2]], "the newest of the others");
}

#[test]
fn after_the_end_of_admission_a_reload_opens_nothing() {
    let mut rig = Rig::new(plain(), &[4]);
    rig.observe(Signal::Drain);
    reload(&mut rig, &plain());
    assert!(rig.stats().closed);
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
