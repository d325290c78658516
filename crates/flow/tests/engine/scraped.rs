//! A gate that goes by what endpoints say of themselves.

use std::sync::Arc;

use sluice_core::{Scraped, Time};
use sluice_flow::{Effect, EndpointKey, Signal, Start, Ticket};
use sluice_plugins::flow::{Aggregation, StalenessPolicy, UtilizationDetector};

use crate::harness::rig::{Rig, ask, evicting, granted, plain, pool, revoked};

fn going_by_scrapes(detector: UtilizationDetector) -> sluice_flow::Config {
    let mut config = plain();
    config.detector = Arc::new(detector);
    config
}

fn rig(detector: UtilizationDetector, endpoints: usize) -> Rig {
    Rig::new(going_by_scrapes(detector), &vec![1; endpoints])
}

/// What an endpoint says at `began` ms.
fn sample(began: u64, waiting: u64, running: u64) -> Scraped {
    Scraped { waiting: Some(waiting), running: Some(running), ..Scraped::at(Time::from_millis(began)) }
}

/// Has the endpoint say this now, and starts there whoever is let in for it.
fn say(rig: &mut Rig, endpoint: u64, sample: &Scraped) -> Vec<Ticket> {
    rig.engine.scraped(rig.now, EndpointKey(endpoint), sample);
    start_on(rig, endpoint)
}

/// Starts on the endpoint whoever is granted, until nobody is.
fn start_on(rig: &mut Rig, endpoint: u64) -> Vec<Ticket> {
    let mut started = Vec::new();
    loop {
        let tickets = granted(&rig.effects());
        if tickets.is_empty() {
            return started;
        }
        for &ticket in &tickets {
            rig.engine.start(rig.now, ticket, Start::on(EndpointKey(endpoint), 0)).unwrap();
        }
        started.extend(tickets);
    }
}

/// Submits so many, and starts on the first endpoint those that are let in.
fn submit(rig: &mut Rig, count: usize) -> Vec<Ticket> {
    let mut started = Vec::new();
    for _ in 0..count {
        let (ticket, effects) = rig.submit(ask("a", 0));
        if granted(&effects) == [ticket] {
            rig.start(ticket, 0).unwrap();
            started.push(ticket);
        }
        started.extend(start_on(rig, 0));
    }
    started
}

#[test]
fn a_cold_endpoint_takes_as_many_as_may_wait_and_more_as_scrapes_and_ends_show_room() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    assert_eq!(say(&mut rig, 0, &sample(0, 0, 0)), []);
    let first = submit(rig.at_millis(1), 100);
    assert_eq!(first.len(), 5, "as many as it may have waiting");
    assert_eq!(say(rig.at_millis(5), 0, &sample(5, 0, 0)), [], "a scrape that does not show them yet");
    assert_eq!(say(rig.at_millis(15), 0, &sample(15, 0, 2)).len(), 2, "two of them run");
    assert_eq!(say(rig.at_millis(60), 0, &sample(60, 0, 7)).len(), 5);
    for ticket in &first[..3] {
        let effects = rig.at_millis(70).release(*ticket);
        assert_eq!(granted(&effects).len(), 1, "whoever is over makes room at once");
        rig.start(granted(&effects)[0], 0).unwrap();
    }
    assert_eq!(rig.stats().leases.started, 12);
}

#[test]
fn room_that_an_endpoint_has_shown_is_used_at_once() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    say(&mut rig, 0, &sample(0, 3, 128));
    assert_eq!(say(rig.at_millis(50), 0, &sample(50, 0, 28)), []);
    assert_eq!(submit(&mut rig, 200).len(), 100 + 5);
}

#[test]
fn a_limit_that_is_told_stands_for_what_would_be_learned() {
    let detector = UtilizationDetector { running_limit: Some(8), ..UtilizationDetector::default() };
    let mut rig = rig(detector, 1);
    say(&mut rig, 0, &sample(0, 0, 2));
    assert_eq!(submit(&mut rig, 200).len(), 6 + 5);
}

