//! The checker finds what is wrong with a history: one true history, falsified once for each invariant.

use sluice_core::TerminationCause;
use sluice_flow::{EndpointKey, InvariantId, Outcome, RevokeCause};

use crate::harness::checker::violations;
use crate::harness::history::{Event, Request, Seen, Step};
use crate::harness::ops::{Op, Setup};
use crate::harness::world::World;

/// Requests counted, round robin, first come first served, 300 ms in the queue.
const SETUP: u64 = 0x0000_0401_0000_0000;

/// The same with weighted turns: four times as much for tenant 1 as for tenant 3.
const WEIGHTED: u64 = 0x0002_0401_0104_0000;

/// In the true history, by the order of submission.
const FIRST: Request = 0;
const A: Request = 1;
const A_AGAIN: Request = 2;
const B: Request = 3;
const URGENT: Request = 4;
const HINTED: Request = 6;

fn submit(tenant: u8, band: u8) -> Op {
    Op::Submit { tenant, band, bytes: 1, tokens: 0, ttl: 100, ttft: 255, hint: 1, stages: 2 }
}

/// One place: the first runs, tenant 1 waits twice and tenant 2 once, and an urgent one comes. Then two
/// places, and a ticket parked for the first; the last one to wait runs out of time.
fn true_history() -> Vec<Step> {
    let start = Op::Start { nth: 0, pick: 0, prefill: 1 };
    let release = Op::Release { nth: 0, cause: 0 };
    let pool = |mask, limits| Op::Pool { mask, fresh: 0, limits, roles: 0 };
    let ops = [
        vec![pool(0b01, 0b01), submit(0, 2), start],
        vec![submit(1, 2), submit(1, 2), submit(2, 2), submit(0, 0)],
        // The urgent one, then the turns of both tenants.
        vec![release, start, release, start, release, start, release, start, release],
        vec![pool(0b11, 0b0101), submit(0, 2), start, submit(0, 2), Op::Park { nth: 0, hint: 0b01 }],
        vec![submit(0, 2), Op::Start { nth: 0, pick: 1, prefill: 1 }, submit(3, 2)],
        vec![Op::Wait { millis: 400, tell: true }],
    ];
    history(SETUP, &ops.concat())
}

/// One place, and requests of 15 tokens: first tenants 1 and 3 wait thrice each, then all get their turns.
fn weighted_history() -> Vec<Step> {
    let heavy = |tenant| Op::Submit { tenant, band: 2, bytes: 1, tokens: 15, ttl: 100, ttft: 255, hint: 1, stages: 2 };
    let turn = [Op::Release { nth: 0, cause: 0 }, Op::Start { nth: 0, pick: 0, prefill: 1 }];
    let ops = [
        vec![Op::Pool { mask: 0b01, fresh: 0, limits: 0b01, roles: 0 }, heavy(0), turn[1]],
        [1, 1, 1, 3, 3, 3].map(heavy).to_vec(),
        turn.repeat(6),
    ];
    history(WEIGHTED, &ops.concat())
}

fn history(setup: u64, ops: &[Op]) -> Vec<Step> {
    let mut world = World::new(Setup::decode(setup));
    for &op in ops {
        world.apply(op).unwrap();
    }
    world.finish().unwrap();
    world.history
}

fn broken(setup: u64, history: &[Step]) -> Vec<InvariantId> {
    violations(&Setup::decode(setup), history).into_iter().map(|(invariant, _)| invariant).collect()
}

/// The first step that `which` is true of.
fn find(history: &mut [Step], which: impl Fn(&Step) -> bool) -> &mut Step {
    history.iter_mut().find(|step| which(step)).expect("the true history has such a step")
}

fn grants(request: Request) -> impl Fn(&Step) -> bool {
    move |step| {
        step.effects.iter().any(|effect| matches!(effect, Seen::Granted { request: other, .. } if *other == request))
    }
}

fn is_submit(request: Request) -> impl Fn(&Step) -> bool {
    move |step| matches!(step.event, Event::Submit { request: other, .. } if other == request)
}

const fn granted(request: Request) -> Seen {
    Seen::Granted { request, reserved: None }
}

fn falsify(invariant: InvariantId, history: &mut [Step]) {
    match invariant {
        InvariantId::F1 => {
            let drop = Seen::Dropped { request: FIRST, outcome: Outcome::EvictedTtl, retry_after: Some(1) };
            find(history, grants(URGENT)).effects.push(drop);
        }
        InvariantId::F2 => find(history, is_submit(A)).after.waiting.1 += 1,
        InvariantId::F3 => find(history, grants(URGENT)).effects = vec![granted(A)],
        InvariantId::F4 => find(history, grants(URGENT)).effects.clear(),
        InvariantId::F5 => find(history, |step| step.event == Event::Time).effects.clear(),
        InvariantId::F6 => find(history, grants(B)).effects = vec![granted(A_AGAIN)],
        InvariantId::F7 => {
            let step = find(history, |step| step.event == Event::Time);
            step.after.next_wakeup = Some(step.now);
        }
        InvariantId::F8 => find(history, grants(A)).effects = vec![granted(A_AGAIN)],
        InvariantId::F9 => find(history, is_submit(A)).after.started += 1,
        InvariantId::F10 => {
            let revoked = Seen::Revoked { request: FIRST, cause: RevokeCause::Eviction };
            find(history, is_submit(URGENT)).effects.push(revoked);
        }
        InvariantId::F11 => find(history, is_submit(A)).effects.push(granted(A)),
        InvariantId::F12 => {
            let key = Some(EndpointKey(1));
            find(history, |step| matches!(step.event, Event::Park { request: HINTED, .. }))
                .effects
                .push(Seen::Granted { request: HINTED, reserved: key });
        }
        InvariantId::F13 => {
            // The second turn of tenant 3 before the second of tenant 1.
            find(history, grants(2)).effects = vec![granted(5)];
        }
    }
}

#[test]
fn the_true_history_breaks_nothing() {
    let mut history = true_history();
    assert_eq!(broken(SETUP, &history), []);
    assert_eq!(broken(WEIGHTED, &weighted_history()), []);
    find(&mut history, |step| matches!(step.event, Event::Park { request: HINTED, .. }));
}

#[test]
fn each_falsified_history_is_caught_by_its_invariant() {
    for invariant in InvariantId::ALL {
        let weighted = invariant == InvariantId::F13;
        let (setup, mut history) = if weighted { (WEIGHTED, weighted_history()) } else { (SETUP, true_history()) };
        falsify(invariant, &mut history);
        let found = broken(setup, &history);
        assert!(found.contains(&invariant), "{invariant} was falsified, found: {found:?}");
    }
}

#[test]
fn a_turn_before_one_who_has_waited_longer_for_the_first_is_caught() {
    let mut history = true_history();
    find(&mut history, grants(A)).effects = vec![granted(B)];
    let found = broken(SETUP, &history);
    assert!(found.contains(&InvariantId::F6), "{found:?}");
}

#[test]
fn a_request_that_never_ends_is_missed() {
    let mut history = true_history();
    let last = history.pop().unwrap();
    assert!(matches!(last.event, Event::Cancel { .. } | Event::Release { cause: TerminationCause::Natural, .. }));
    assert_eq!(broken(SETUP, &history), [InvariantId::F1]);
}
