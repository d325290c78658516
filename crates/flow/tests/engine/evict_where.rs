//! Who has to go where it depends on the endpoint: tokens, stages, hints, parked tickets.

use std::sync::Arc;

use sluice_flow::{Ask, Booking, Config, EndpointKey, EvictionConfig, Park, Signal, Stage, Stages, Start, Ticket};
use sluice_plugins::flow::{ConcurrencyDetector, ConcurrencyMode};
use smallvec::smallvec;

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, evicting, granted, hint, plain, revoked};

/// At most 100 tokens per endpoint, and in hybrid mode 4 requests.
fn measuring(mode: ConcurrencyMode) -> Config {
    let mut config = plain();
    config.detector = Arc::new(ConcurrencyDetector {
        mode,
        max_token_concurrency: 100,
        max_concurrency: 4,
        ..ConcurrencyDetector::default()
    });
    evicting(config)
}

fn sized(tokens: u64, priority: i32) -> Ask {
    Ask { tokens, ..ask("a", priority) }
}

#[test]
fn tokens_take_the_shortest_prefix_that_covers_the_need() {
    let mut rig = Rig::new(measuring(ConcurrencyMode::Tokens), &[1]);
    let running: Vec<_> = [40, 30, 20, 10].map(|tokens| rig.run_on(0, sized(tokens, -1))).into();
    // 100 in flight and 25 to come: the two newest free 30.
    assert_eq!(revoked(&rig.submit(sized(25, 0)).1), [running[3], running[2]]);
}

#[test]
fn what_victims_free_is_what_their_endpoint_loses_and_not_what_they_weigh_alone() {
    let mut rig = Rig::new(measuring(ConcurrencyMode::Hybrid), &[4]);
    let running: Vec<_> = [0, 0, 0, 90].map(|tokens| rig.run_on(0, sized(tokens, -1))).into();
    // The newest is 0.9 by itself. Its end leaves three of four places taken, so that two have to go for two.
    rig.submit(sized(0, 0));
    rig.submit(sized(0, 0));
    let revoked_in_all = rig.stats().leases.revoked;
    assert_eq!(revoked_in_all, 2);
    assert_eq!(granted(&rig.release(running[3])).len(), 1);
    assert_eq!(granted(&rig.release(running[2])).len(), 1);
}

#[test]
fn an_endpoint_loaded_over_its_limit_frees_only_what_is_below_it() {
    let mut rig = Rig::new(measuring(ConcurrencyMode::Tokens), &[1]);
    let running = [99, 150].map(|tokens| rig.run_on(0, sized(tokens, -1)));
    // It counts for 100, and for 99 without the newest.
    assert_eq!(revoked(&rig.submit(sized(10, 0)).1), [running[1], running[0]]);
    let mut rig = Rig::new(measuring(ConcurrencyMode::Tokens), &[1]);
    let running = [99, 150].map(|tokens| rig.run_on(0, sized(tokens, -1)));
    assert_eq!(revoked(&rig.submit(sized(1, 0)).1), [running[1]]);
}

#[test]
fn nobody_is_revoked_on_an_endpoint_that_stays_full_without_them() {
    let mut rig = Rig::new(measuring(ConcurrencyMode::Tokens), &[1, 1]);
    let helps = rig.run_on(1, sized(100, -1));
    rig.run_on(0, sized(50, -1));
    rig.run_on(0, sized(5_000, 0));
    assert_eq!(revoked(&rig.submit(sized(10, 0)).1), [helps]);
    // And if there is nobody else, nobody at all.
    let mut rig = Rig::new(measuring(ConcurrencyMode::Tokens), &[1]);
    rig.run_on(0, sized(50, -1));
    rig.run_on(0, sized(5_000, 0));
    assert_eq!(revoked(&rig.submit(sized(10, 0)).1), []);
}

#[test]
fn a_huge_prompt_that_waits_is_no_reason_to_clear_more_than_one_endpoint() {
    let mut rig = Rig::new(measuring(ConcurrencyMode::Tokens), &[1, 1, 1]);
    let running = [0, 1, 2].map(|endpoint| rig.run_on(endpoint, sized(100, -1)));
    assert_eq!(revoked(&rig.submit(sized(1_000_000, 0)).1), [running[2]]);
}