#[test]
fn a_limit_that_is_told_is_believed_even_where_a_queue_speaks_against_it() {
    let detector = UtilizationDetector { running_limit: Some(128), ..UtilizationDetector::default() };
    let mut rig = rig(detector, 1);
    say(&mut rig, 0, &sample(0, 100, 8));
    assert_eq!(submit(&mut rig, 200).len(), 20 + 5);
}

#[test]
fn no_room_hides_a_queue_that_an_endpoint_says_it_has() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    let page = |began, waiting, running| Scraped { kv_usage: Some(0.1), ..sample(began, waiting, running) };
    say(&mut rig, 0, &page(0, 0, 128));
    say(rig.at_millis(50), 0, &page(50, 100, 8));
    assert_eq!(submit(&mut rig, 1), []);
    assert_eq!(rig.stats().effective_saturation.to_bits(), 20.0_f64.to_bits());
}

#[test]
fn an_endpoint_that_has_a_queue_for_long_has_room_for_no_more_than_it_ran_then() {
    // When it is seen to have a queue, and what it takes when it has none any more and runs 20.
    for (queued, taken) in [(vec![50], 108 + 5), (vec![50, 149], 108 + 5), (vec![50, 150], 5), (vec![50, 90, 150], 5)] {
        let mut rig = rig(UtilizationDetector::default(), 1);
        say(&mut rig, 0, &sample(0, 0, 128));
        for &began in &queued {
            say(rig.at_millis(began), 0, &sample(began, 2, 20));
        }
        say(rig.at_millis(200), 0, &sample(200, 0, 20));
        assert_eq!(submit(&mut rig, 200).len(), taken, "{queued:?}");
    }
}

#[test]
fn queues_that_come_and_go_leave_room_as_it_was() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    say(&mut rig, 0, &sample(0, 0, 128));
    for began in (50..1000).step_by(100) {
        say(rig.at_millis(began), 0, &sample(began, 2, 20));
        say(rig.at_millis(began + 50), 0, &sample(began + 50, 0, 28));
    }
    assert_eq!(submit(&mut rig, 200).len(), 100 + 5);
}

#[test]
fn a_grant_is_in_doubt_until_a_scrape_shows_it_or_came_long_after_it() {
    for (began, shown, more) in [(9, 0, 0), (20, 0, 0), (9, 5, 5), (21, 0, 5), (21, 5, 5)] {
        let mut rig = rig(UtilizationDetector::default(), 1);
        say(&mut rig, 0, &sample(0, 0, 0));
        assert_eq!(submit(rig.at_millis(1), 100).len(), 5);
        let started = say(rig.at_millis(30), 0, &sample(began, 0, shown));
        assert_eq!(started.len(), more, "scraped at {began} ms, showing {shown}");
    }
}

#[test]
fn what_others_send_to_an_endpoint_does_not_hide_what_is_in_doubt() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    say(&mut rig, 0, &sample(0, 0, 40));
    assert_eq!(submit(rig.at_millis(1), 100).len(), 5);
    assert_eq!(say(rig.at_millis(10), 0, &sample(10, 0, 40)), [], "the same forty as before");
    assert_eq!(say(rig.at_millis(15), 0, &sample(15, 0, 43)).len(), 3);
}

#[test]
fn unstarted_leases_fill_room_and_then_the_queue() {
    let mut rig = rig(UtilizationDetector::default(), 2);
    for endpoint in 0..2 {
        say(&mut rig, endpoint, &sample(0, 1, 4));
        say(rig.at_millis(10), endpoint, &sample(10, 0, 1));
    }
    let let_in = (0..100).filter(|_| !granted(&rig.submit(ask("a", 0)).1).is_empty()).count();
    assert_eq!(let_in, 2 * 3 + 2 * 5);
}

