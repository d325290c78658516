//! Who has to go where it depends on the endpoint: tokens, stages, hints, parked tickets.

use std::sync::Arc;

use sluice_core::Priority;
use sluice_flow::{Ask, Booking, Config, EndpointKey, EvictionConfig, Park, Signal, Stage, Stages, Start, Ticket};
use sluice_plugins::flow::{ConcurrencyDetector, ConcurrencyMode, Fcfs, Weighted, Weights};
use smallvec::smallvec;

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, band, evicting, granted, hint, plain, pool, revoked, with_ceilings};

/// At most 100 tokens per endpoint, and in hybrid mode 4 requests.
fn measuring(mode: ConcurrencyMode) -> Config {
    with_detector(ConcurrencyDetector { mode, ..ConcurrencyDetector::default() })
}

/// The same where no endpoint counts for more tokens than that.
fn measuring_capped(mode: ConcurrencyMode) -> Config {
    with_detector(ConcurrencyDetector { mode, cap_endpoint_tokens: true, ..ConcurrencyDetector::default() })
}

fn with_detector(detector: ConcurrencyDetector) -> Config {
    let mut config = plain();
    config.detector = Arc::new(ConcurrencyDetector { max_token_concurrency: 100, max_concurrency: 4, ..detector });
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
    let mut rig = Rig::new(measuring_capped(ConcurrencyMode::Tokens), &[1]);
    let running = [99, 150].map(|tokens| rig.run_on(0, sized(tokens, -1)));
    // It counts for 100, and for 99 without the newest.
    assert_eq!(revoked(&rig.submit(sized(10, 0)).1), [running[1], running[0]]);
    let mut rig = Rig::new(measuring_capped(ConcurrencyMode::Tokens), &[1]);
    let running = [99, 150].map(|tokens| rig.run_on(0, sized(tokens, -1)));
    assert_eq!(revoked(&rig.submit(sized(1, 0)).1), [running[1]]);
}

#[test]
fn nobody_is_revoked_on_an_endpoint_that_stays_full_without_them() {
    let mut rig = Rig::new(measuring_capped(ConcurrencyMode::Tokens), &[1, 1]);
    let helps = rig.run_on(1, sized(100, -1));
    rig.run_on(0, sized(50, -1));
    rig.run_on(0, sized(5_000, 0));
    assert_eq!(revoked(&rig.submit(sized(10, 0)).1), [helps]);
    // And if there is nobody else, nobody at all.
    let mut rig = Rig::new(measuring_capped(ConcurrencyMode::Tokens), &[1]);
    rig.run_on(0, sized(50, -1));
    rig.run_on(0, sized(5_000, 0));
    assert_eq!(revoked(&rig.submit(sized(10, 0)).1), []);
}

#[test]
fn a_huge_prompt_that_waits_is_no_reason_to_clear_more_than_one_endpoint() {
    for config in [measuring(ConcurrencyMode::Tokens), measuring_capped(ConcurrencyMode::Tokens)] {
        let mut rig = Rig::new(config, &[1, 1, 1]);
        let running = [0, 1, 2].map(|endpoint| rig.run_on(endpoint, sized(100, -1)));
        assert_eq!(revoked(&rig.submit(sized(1_000_000, 0)).1), [running[2]]);
    }
}

