//! A process that takes over from another one goes by what endpoints say for a while: its own books are empty.

use std::time::Duration;

use sluice_core::{Scraped, Time};
use sluice_flow::{EndpointKey, Park, Signal, Stages, StartError};

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, evicting, granted, plain, revoked};

const STALE: Duration = Duration::from_secs(2);

fn sample(began: u64, running: u64, waiting: u64) -> Scraped {
    Scraped { waiting: Some(waiting), running: Some(running), ..Scraped::at(Time::from_millis(began)) }
}

/// Has the endpoint say now what it runs and has waiting.
fn say(rig: &mut Rig, endpoint: u64, running: u64, waiting: u64) {
    let now = rig.now.as_nanos() / 1_000_000;
    rig.engine.scraped(rig.now, EndpointKey(endpoint), &sample(now, running, waiting));
}

/// A new leader of endpoints with these limits.
fn successor(limits: &[u64]) -> Rig {
    let mut rig = Rig::new(plain(), limits);
    assert_eq!(rig.observe(Signal::Inherit { stale: STALE }), []);
    rig
}

/// As many as are let in now; each is started on the first endpoint.
fn fill(rig: &mut Rig) -> usize {
    let mut count = 0;
    loop {
        let (ticket, effects) = rig.submit(ask("a", 0));
        if granted(&effects) != [ticket] {
            rig.engine.cancel(rig.now, ticket);
            rig.effects();
            return count;
        }
        rig.start(ticket, 0).unwrap();
        count += 1;
    }
}

#[test]
fn what_endpoints_run_and_have_waiting_counts_as_in_flight_until_it_has_ended() {
    let mut rig = successor(&[32]);
    say(rig.at_millis(10), 0, 30, 2);
    assert_eq!(fill(&mut rig), 0);
    say(rig.at_millis(60), 0, 31, 0);
    assert_eq!(fill(&mut rig), 1);
    assert_eq!(fill(rig.at_millis(70)), 0, "what was let in since the scrape weighs on top of it");
    // Twenty of which one is its own.
    say(rig.at_millis(110), 0, 18, 2);
    assert_eq!(fill(&mut rig), 12);
}

#[test]
fn of_own_and_scraped_the_larger_one_counts() {
    for (own, running, waiting) in [(0, 0, 0), (5, 0, 0), (5, 3, 2), (5, 3, 4), (0, 0, 9), (7, 31, 40)] {
        let mut rig = successor(&[100]);
        for _ in 0..own {
            rig.run_on(0, ask("a", 0));
        }
        say(rig.at_millis(10), 0, running, waiting);
        let expected = own.max(running + waiting);
        let stats = rig.stats();
        let endpoint = stats.endpoints[&EndpointKey(0)];
        assert_eq!((endpoint.load.requests, endpoint.load.requests + endpoint.inherited), (own, expected));
        assert_eq!(fill(&mut rig) as u64, 100 - expected, "{own} {running} {waiting}");
    }
}

#[test]
fn each_endpoint_has_room_for_what_it_does_not_run_already() {
    let mut rig = successor(&[8, 8]);
    say(rig.at_millis(10), 0, 8, 0);
    let ticket = rig.grant(ask("a", 0));
    assert!(matches!(rig.start(ticket, 0), Err(StartError::Full(_))), "full by what it says");
    let limits: Vec<_> = rig.engine.booking_limits().map(|(_, limit)| limit.requests).collect();
    assert_eq!(limits, [0, 8]);
    assert!(rig.engine.limits_changed());
    assert!(!rig.engine.limits_changed(), "told once");

    assert_eq!(rig.park(ticket, &[0]), Park::Waiting);
    assert_eq!(rig.effects(), []);
    say(rig.at_millis(60), 0, 7, 0);
    assert_eq!(granted(&rig.effects()), [ticket], "whoever waits for room there gets it");
    rig.start(ticket, 0).unwrap();
}

#[test]
fn after_twice_the_staleness_only_its_own_requests_count() {
    let mut rig = successor(&[4]);
    say(rig.at_millis(10), 0, 4, 0);
    let waiting = rig.queue(ask("a", 0));
    say(rig.at_millis(3_999), 0, 4, 0);
    assert_eq!(rig.on_time(), []);
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(4)));
    assert_eq!(granted(&rig.at_millis(4_000).on_time()), [waiting]);
    assert!(rig.engine.limits_changed());
    say(rig.at_millis(4_010), 0, 4, 0);
    assert_eq!(rig.stats().endpoints[&EndpointKey(0)].inherited, 0);
}

#[test]
fn without_a_predecessor_nothing_is_inherited() {
    let mut rig = Rig::new(plain(), &[4]);
    say(rig.at_millis(10), 0, 4, 0);
    assert_eq!(fill(&mut rig), 4);
}

#[test]
fn what_was_said_before_counts_at_once_unless_it_is_stale() {
    for (began, expected) in [(1_000, 3), (7_999, 3), (8_000, 3), (8_001, 1), (9_990, 1)] {
        let mut rig = Rig::new(plain(), &[]);
        let member = member(0, 0, Stages::DECODE, Some(3));
        member.endpoint.set_scraped(sample(began, 2, 0));
        rig.at_millis(10_000).observe(Signal::Pool(vec![member]));
        rig.observe(Signal::Inherit { stale: STALE });
        assert_eq!(fill(&mut rig), expected, "{began}");
    }
}

#[test]
fn a_change_of_the_pool_forgets_nothing_of_those_that_stay() {
    let mut rig = Rig::new(plain(), &[]);
    let (first, second) = (member(0, 0, Stages::DECODE, Some(4)), member(1, 1, Stages::DECODE, Some(4)));
    rig.observe(Signal::Pool(vec![first.clone()]));
    rig.observe(Signal::Inherit { stale: STALE });
    say(rig.at_millis(10), 0, 4, 0);
    rig.observe(Signal::Pool(vec![first, second]));
    assert_eq!(rig.stats().endpoints[&EndpointKey(0)].inherited, 4);
    let ticket = rig.grant(ask("a", 0));
    rig.start(ticket, 1).unwrap();
}

#[test]
fn what_says_nothing_of_requests_changes_nothing_and_one_figure_is_enough() {
    let mut rig = successor(&[4]);
    let nothing = Scraped::at(Time::from_millis(10));
    rig.at_millis(10).engine.scraped(Time::from_millis(10), EndpointKey(0), &nothing);
    assert_eq!(rig.stats().endpoints[&EndpointKey(0)].inherited, 0);
    let waiting = Scraped { waiting: Some(3), ..Scraped::at(Time::from_millis(20)) };
    rig.at_millis(20).engine.scraped(Time::from_millis(20), EndpointKey(0), &waiting);
    assert_eq!(rig.stats().endpoints[&EndpointKey(0)].inherited, 3);
}

#[test]
fn nobody_is_evicted_where_only_a_predecessor_is_in_the_way() {
    let mut rig = Rig::new(evicting(plain()), &[4]);
    rig.observe(Signal::Inherit { stale: STALE });
    let batch = rig.run_on(0, ask("batch", -1));
    say(rig.at_millis(10), 0, 9, 0);
    let (_, effects) = rig.submit(ask("a", 5));
    assert_eq!(revoked(&effects), [], "the end of its one request would not open the gate");
    say(rig.at_millis(20), 0, 4, 0);
    assert_eq!(revoked(&rig.effects()), [batch]);
}