#[test]
fn an_endpoint_is_scraped_before_its_time_only_where_the_estimate_alone_closes_the_gate() {
    let scrape = [Effect::Scrape { endpoint: EndpointKey(0) }];
    let mut rig = rig(UtilizationDetector::default(), 1);
    say(&mut rig, 0, &sample(0, 0, 0));
    assert_eq!(submit(rig.at_millis(1), 5).len(), 5);
    assert_eq!(rig.submit(ask("a", 0)).1, scrape);
    assert_eq!(rig.at_millis(3).submit(ask("a", 0)).1, [], "it was asked a moment ago");
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_millis(21)), "from when on a scrape shows all");
    assert_eq!(rig.at_millis(21).on_time(), scrape);
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_millis(26)), "should that one be lost");
    assert_eq!(say(rig.at_millis(22), 0, &sample(22, 5, 0)), [], "it is full by its own word");
    assert_eq!(rig.at_millis(26).on_time(), []);
    assert!(rig.engine.next_wakeup() > Some(Time::from_millis(200)));
}

#[test]
fn a_gate_closes_when_news_fails_to_come_and_says_so() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    say(&mut rig, 0, &sample(0, 0, 0));
    rig.grant(ask("a", 0));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_nanos(200_000_001)));
    let waiting = rig.at_millis(201).queue(ask("a", 0));
    assert_eq!(rig.stats().stale_endpoints, Some(1));
    assert_eq!(rig.at_millis(1_201).on_time(), [Effect::Stale { stale: 1, endpoints: 1 }]);
    assert_eq!(say(rig.at_millis(1_300), 0, &sample(1_290, 0, 0)), [waiting]);
    assert_eq!(rig.stats().stale_endpoints, Some(0));
}

#[test]
fn metrics_are_not_said_to_be_fresh_again_when_nobody_goes_by_them_any_more() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    let stale = [Effect::Stale { stale: 1, endpoints: 1 }];
    rig.at_millis(1).queue(ask("a", 0));
    assert_eq!(rig.at_millis(1_001).on_time(), stale);
    let reload = |config| Signal::Reload { config: Box::new(config), desired: None };
    assert_eq!(granted(&rig.at_millis(20_000).observe(reload(plain()))).len(), 1);
    assert_eq!(rig.at_millis(40_000).on_time(), []);
    rig.observe(reload(going_by_scrapes(UtilizationDetector::default())));
    assert_eq!(rig.at_millis(41_000).on_time(), stale);
}

#[test]
fn nothing_is_held_back_for_want_of_news_where_that_is_ignored() {
    let detector = UtilizationDetector { staleness_policy: StalenessPolicy::Ignore, ..UtilizationDetector::default() };
    let mut rig = rig(detector, 1);
    assert_eq!(submit(&mut rig, 100).len(), 100);
    say(rig.at_millis(50), 0, &sample(50, 90, 10));
    assert_eq!(submit(&mut rig, 1), []);
    assert_eq!(rig.at_millis(251).on_time().len(), 1);
}

#[test]
fn an_endpoint_that_comes_back_is_what_it_was() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    say(&mut rig, 0, &sample(0, 0, 0));
    let first = submit(rig.at_millis(1), 5);
    rig.observe(Signal::Pool(Vec::new()));
    rig.release(first[0]);
    rig.at_millis(10).observe(pool(&[1]));
    assert_eq!(submit(&mut rig, 5).len(), 1);
}

#[test]
fn a_detector_that_takes_over_knows_what_has_just_been_sent() {
    let mut rig = Rig::new(plain(), &[100]);
    rig.run_many(3, "a", 0);
    let Signal::Pool(members) = pool(&[100]) else { unreachable!("a pool") };
    members[0].endpoint.set_scraped(sample(0, 0, 0));
    rig.at_millis(10).observe(Signal::Pool(members));
    let config = Box::new(going_by_scrapes(UtilizationDetector::default()));
    rig.observe(Signal::Reload { config, desired: None });
    assert_eq!(submit(&mut rig, 5).len(), 5, "they are those of the millisecond in which it was scraped");
    assert_eq!(say(rig.at_millis(15), 0, &sample(15, 0, 0)), []);
}

