//! Whoever waited has gone.

use sluice_core::Priority;
use sluice_flow::{Outcome, Park};

use crate::harness::rig::{Rig, ask, granted, plain};

#[test]
fn a_cancelled_request_leaves_the_queue_at_once_and_without_a_word() {
    let mut rig = Rig::new(plain(), &[1]);
    let running = rig.run_on(0, ask("a", 0));
    let first = rig.queue(ask("a", 0));
    let second = rig.queue(ask("a", 0));
    rig.engine.cancel(rig.now, first);
    assert_eq!(rig.effects(), []);
    assert_eq!(rig.stats().waiting.requests, 1);
    assert_eq!(granted(&rig.release(running)), [second]);
}

#[test]
fn cancelling_a_grant_gives_the_lease_to_the_next() {
    let mut rig = Rig::new(plain(), &[1]);
    let first = rig.grant(ask("a", 0));
    let second = rig.queue(ask("a", 0));
    rig.engine.cancel(rig.now, first);
    assert_eq!(granted(&rig.effects()), [second]);
}

#[test]
fn cancelling_a_started_request_frees_its_place() {
    let mut rig = Rig::new(plain(), &[1]);
    let first = rig.run_on(0, ask("a", 0));
    let second = rig.queue(ask("a", 0));
    rig.engine.cancel(rig.now, first);
    assert_eq!(granted(&rig.effects()), [second]);
    rig.start(second, 0).unwrap();
}

#[test]
fn a_cancelled_parked_request_is_gone() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let running = rig.run_on(0, ask("a", 0));
    let parked = rig.grant(ask("a", 0));
    assert_eq!(rig.park(parked, &[0]), Park::Waiting);
    rig.engine.cancel(rig.now, parked);
    assert_eq!(rig.release(running), []);
    assert_eq!(rig.stats().waiting.requests, 0);
}

#[test]
fn cancelling_twice_does_nothing_more() {
    let mut rig = Rig::new(plain(), &[1]);
    rig.run_on(0, ask("a", 0));
    let waiting = rig.queue(ask("a", 0));
    rig.engine.cancel(rig.now, waiting);
    rig.engine.cancel(rig.now, waiting);
    let totals = rig.stats().totals[&Priority(0)];
    assert_eq!(totals.outcome(Outcome::EvictedContextCancelled), 1);
    assert_eq!(rig.stats().waiting.requests, 0);
}

#[test]
fn totals_return_to_zero_whatever_order_things_end_in() {
    let mut rig = Rig::new(plain(), &[1]);
    for round in 0_u64..10_000 {
        rig.at_millis(round * 100_000);
        let running = rig.grant(ask("a", 0));
        let waiting = rig.queue(sluice_flow::Ask { bytes: 10, ..ask("a", 0) });
        rig.at_millis(round * 100_000 + 60_000);
        rig.on_time();
        rig.engine.cancel(rig.now, waiting);
        rig.release(running);
    }
    let stats = rig.stats();
    assert_eq!((stats.waiting.requests, stats.waiting.bytes, stats.leases.granted), (0, 0, 0));
}