#[test]
fn of_hinted_demand_what_has_not_gone_stays() {
    let mut config = plain();
    config.eviction = Some(EvictionConfig { max_in_flight_revocations: Some(1), ..EvictionConfig::default() });
    let mut rig = Rig::new(config, &[2, 1]);
    let batch = [0, 0, 1].map(|endpoint| rig.run_on(endpoint, ask("batch", -1)));
    let hinted = || Ask { eligible: hint(&[0]), ..ask("chat", 0) };
    let (goes, effects) = rig.submit(hinted());
    assert_eq!(revoked(&effects), [batch[1]]);
    rig.queue(hinted());
    rig.engine.cancel(rig.now, goes);
    rig.at_millis(1_000);
    assert_eq!(revoked(&rig.on_time()), [batch[0]]);
}

#[test]
fn hinted_demand_takes_victims_on_its_endpoints_only() {
    let mut rig = Rig::new(evicting(plain()), &[1, 1]);
    let on_first = rig.run_on(0, ask("batch", -10));
    rig.run_on(1, ask("batch", -10));
    let (chat, effects) = rig.submit(Ask { eligible: hint(&[0]), ..ask("chat", 0) });
    assert_eq!(revoked(&effects), [on_first]);
    assert_eq!(granted(&rig.release(on_first)), [chat]);
}

/// Two run on the first of two endpoints, and one on the second is about to end though nothing waits for its place.
fn one_about_to_end(config: Config) -> (Rig, [Ticket; 3]) {
    let mut rig = Rig::new(config, &[2, 1]);
    let running = [(0, -1), (0, -1), (1, -1)].map(|(endpoint, priority)| rig.run_on(endpoint, ask("a", priority)));
    let (goes, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [running[2]]);
    rig.engine.cancel(rig.now, goes);
    (rig, running)
}

fn for_first() -> Ask {
    Ask { eligible: hint(&[0]), ..ask("chat", 0) }
}

#[test]
fn a_place_that_comes_free_is_counted_for_one_of_those_who_wait_for_it() {
    let (mut rig, running) = one_about_to_end(evicting(plain()));
    assert_eq!(revoked(&rig.submit(for_first()).1), [running[1]]);
    assert_eq!(revoked(&rig.submit(for_first()).1), [running[0]]);
    assert_eq!(revoked(&rig.submit(for_first()).1), []);
    // And so it is when they are counted together.
    let (mut rig, running) = one_about_to_end(evicting(plain()));
    rig.observe(Signal::Reload(Box::new(plain())));
    rig.queue(for_first());
    rig.queue(for_first());
    let effects = rig.observe(Signal::Reload(Box::new(evicting(plain()))));
    assert_eq!(revoked(&effects), [running[1], running[0]]);
}

#[test]
fn whoever_is_promised_a_place_counts_in_the_load() {
    let mut rig = Rig::new(evicting(plain()), &[3, 1]);
    let [on_first, ends] = [0, 1].map(|endpoint| rig.run_on(endpoint, ask("batch", -1)));
    // Two that have not started fill the pool; the first endpoint has room for two.
    rig.grant(ask("chat", 0));
    rig.grant(ask("chat", 0));
    let (goes, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [ends]);
    rig.engine.cancel(rig.now, goes);
    assert_eq!(revoked(&rig.submit(for_first()).1), [], "it can have the place that comes free");
    assert_eq!(revoked(&rig.submit(for_first()).1), [on_first]);
}

#[test]
fn a_place_that_is_kept_for_another_is_not_free() {
    let mut rig = Rig::new(plain(), &[2, 1]);
    let [leaves, stays] = [0, -1].map(|priority| rig.run_on(0, ask("a", priority)));
    let parks = rig.grant(ask("chat", 0));
    assert_eq!(rig.park(parks, &[0]), Park::Waiting);
    let elsewhere = rig.run_on(1, ask("batch", -1));
    assert_eq!(granted(&rig.release(leaves)), [parks]);
    rig.observe(Signal::Reload(Box::new(evicting(plain()))));
    let (goes, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [elsewhere]);
    rig.engine.cancel(rig.now, goes);
    assert_eq!(revoked(&rig.submit(for_first()).1), [stays]);
}