#[test]
fn a_detector_with_other_thresholds_goes_on_with_what_was_learned_of_endpoints() {
    let mut rig = rig(UtilizationDetector::default(), 1);
    say(&mut rig, 0, &sample(0, 3, 128));
    let Signal::Pool(members) = pool(&[1]) else { unreachable!("a pool") };
    members[0].endpoint.set_scraped(sample(50, 0, 28));
    rig.at_millis(50).observe(Signal::Pool(members));
    let first = submit(rig.at_millis(60), 10);
    let detector = UtilizationDetector { queue_depth_threshold: 2, ..UtilizationDetector::default() };
    rig.observe(Signal::Reload { config: Box::new(going_by_scrapes(detector)), desired: None });
    assert_eq!(submit(&mut rig, 200).len(), 90 + 2, "it was seen to run 128, and runs 38");
    assert_eq!(granted(&rig.release(first[0])).len(), 1);
}

/// A pool that is full of sheddable work: 2 run and 5 wait.
fn full_of_batch(detector: UtilizationDetector) -> (Rig, Vec<Ticket>) {
    let mut rig = Rig::new(evicting(going_by_scrapes(detector)), &[1]);
    say(&mut rig, 0, &sample(0, 0, 0));
    let mut batch: Vec<_> = (0..2).map(|_| rig.run_on(0, ask("batch", -1))).collect();
    say(rig.at_millis(50), 0, &sample(50, 0, 2));
    batch.extend((0..5).map(|_| rig.run_on(0, ask("batch", -1))));
    say(rig.at_millis(150), 0, &sample(150, 5, 2));
    (rig, batch)
}

#[test]
fn a_victim_is_free_only_when_a_scrape_after_its_end_shows_it() {
    let (mut rig, batch) = full_of_batch(UtilizationDetector::default());
    let (chat, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [batch[6]], "one makes room for one");
    assert_eq!(rig.at_millis(160).on_time(), [], "its end is counted upon");
    assert_eq!(revoked(&rig.release(batch[6])), [], "it has ended, and nobody else has to go");
    assert_eq!(rig.stats().leases.revoked, 0);
    assert_eq!(say(rig.at_millis(165), 0, &sample(159, 5, 2)), [], "a scrape from before");
    assert_eq!(say(rig.at_millis(170), 0, &sample(161, 4, 2)), [chat]);
}

#[test]
fn nobody_is_revoked_for_want_of_news() {
    let (mut rig, _) = full_of_batch(UtilizationDetector::default());
    rig.at_millis(400).on_time();
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), []);
    assert_eq!(rig.stats().effective_saturation.to_bits(), 1.0_f64.to_bits());
}

#[test]
fn nobody_is_revoked_where_the_least_loaded_endpoint_counts() {
    let detector = UtilizationDetector { aggregation: Aggregation::Min, ..UtilizationDetector::default() };
    let (mut rig, _) = full_of_batch(detector);
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), []);
}

#[test]
fn a_full_cache_takes_as_many_victims_as_it_has_to() {
    let mut rig = Rig::new(evicting(going_by_scrapes(UtilizationDetector::default())), &[1]);
    say(&mut rig, 0, &Scraped { kv_usage: Some(0.0), ..sample(0, 0, 10) });
    let batch: Vec<_> = (0..5).map(|_| rig.run_on(0, ask("batch", -1))).collect();
    rig.at_millis(50);
    say(&mut rig, 0, &Scraped { kv_usage: Some(0.95), ..sample(50, 0, 10) });
    // Each of the ten holds a tenth of 0.95; the gate is open below 0.8.
    let (chat, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [batch[4], batch[3]]);
    rig.at_millis(60).release(batch[4]);
    rig.release(batch[3]);
    assert_eq!(say(rig.at_millis(70), 0, &Scraped { kv_usage: Some(0.76), ..sample(65, 0, 8) }), [chat]);
}
