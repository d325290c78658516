//! A grant cannot be used: every endpoint the request may use is full.

use std::time::Duration;

use sluice_core::{Priority, Time};
use sluice_flow::{Ask, EndpointKey, Outcome, Park, Stages, StartError, TtlHeader, Verdict};
use sluice_plugins::flow::{Fcfs, Weighted, Weights};

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, band, dropped, granted, plain, pool, verdicts, with_ceilings};

/// Two endpoints of one place each; the first is taken, and a ticket waits for it.
fn parked() -> (Rig, sluice_flow::Ticket, sluice_flow::Ticket) {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let running = rig.run_on(0, ask("a", 0));
    let parked = rig.grant(ask("hinted", 0));
    assert_eq!(rig.start(parked, 0), Err(StartError::Full(EndpointKey(0))));
    assert_eq!(rig.park(parked, &[0]), Park::Waiting);
    assert_eq!(rig.effects(), []);
    (rig, running, parked)
}

#[test]
fn a_parked_ticket_holds_no_lease_and_blocks_nobody() {
    let (mut rig, _, _) = parked();
    let stats = rig.stats();
    assert_eq!((stats.leases.granted, stats.bands[0].parked, stats.waiting.requests), (0, 1, 1));
    rig.run_on(1, ask("hinted", 0));
}

#[test]
fn room_on_its_endpoint_is_kept_for_it() {
    let (mut rig, running, parked) = parked();
    let reserved = Some(EndpointKey(0));
    assert_eq!(verdicts(&rig.release(running)), [(parked, Verdict::Granted { reserved })]);
    let other = rig.grant(ask("a", 0));
    assert_eq!(rig.start(other, 0), Err(StartError::Full(EndpointKey(0))));
    assert_eq!(rig.start(parked, 0), Ok(()));
    assert_eq!(rig.start(other, 1), Ok(()));
}

#[test]
fn a_dropped_reservation_goes_to_the_next_parked_ticket() {
    let (mut rig, running, first) = parked();
    let second = rig.grant(ask("hinted", 0));
    assert_eq!(rig.park(second, &[0]), Park::Waiting);
    assert_eq!(granted(&rig.release(running)), [first]);
    rig.engine.cancel(rig.now, first);
    assert_eq!(granted(&rig.effects()), [second]);
}

#[test]
fn room_elsewhere_does_not_wake_it() {
    let (mut rig, _, _) = parked();
    let elsewhere = rig.run_on(1, ask("a", 0));
    assert_eq!(rig.release(elsewhere), []);
}

#[test]
fn a_place_that_came_free_in_between_is_found() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let running = rig.run_on(0, ask("a", 0));
    let ticket = rig.grant(ask("a", 0));
    assert_eq!(rig.start(ticket, 0), Err(StartError::Full(EndpointKey(0))));
    rig.release(running);
    assert_eq!(rig.park(ticket, &[0]), Park::RoomAppeared(EndpointKey(0)));
    assert_eq!(rig.start(ticket, 0), Ok(()));
}

#[test]
fn the_highest_band_then_the_first_in_line_is_offered_the_room() {
    let mut rig = Rig::new(plain(), &[1, 4]);
    let running = rig.run_on(0, ask("a", 0));
    let tickets: Vec<_> =
        [0, 0, 5].into_iter().zip(1..).map(|(priority, at)| rig.at_millis(at).grant(ask("a", priority))).collect();
    for &ticket in [1, 0, 2].map(|index| &tickets[index]) {
        assert_eq!(rig.park(ticket, &[0]), Park::Waiting);
    }
    let mut next = running;
    for expected in [tickets[2], tickets[0], tickets[1]] {
        assert_eq!(granted(&rig.release(next)), [expected]);
        rig.start(expected, 0).unwrap();
        next = expected;
    }
}

#[test]
fn a_parked_ticket_goes_before_the_queue_of_its_band_but_not_of_a_higher_one() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let first = rig.run_on(0, ask("a", 0));
    let hinted = rig.grant(ask("a", 0));
    assert_eq!(rig.park(hinted, &[0]), Park::Waiting);
    rig.run_on(1, ask("a", 0));
    let queued = rig.queue(ask("a", 0));
    let urgent = rig.queue(ask("a", 5));
    assert_eq!(granted(&rig.release(first)), [urgent]);
    rig.engine.cancel(rig.now, urgent);
    assert_eq!(granted(&rig.effects()), [hinted]);
    rig.engine.cancel(rig.now, hinted);
    assert_eq!(granted(&rig.effects()), [queued]);
}

#[test]
fn a_closed_gate_holds_a_parked_ticket_back_until_it_opens() {
    let mut rig = Rig::new(with_ceilings(&[(0, 1.0), (-1, 0.5)]), &[1, 3]);
    let running = rig.run_on(0, ask("a", 0));
    let hinted = rig.grant(ask("batch", -1));
    assert_eq!(rig.park(hinted, &[0]), Park::Waiting);
    let others: Vec<_> = (0..3).map(|_| rig.run_on(1, ask("a", 0))).collect();
    assert_eq!(rig.release(running), [], "three of four is above half");
    assert_eq!(rig.release(others[0]), [], "two of four is half");
    assert_eq!(granted(&rig.release(others[1])), [hinted]);
}