#[test]
fn whoever_waits_counts_as_on_the_endpoint_that_takes_it_most_easily() {
    let mut rig = Rig::new(measuring(ConcurrencyMode::Hybrid), &[1, 8]);
    rig.run_on(0, sized(0, 0));
    let batch: Vec<_> = (0..8).map(|_| rig.run_on(1, sized(0, -1))).collect();
    // It may come to be an eighth of an endpoint or a whole one. If an eighth is not enough, more is asked for then.
    assert_eq!(revoked(&rig.submit(sized(0, 0)).1), [batch[7]]);
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

const RESERVE: &[(i32, f64)] = &[(100, 1.0), (0, 0.8), (-10, 0.6)];

/// 30 of 32 slots are in use: 14 by batch work on the first endpoint, which they fill, and 16 on the second. They came
/// when there was room for all. `before` is what happens just before that.
fn reserve_in_use(before: impl FnOnce(&mut Rig)) -> (Rig, Vec<Ticket>) {
    let mut rig = Rig::new(evicting(with_ceilings(RESERVE)), &[500, 500]);
    for _ in 0..10 {
        rig.run_on(1, ask("chat", 100));
    }
    let on_first = (0..14).map(|_| rig.run_on(0, ask("batch", -10))).collect();
    for _ in 0..6 {
        rig.run_on(1, ask("batch", -10));
    }
    before(&mut rig);
    assert_eq!(rig.observe(pool(&[14, 18])), []);
    (rig, on_first)
}

#[test]
fn a_consumed_reserve_is_restored_for_hinted_demand_too() {
    let (mut rig, on_first) = reserve_in_use(|_| ());
    let (chat, effects) = rig.submit(for_first());
    let victims: Vec<_> = on_first.iter().rev().take(5).copied().collect();
    assert_eq!(revoked(&effects), victims);
    let granted: Vec<_> = victims.into_iter().flat_map(|victim| granted(&rig.release(victim))).collect();
    assert_eq!(granted, [chat]);
    assert_eq!(rig.start(chat, 0), Ok(()));
}

#[test]
fn a_grant_that_will_be_given_back_for_want_of_a_place_costs_nobody_else_theirs() {
    let mut rig = Rig::new(evicting(plain()), &[2, 2]);
    for _ in 0..2 {
        rig.run_on(0, ask("others", 0));
    }
    let batch: [_; 2] = std::array::from_fn(|_| rig.run_on(1, ask("batch", -1)));
    let (stuck, effects) = rig.submit(for_first());
    assert_eq!(revoked(&effects), [], "nobody on its endpoint may go");
    let (free, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [batch[1]]);

    // Whoever has waited longer is let in first, and finds its endpoint full.
    let effects = rig.release(batch[1]);
    assert_eq!((granted(&effects), revoked(&effects)), (vec![stuck], vec![]));
    assert_eq!(rig.park(stuck, &[0]), Park::Waiting);
    let effects = rig.effects();
    assert_eq!((granted(&effects), revoked(&effects)), (vec![free], vec![]));
    assert_eq!(rig.start(free, 1), Ok(()));
}

#[test]
fn a_consumed_reserve_is_restored_for_a_parked_ticket_too() {
    let mut parks = None;
    let (mut rig, on_first) = reserve_in_use(|rig| parks = Some(rig.grant(ask("chat", 0))));
    let chat = parks.unwrap();
    assert_eq!(rig.park(chat, &[0]), Park::Waiting);
    let victims: Vec<_> = on_first.iter().rev().take(5).copied().collect();
    assert_eq!(revoked(&rig.effects()), victims);
    let granted: Vec<_> = victims.into_iter().flat_map(|victim| granted(&rig.release(victim))).collect();
    assert_eq!(granted, [chat]);
}

#[test]
fn nobody_goes_for_hinted_demand_if_all_on_its_endpoints_would_not_open_the_gate() {
    let (mut rig, on_first) = reserve_in_use(|_| ());
    on_first[4..].iter().for_each(|ticket| drop(rig.release(*ticket)));
    assert_eq!(rig.observe(pool(&[4, 18])), []);
    // 20 of 22 slots are in use, 18 are below the ceiling: with the four on the first endpoint, 16.
    let (_, effects) = rig.submit(for_first());
    assert_eq!(revoked(&effects), [on_first[3], on_first[2], on_first[1]]);
    let (mut rig, on_first) = reserve_in_use(|_| ());
    on_first[2..].iter().for_each(|ticket| drop(rig.release(*ticket)));
    assert_eq!(rig.observe(pool(&[2, 18])), []);
    // 18 of 20 are in use, and 16 below the ceiling: the two on the first endpoint are not enough.
    assert_eq!(revoked(&rig.submit(for_first()).1), []);
}

#[test]
fn hinted_demand_is_charged_its_tokens() {
    let mut rig = Rig::new(measuring(ConcurrencyMode::Tokens), &[1, 1]);
    let on_first: Vec<_> = [40, 30, 20, 10].map(|tokens| rig.run_on(0, sized(tokens, -1))).into();
    rig.run_on(1, sized(100, -1));
    assert_eq!(revoked(&rig.submit(Ask { tokens: 25, ..for_first() }).1), [on_first[3], on_first[2]]);
    assert_eq!(revoked(&rig.submit(Ask { tokens: 5, ..for_first() }).1), [], "30 are on their way out");
    assert_eq!(revoked(&rig.submit(Ask { tokens: 1, ..for_first() }).1), [on_first[1]]);
}

#[test]
fn a_hint_that_names_every_endpoint_is_none() {
    let mut rig = Rig::new(evicting(plain()), &[1, 1]);
    let [older, newer] = [1, 0].map(|endpoint| rig.run_on(endpoint, ask("batch", -1)));
    let anywhere = Ask { eligible: hint(&[0, 1]), ..ask("chat", 0) };
    assert_eq!(revoked(&rig.submit(anywhere.clone()).1), [newer]);
    assert_eq!(revoked(&rig.submit(anywhere).1), [older]);
    // One that did no longer does when there is another endpoint, and its demand goes with it.
    rig.observe(pool(&[1, 1, 1]));
    assert_eq!(rig.stats().leases.revoked, 2);
}

#[test]
fn whoever_has_the_fewest_endpoints_to_choose_from_has_the_first_choice() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let [on_second, on_first] = [1, 0].map(|endpoint| rig.run_on(endpoint, ask("batch", -1)));
    rig.queue(ask("chat", 0));
    rig.queue(for_first());
    let effects = rig.observe(Signal::Reload { config: Box::new(evicting(plain())), desired: None });
    assert_eq!(revoked(&effects), [on_first, on_second]);
}