#[test]
fn only_those_are_taken_who_relieve_what_is_still_short() {
    let mut rig = Rig::new(evicting(plain()), &[]);
    let pool = |places| vec![member(0, 0, Stages::PREFILL, Some(2)), member(1, 1, Stages::DECODE, Some(places))];
    rig.observe(Signal::Pool(pool(2)));
    let decodes = rig.run_on(1, ask("batch", -1));
    let prefills = [0, 1].map(|_| {
        let ticket = rig.grant(Ask { stages: Stages::PREFILL, required: Stages::PREFILL, ..ask("batch", -1) });
        let bookings = smallvec![Booking { endpoint: EndpointKey(0), stage: Stage::Prefill, tokens: 0 }];
        rig.engine.start(rig.now, ticket, Start { bookings, progress: None }).unwrap();
        ticket
    });
    rig.observe(Signal::Pool(pool(1)));
    let both = Ask { stages: Stages::BOTH, required: Stages::BOTH, ..ask("chat", 0) };
    assert_eq!(revoked(&rig.submit(both).1), [prefills[1], decodes]);
}

#[test]
fn relief_where_nothing_is_short_saves_nobody_a_useless_end() {
    let mut rig = Rig::new(measuring(ConcurrencyMode::Tokens), &[]);
    let stages = [Stages::PREFILL, Stages::DECODE, Stages::DECODE];
    let members = stages.into_iter().zip(0_u8..).map(|(stages, n)| member(n, n.into(), stages, None));
    rig.observe(Signal::Pool(members.collect()));
    let booking = |endpoint, stage, tokens| Booking { endpoint: EndpointKey(endpoint), stage, tokens };
    let helps = rig.run_on(2, sized(100, -1));
    let both = rig.grant(Ask { stages: Stages::BOTH, ..sized(10, -1) });
    let bookings = smallvec![booking(1, Stage::Decode, 50), booking(0, Stage::Prefill, 10)];
    rig.engine.start(rig.now, both, Start { bookings, progress: None }).unwrap();
    rig.run_on(1, sized(5_000, 0));
    assert_eq!(revoked(&rig.submit(sized(10, 0)).1), [helps]);
}

#[test]
fn a_parked_ticket_behind_a_closed_gate_is_demand_on_its_endpoints() {
    let mut rig = Rig::new(evicting(plain()), &[1, 1]);
    let on_first = rig.run_on(0, ask("batch", -10));
    let parked = rig.grant(ask("chat", 0));
    assert_eq!(rig.park(parked, &[0]), Park::Waiting);
    assert_eq!(rig.effects(), [], "the gate is open: room will come by itself");
    let (_, effects) = rig.submit(ask("batch", -10));
    assert_eq!(revoked(&effects), [on_first]);
    assert_eq!(granted(&rig.release(on_first)), [parked]);
}

#[test]
fn a_victim_in_a_stage_that_is_not_short_is_passed_over() {
    let mut rig = Rig::new(evicting(plain()), &[]);
    rig.observe(Signal::Pool(vec![member(0, 0, Stages::PREFILL, Some(1)), member(1, 1, Stages::DECODE, Some(4))]));
    let booking = |endpoint, stage| Booking { endpoint: EndpointKey(endpoint), stage, tokens: 0 };
    let both = rig.grant(Ask { stages: Stages::BOTH, ..ask("batch", -10) });
    let bookings = smallvec![booking(1, Stage::Decode), booking(0, Stage::Prefill)];
    rig.engine.start(rig.now, both, Start { bookings, progress: None }).unwrap();
    let (_, effects) = rig.submit(Ask { stages: Stages::BOTH, ..ask("chat", 0) });
    assert_eq!(revoked(&effects), [both]);
    rig.release(both);

    // Decode work cannot relieve a full prefill.
    let mut rig = Rig::new(evicting(plain()), &[]);
    rig.observe(Signal::Pool(vec![member(0, 0, Stages::PREFILL, Some(1)), member(1, 1, Stages::DECODE, Some(4))]));
    rig.run_on(1, ask("batch", -10));
    rig.grant(Ask { stages: Stages::PREFILL, ..ask("chat", 0) });
    assert_eq!(revoked(&rig.submit(Ask { stages: Stages::BOTH, ..ask("chat", 0) }).1), []);
}
