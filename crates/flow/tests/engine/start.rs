//! A grant is used.

use sluice_flow::{Booking, EndpointKey, Load, Partition, Signal, Stage, Stages, Start, StartError};
use smallvec::smallvec;

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, granted, plain, pool};

fn split_pool() -> Signal {
    Signal::Pool(vec![member(0, 0, Stages::PREFILL, Some(2)), member(1, 1, Stages::DECODE, Some(2))])
}

fn on(endpoint: u64, stage: Stage, tokens: u64) -> Booking {
    Booking { endpoint: EndpointKey(endpoint), stage, tokens }
}

#[test]
fn a_full_endpoint_is_refused_and_the_grant_stays() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    rig.run_on(0, ask("a", 0));
    let ticket = rig.grant(ask("a", 0));
    assert_eq!(rig.start(ticket, 0), Err(StartError::Full(EndpointKey(0))));
    assert_eq!(rig.start(ticket, 1), Ok(()));
    assert_eq!(rig.start(ticket, 1), Err(StartError::NotGranted));
}

#[test]
fn an_endpoint_that_left_is_refused() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let ticket = rig.grant(ask("a", 0));
    rig.observe(pool(&[1]));
    assert_eq!(rig.start(ticket, 1), Err(StartError::Left(EndpointKey(1))));
    assert_eq!(rig.start(ticket, 0), Ok(()));
}

#[test]
fn all_endpoints_are_booked_or_none() {
    let mut rig = Rig::new(plain(), &[]);
    rig.observe(split_pool());
    let both = |rig: &mut Rig, ticket| {
        let bookings = smallvec![on(1, Stage::Decode, 3), on(0, Stage::Prefill, 5)];
        rig.engine.start(rig.now, ticket, Start { bookings, progress: None })
    };
    let tickets: Vec<_> = (0..2).map(|_| rig.grant(sluice_flow::Ask { stages: Stages::BOTH, ..ask("a", 0) })).collect();
    assert_eq!(both(&mut rig, tickets[0]), Ok(()));
    rig.observe(Signal::Pool(vec![member(0, 0, Stages::PREFILL, Some(1)), member(1, 1, Stages::DECODE, Some(2))]));
    assert_eq!(both(&mut rig, tickets[1]), Err(StartError::Full(EndpointKey(0))));
    assert_eq!(rig.stats().endpoints[&EndpointKey(1)].load, Load::one(3));
}

#[test]
fn the_same_endpoint_twice_needs_two_places() {
    let mut rig = Rig::new(plain(), &[]);
    rig.observe(Signal::Pool(vec![member(0, 0, Stages::BOTH, Some(1))]));
    let ticket = rig.grant(ask("a", 0));
    let bookings = smallvec![on(0, Stage::Decode, 0), on(0, Stage::Prefill, 0)];
    let result = rig.engine.start(rig.now, ticket, Start { bookings, progress: None });
    assert_eq!(result, Err(StartError::Full(EndpointKey(0))));
}

#[test]
fn a_start_returns_the_stage_it_does_not_use_and_runs_a_pass() {
    let mut rig = Rig::new(plain(), &[]);
    rig.observe(split_pool());
    let either = sluice_flow::Ask { stages: Stages::BOTH, ..ask("a", 0) };
    let first = rig.grant(either.clone());
    rig.grant(either);
    // Decode has room for neither; the prefill place of the first comes back, but the decode place does not.
    let third = rig.queue(sluice_flow::Ask { stages: Stages::PREFILL, ..ask("a", 0) });
    rig.start(first, 1).unwrap();
    assert_eq!(granted(&rig.effects()), []);
    assert_eq!(rig.stats().saturation, [(Partition::Prefill, 0.5), (Partition::Decode, 1.0)]);
    assert_eq!(granted(&rig.release(first)), [third]);
}

#[test]
fn a_start_corrects_the_estimate() {
    let mut config = plain();
    config.detector = std::sync::Arc::new(sluice_plugins::flow::ConcurrencyDetector {
        mode: sluice_plugins::flow::ConcurrencyMode::Tokens,
        max_token_concurrency: 100,
        ..Default::default()
    });
    let mut rig = Rig::new(config, &[1]);
    let cached = rig.grant(sluice_flow::Ask { tokens: 100, ..ask("a", 0) });
    let next = rig.queue(ask("a", 0));
    rig.engine.start(rig.now, cached, Start::on(EndpointKey(0), 10)).unwrap();
    assert_eq!(granted(&rig.effects()), [next]);
}

#[test]
fn headroom_widens_the_limit_of_one_endpoint_and_not_the_gate() {
    let mut config = plain();
    let detector =
        sluice_plugins::flow::ConcurrencyDetector { max_concurrency: 2, headroom: 0.5, ..Default::default() };
    config.detector = std::sync::Arc::new(detector);
    let mut rig = Rig::new(config, &[]);
    let members = [0, 1].map(|number| member(number, number.into(), Stages::DECODE, None));
    rig.observe(Signal::Pool(members.to_vec()));
    let tickets: Vec<_> = (0..4).map(|_| rig.grant(ask("a", 0))).collect();
    rig.queue(ask("a", 0));
    let results: Vec<_> = tickets.iter().map(|&ticket| rig.start(ticket, 0).is_ok()).collect();
    assert_eq!(results, [true, true, true, false]);
}