#[test]
fn nobody_goes_from_an_endpoint_that_has_no_place_even_without_them() {
    let mut rig = Rig::new(evicting(plain()), &[3, 2]);
    let batch = rig.run_on(0, ask("batch", -1));
    rig.run_many(2, "chat", 0);
    rig.observe(pool(&[1, 2]));
    // Three of three slots are in use, and all of them on the first endpoint.
    assert_eq!(revoked(&rig.submit(for_first()).1), []);
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), [batch], "there are places elsewhere");
}

#[test]
fn a_tenant_at_its_limit_is_no_demand_with_a_hint_either() {
    let mut config = plain();
    config.bands.insert(Priority(0), band(Fcfs, Weighted::new(Weights::default(), Some(2))));
    let mut rig = Rig::new(evicting(config), &[5]);
    rig.observe(pool(&[4, 1]));
    rig.run_on(0, ask("chat", 0));
    let batch: Vec<_> = [0, 0, 0, 1].map(|endpoint| rig.run_on(endpoint, ask("batch", -1))).into();
    let revoked: Vec<_> = (0..3).flat_map(|_| revoked(&rig.submit(for_first()).1)).collect();
    assert_eq!(revoked, [batch[2]]);
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
    rig.observe(Signal::Reload { config: Box::new(plain()), desired: None });
    rig.queue(for_first());
    rig.queue(for_first());
    let effects = rig.observe(Signal::Reload { config: Box::new(evicting(plain())), desired: None });
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
    rig.observe(Signal::Reload { config: Box::new(evicting(plain())), desired: None });
    let (goes, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [elsewhere]);
    rig.engine.cancel(rig.now, goes);
    assert_eq!(revoked(&rig.submit(for_first()).1), [stays]);
}

#[test]
fn only_those_are_taken_who_relieve_what_is_still_short() {
    let mut rig = Rig::new(evicting(plain()), &[]);
    let members = |places| vec![member(0, 0, Stages::PREFILL, Some(2)), member(1, 1, Stages::DECODE, Some(places))];
    rig.observe(Signal::Pool(members(2)));
    let decodes = rig.run_on(1, ask("batch", -1));
    let prefills = [0, 1].map(|_| {
        let ticket = rig.grant(Ask { stages: Stages::PREFILL, required: Stages::PREFILL, ..ask("batch", -1) });
        let bookings = smallvec![Booking { endpoint: EndpointKey(0), stage: Stage::Prefill, tokens: 0 }];
        rig.engine.start(rig.now, ticket, Start { bookings, progress: None }).unwrap();
        ticket
    });
    rig.observe(Signal::Pool(members(1)));
    let both = Ask { stages: Stages::BOTH, required: Stages::BOTH, ..ask("chat", 0) };
    assert_eq!(revoked(&rig.submit(both).1), [prefills[1], decodes]);
}

#[test]
fn relief_where_nothing_is_short_saves_nobody_a_useless_end() {
    let mut rig = Rig::new(measuring_capped(ConcurrencyMode::Tokens), &[]);
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
