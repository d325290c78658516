//! The gateway used another endpoint than the booked one.

use sluice_flow::{EndpointKey, EvictionConfig, Load, Start};

use crate::harness::rig::{Rig, ask, granted, plain, pool, revoked};

fn loads(rig: &Rig) -> [Load; 2] {
    let stats = rig.stats();
    [0, 1].map(|key| stats.endpoints[&EndpointKey(key)].load)
}

#[test]
fn the_load_moves_and_ends_where_it_is() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let ticket = rig.grant(ask("a", 0));
    rig.engine.start(rig.now, ticket, Start::on(EndpointKey(0), 10)).unwrap();
    rig.engine.rebook(rig.now, ticket, EndpointKey(1));
    assert_eq!(loads(&rig), [Load::default(), Load::one(10)]);
    rig.engine.rebook(rig.now, ticket, EndpointKey(1));
    assert_eq!(loads(&rig), [Load::default(), Load::one(10)]);
    rig.release(ticket);
    assert_eq!(loads(&rig), [Load::default(), Load::default()]);
}

#[test]
fn a_full_endpoint_takes_what_is_there_already_and_the_place_that_it_left_is_free() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let moved = rig.run_on(0, ask("a", 0));
    rig.run_on(1, ask("a", 0));
    let parked = rig.queue(ask("a", 0));
    rig.engine.rebook(rig.now, moved, EndpointKey(1));
    assert_eq!(loads(&rig).map(|load| load.requests), [0, 2]);
    assert_eq!(granted(&rig.effects()), [], "two run where two may run in all");
    assert_eq!(granted(&rig.release(moved)), [parked]);
}

#[test]
fn an_endpoint_that_left_and_a_request_that_did_not_start_change_nothing() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let ticket = rig.run_on(0, ask("a", 0));
    rig.engine.rebook(rig.now, ticket, EndpointKey(7));
    assert_eq!(loads(&rig).map(|load| load.requests), [1, 0]);
    let waiting = rig.grant(ask("a", 0));
    rig.engine.rebook(rig.now, waiting, EndpointKey(1));
    assert_eq!(loads(&rig).map(|load| load.requests), [1, 0]);
    assert_eq!(rig.stats().leases.granted, 1);

    // A load that stays behind on an endpoint that left is forgotten with the move.
    rig.observe(pool(&[]));
    rig.observe(pool(&[1, 1]));
    rig.engine.rebook(rig.now, ticket, EndpointKey(1));
    assert_eq!(loads(&rig).map(|load| load.requests), [0, 1]);
}

#[test]
fn one_that_is_about_to_end_is_about_to_end_there() {
    let mut config = plain();
    config.eviction = Some(EvictionConfig::default());
    let mut rig = Rig::new(config, &[2, 1]);
    let batch = [0, 0].map(|endpoint| rig.run_on(endpoint, ask("batch", -1)));
    rig.run_on(1, ask("chat", 0));
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), [batch[1]]);
    rig.engine.rebook(rig.now, batch[1], EndpointKey(1));
    assert_eq!(rig.on_time(), [], "its end is still counted upon");
    assert_eq!(granted(&rig.release(batch[1])).len(), 1);
}
