//! Time passes.

use std::time::Duration;

use sluice_core::{Priority, Time};
use sluice_flow::{Ask, BandConfig, Outcome, TtlHeader};

use crate::harness::rig::{Rig, ask, budgets, dropped, granted, plain, pool};

fn within(millis: u64, priority: i32) -> Ask {
    Ask { ttl: TtlHeader::Within(Duration::from_millis(millis)), ..ask("a", priority) }
}

#[test]
fn a_request_ends_exactly_at_its_deadline() {
    let mut rig = Rig::new(plain(), &[0]);
    rig.at_millis(10);
    let ticket = rig.queue(within(500, 0));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_millis(510)));
    rig.now = Time::from_nanos(509_999_999);
    assert_eq!(rig.on_time(), []);
    rig.at_millis(510);
    assert_eq!(dropped(&rig.on_time()), [(ticket, Outcome::EvictedTtl)]);
    assert_eq!(rig.engine.next_wakeup(), None);
}

#[test]
fn a_header_only_shortens_the_budget() {
    let mut config = plain();
    config.budgets = budgets(2, 2);
    let mut rig = Rig::new(config, &[0]);
    rig.queue(within(60_000, 0));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(2)));
    rig.queue(within(1_000, 0));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(1)));
}

#[test]
fn the_deadline_of_the_stream_counts() {
    let mut rig = Rig::new(plain(), &[0]);
    rig.queue(Ask { stream_deadline: Some(Time::from_secs(3)), ..ask("a", 0) });
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(3)));
}

#[test]
fn a_band_has_its_own_budget_and_zero_means_none() {
    let mut config = plain();
    let five = BandConfig { request_ttl: Some(Duration::from_secs(5)), ..config.template.clone() };
    let forever = BandConfig {
        request_ttl: Some(Duration::ZERO),
        no_endpoint_request_ttl: Some(Duration::ZERO),
        ..config.template.clone()
    };
    config.bands.extend([(Priority(1), five), (Priority(2), forever)]);
    let mut rig = Rig::new(config, &[0]);
    rig.queue(ask("a", 2));
    assert_eq!(rig.engine.next_wakeup(), None);
    rig.queue(ask("a", 0));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(60)));
    rig.queue(ask("a", 1));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(5)));
}

#[test]
fn an_empty_pool_has_its_own_budget_and_answer() {
    let mut config = plain();
    config.budgets = budgets(1, 300);
    let mut rig = Rig::new(config, &[]);
    let ticket = rig.queue(ask("a", 0));
    rig.at_millis(299_999);
    assert_eq!(rig.on_time(), []);
    rig.at_millis(300_000);
    assert_eq!(dropped(&rig.on_time()), [(ticket, Outcome::EvictedNoEndpoints)]);
}

#[test]
fn each_regime_grants_a_budget_but_both_together_are_the_most() {
    let mut config = plain();
    config.budgets = budgets(10, 20);
    let mut rig = Rig::new(config, &[]);
    let ticket = rig.queue(ask("a", 0));
    rig.at_millis(19_000).observe(pool(&[0]));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(29)));
    rig.at_millis(28_000).observe(pool(&[]));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(30)));
    rig.at_millis(30_000);
    assert_eq!(dropped(&rig.on_time()), [(ticket, Outcome::EvictedNoEndpoints)]);
}

#[test]
fn an_overdue_request_is_never_granted_though_nobody_told_the_time() {
    let mut rig = Rig::new(plain(), &[1]);
    let running = rig.run_on(0, ask("a", 0));
    let overdue = rig.queue(within(100, 0));
    rig.at_millis(1_000);
    let effects = rig.release(running);
    assert_eq!(dropped(&effects), [(overdue, Outcome::EvictedTtl)]);
    assert_eq!(granted(&effects), []);
}

#[test]
fn requests_end_in_the_order_of_their_deadlines() {
    let mut rig = Rig::new(plain(), &[0]);
    let late = rig.queue(within(300, 0));
    let first = rig.queue(within(100, -1));
    let second = rig.queue(within(100, 5));
    rig.at_millis(400);
    let order: Vec<_> = dropped(&rig.on_time()).into_iter().map(|(ticket, _)| ticket).collect();
    assert_eq!(order, [first, second, late]);
}

#[test]
fn the_latest_end_of_a_wait_is_known_where_it_has_one() {
    let arrival = Time::from_secs(10);
    let ends = |saturation: u64, no_endpoint: u64, endpoints: &[u64], priority: i32| {
        let mut config = plain();
        config.budgets = budgets(saturation, no_endpoint);
        let five = BandConfig { request_ttl: Some(Duration::from_secs(5)), ..config.template.clone() };
        config.bands.insert(Priority(1), five);
        let mut rig = Rig::new(config, endpoints);
        rig.at_millis(10_000);
        let ends = rig.engine.wait_ends(Priority(priority), arrival);
        rig.queue(ask("a", priority));
        assert_eq!(rig.engine.wait_ends(Priority(priority), arrival), ends, "whether or not the band exists");
        ends.map(|ends| ends.saturating_since(arrival).as_secs())
    };
    assert_eq!(ends(60, 0, &[0], 0), Some(60));
    assert_eq!(ends(60, 0, &[0], 1), Some(5), "the band's own budget");
    assert_eq!(ends(60, 30, &[0], 7), Some(90), "the pool may become empty");
    assert_eq!(ends(0, 30, &[0], 0), None);
    assert_eq!(ends(0, 30, &[], 0), Some(30));
    assert_eq!(ends(0, 0, &[0], 0), None);
}
