//! The first chunk of a response: the prefill is over.

use sluice_flow::{Booking, EndpointKey, Load, Signal, Stage, Stages, Start, TokensAtFirstChunk};
use smallvec::smallvec;

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, granted, plain};

/// A started request on a prefill endpoint and a decode endpoint of one place each.
fn running() -> (Rig, sluice_flow::Ticket) {
    let mut rig = Rig::new(plain(), &[]);
    rig.observe(Signal::Pool(vec![member(0, 0, Stages::PREFILL, Some(1)), member(1, 1, Stages::DECODE, Some(2))]));
    let ticket = rig.grant(sluice_flow::Ask { stages: Stages::BOTH, ..ask("a", 0) });
    let booking = |endpoint, stage| Booking { endpoint: EndpointKey(endpoint), stage, tokens: 10 };
    let bookings = smallvec![booking(0, Stage::Prefill), booking(1, Stage::Decode)];
    rig.engine.start(rig.now, ticket, Start { bookings, progress: None }).unwrap();
    (rig, ticket)
}

fn loads(rig: &Rig) -> [Load; 2] {
    let stats = rig.stats();
    [0, 1].map(|key| stats.endpoints[&EndpointKey(key)].load)
}

#[test]
fn the_prefill_place_is_free_and_the_decode_place_stays() {
    let (mut rig, ticket) = running();
    let next = rig.queue(sluice_flow::Ask { stages: Stages::BOTH, ..ask("a", 0) });
    rig.engine.first_chunk(rig.now, ticket, TokensAtFirstChunk::Keep);
    assert_eq!(granted(&rig.effects()), [next]);
    assert_eq!(loads(&rig), [Load::default(), Load::one(10)]);
    rig.release(ticket);
    assert_eq!(loads(&rig), [Load::default(), Load::default()]);
}

#[test]
fn tokens_that_stand_for_the_prompt_are_released() {
    let (mut rig, ticket) = running();
    rig.engine.first_chunk(rig.now, ticket, TokensAtFirstChunk::Release);
    assert_eq!(loads(&rig), [Load::default(), Load::one(0)]);
    rig.engine.first_chunk(rig.now, ticket, TokensAtFirstChunk::Release);
    rig.release(ticket);
    assert_eq!(loads(&rig), [Load::default(), Load::default()]);
}

#[test]
fn before_the_start_it_says_nothing() {
    let mut rig = Rig::new(plain(), &[1]);
    let ticket = rig.grant(ask("a", 0));
    rig.engine.first_chunk(rig.now, ticket, TokensAtFirstChunk::Release);
    assert_eq!(rig.stats().leases.granted, 1);
}
