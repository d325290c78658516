//! Admission closes.

use sluice_core::DropReason;
use sluice_flow::{Outcome, Park, RevokeCause, Signal};

use crate::harness::rig::{Rig, ask, dropped, plain, revoked};

#[test]
fn waiting_requests_end_at_once_and_new_ones_are_refused() {
    let mut rig = Rig::new(plain(), &[1, 1]);
    let running = rig.run_on(0, ask("a", 0));
    let hinted = rig.grant(ask("a", 0));
    assert_eq!(rig.park(hinted, &[0]), Park::Waiting);
    rig.run_on(1, ask("a", 0));
    let queued = rig.queue(ask("b", 5));
    let ends = [hinted, queued].map(|ticket| (ticket, Outcome::EvictedOther));
    let effects = rig.observe(Signal::Drain);
    assert_eq!(dropped(&effects), ends, "in the order of arrival");
    assert_eq!(revoked(&effects), []);
    let (refused, effects) = rig.submit(ask("a", 0));
    assert_eq!(dropped(&effects), [(refused, Outcome::RejectedOther)]);
    for outcome in [Outcome::EvictedOther, Outcome::RejectedOther] {
        assert_eq!(outcome.reason(), Some(DropReason::RejectedShuttingDown));
    }
    assert_eq!(rig.release(running), []);
    assert!(rig.stats().closed);
}

#[test]
fn a_grant_made_before_may_start_but_not_park() {
    let mut rig = Rig::new(plain(), &[1, 2]);
    rig.run_on(0, ask("a", 0));
    let starts = rig.grant(ask("a", 0));
    let parks = rig.grant(ask("a", 0));
    rig.observe(Signal::Drain);
    assert_eq!(rig.start(starts, 1), Ok(()));
    assert_eq!(rig.park(parks, &[0]), Park::Waiting);
    assert_eq!(dropped(&rig.effects()), [(parks, Outcome::EvictedOther)]);
}

#[test]
fn shutdown_revokes_what_runs_once() {
    let mut rig = Rig::new(plain(), &[2]);
    let running = rig.run_many(2, "a", 0);
    let effects = rig.observe(Signal::Shutdown);
    assert_eq!(revoked(&effects), running);
    let causes = effects
        .iter()
        .filter(|effect| matches!(effect, sluice_flow::Effect::Revoke { cause: RevokeCause::Shutdown, .. }));
    assert_eq!(causes.count(), 2);
    assert_eq!(rig.observe(Signal::Shutdown), []);
    rig.release(running[0]);
    assert_eq!(rig.stats().leases.revoked, 1);
}