#[test]
fn a_raised_limit_or_a_new_endpoint_is_room() {
    let (mut rig, _, hinted) = parked();
    assert_eq!(granted(&rig.observe(pool(&[2, 1]))), [hinted]);

    let mut rig = Rig::new(plain(), &[1, 1]);
    rig.run_on(0, ask("a", 0));
    let hinted = rig.grant(ask("a", 0));
    assert_eq!(rig.park(hinted, &[0, 5]), Park::Waiting);
    let mut members = [0, 1].map(|number| member(number, number.into(), Stages::DECODE, Some(1))).to_vec();
    members.push(member(5, 5, Stages::DECODE, Some(1)));
    let reserved = Some(EndpointKey(5));
    assert_eq!(verdicts(&rig.observe(sluice_flow::Signal::Pool(members))), [(hinted, Verdict::Granted { reserved })]);
}

#[test]
fn parking_for_nobody_ends_the_ticket() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let ticket = rig.grant(ask("a", 0));
    assert_eq!(rig.park(ticket, &[9]), Park::Waiting);
    assert_eq!(dropped(&rig.effects()), [(ticket, Outcome::RejectedNoEndpoints)]);
}

#[test]
fn its_deadline_is_what_it_was() {
    let (mut rig, _, hinted) = parked();
    rig.at_millis(59_999);
    assert_eq!(rig.on_time(), []);
    rig.at_millis(60_000);
    assert_eq!(dropped(&rig.on_time()), [(hinted, Outcome::EvictedTtl)]);
}

#[test]
fn a_shedding_band_never_parks() {
    let mut config = plain();
    config.bands.insert(Priority(-1), sluice_flow::BandConfig { shed: true, ..config.template.clone() });
    let mut rig = Rig::new(config, &[1, 1]);
    rig.run_on(0, ask("a", 0));
    let ticket = rig.grant(ask("batch", -1));
    assert_eq!(rig.park(ticket, &[0]), Park::Waiting);
    assert_eq!(dropped(&rig.effects()), [(ticket, Outcome::RejectedCapacity)]);
}

#[test]
fn parking_takes_the_queue_charge_back_even_beyond_the_limit() {
    let mut config = plain();
    config.template.max_requests = 1;
    let mut rig = Rig::new(config, &[1, 1]);
    rig.run_on(0, ask("a", 0));
    let hinted = rig.grant(ask("a", 0));
    rig.queue(ask("a", 0));
    rig.observe(pool(&[1]));
    assert_eq!(rig.park(hinted, &[0]), Park::Waiting);
    assert_eq!(rig.stats().waiting.requests, 2);
    let (_, refused) = rig.submit(ask("a", 0));
    assert_eq!(dropped(&refused).len(), 1);
}

/// Tenants of band 0 and 10 may hold one lease at a time; the first two endpoints have one place each, both taken.
fn one_lease_each() -> (Rig, [sluice_flow::Ticket; 2]) {
    let mut config = plain();
    for priority in [0, 10] {
        let one = band(Fcfs, Weighted::new(Weights::default(), Some(1)));
        config.bands.insert(Priority(priority), one);
    }
    let mut rig = Rig::new(config, &[1, 1, 8]);
    let running = [(0, 1), (1, 2)].map(|(endpoint, priority)| rig.run_on(endpoint, ask("runs", priority)));
    (rig, running)
}

fn park_on(rig: &mut Rig, endpoint: u8, tenant: &str, priority: i32) -> sluice_flow::Ticket {
    let ticket = rig.grant(ask(tenant, priority));
    assert_eq!(rig.park(ticket, &[endpoint]), Park::Waiting);
    assert_eq!(rig.effects(), []);
    ticket
}

#[test]
fn a_tenant_at_its_limit_keeps_nobody_behind_it_waiting() {
    // On the same endpoint as well as on another one.
    for endpoint in [0, 1] {
        let (mut rig, running) = one_lease_each();
        park_on(&mut rig, 0, "limited", 10);
        let behind = park_on(&mut rig, endpoint, "other", 0);
        rig.run_on(2, ask("limited", 10));
        assert_eq!(granted(&rig.release(running[0])).len() + granted(&rig.release(running[1])).len(), 1);
        assert_eq!(rig.start(behind, endpoint.into()), Ok(()));
    }
}

#[test]
fn the_first_goes_first_though_one_behind_a_tenant_at_its_limit_was_found_before() {
    let (mut rig, _) = one_lease_each();
    park_on(&mut rig, 0, "limited", 0);
    let second = park_on(&mut rig, 1, "b", 0);
    let third = park_on(&mut rig, 0, "c", 0);
    rig.run_on(2, ask("limited", 0));
    assert_eq!(granted(&rig.observe(pool(&[2, 2, 8]))), [second, third]);
}

#[test]
fn whoever_parks_with_no_time_left_that_a_timer_can_tell_is_over() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let ttl = TtlHeader::Within(Duration::from_millis(10));
    rig.run_on(0, ask("a", 0));
    let late = rig.grant(Ask { ttl, ..ask("a", 0) });
    rig.now = Time::from_nanos(9_000_001);
    assert_eq!(rig.park(late, &[0]), Park::Waiting);
    assert_eq!(dropped(&rig.effects()), [(late, Outcome::EvictedTtl)]);
}
