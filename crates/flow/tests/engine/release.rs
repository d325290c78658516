//! A request is over.

use sluice_core::{Priority, TerminationCause};
use sluice_flow::{Ended, EndpointKey, Outcome};
use sluice_plugins::flow::{Edf, GlobalStrict, RoundRobin, SloDeadline};

use crate::harness::rig::{Rig, ask, band, granted, plain, with_ceilings};

#[test]
fn a_freed_place_is_filled_in_the_same_call() {
    let mut rig = Rig::new(plain(), &[2]);
    let running = rig.run_many(2, "a", 0);
    let waiting: Vec<_> = (0..3).map(|_| rig.queue(ask("a", 0))).collect();
    assert_eq!(granted(&rig.release(running[0])), [waiting[0]]);
    assert_eq!(granted(&rig.release(running[1])), [waiting[1]]);
}

#[test]
fn the_highest_band_goes_first() {
    let mut rig = Rig::new(plain(), &[1]);
    let running = rig.run_on(0, ask("a", 0));
    let low = rig.queue(ask("a", -1));
    let middle = rig.queue(ask("a", 0));
    let high = rig.queue(ask("a", 5));
    let mut next = running;
    for expected in [high, middle, low] {
        let order = granted(&rig.release(next));
        assert_eq!(order, [expected]);
        next = expected;
    }
}

#[test]
fn the_first_gated_band_ends_the_pass() {
    let mut rig = Rig::new(with_ceilings(&[(0, 0.5), (-1, 0.5)]), &[4]);
    let running = rig.run_many(2, "a", 0);
    rig.queue(ask("a", -1));
    let waiting = rig.queue(ask("a", 0));
    assert_eq!(granted(&rig.release(running[0])), [waiting]);
    assert_eq!(rig.stats().bands[1].waiting.requests, 1);
}

#[test]
fn flows_of_a_band_take_turns() {
    let mut rig = Rig::new(plain(), &[1]);
    let mut next = rig.run_on(0, ask("other", 5));
    let burst: Vec<_> = (0..3).map(|_| rig.queue(ask("burst", 0))).collect();
    let calm: Vec<_> = (0..2).map(|_| rig.queue(ask("calm", 0))).collect();
    for expected in [burst[0], calm[0], burst[1], calm[1], burst[2]] {
        assert_eq!(granted(&rig.release(next)), [expected]);
        next = expected;
    }
}

#[test]
fn tenants_that_keep_coming_do_not_hold_up_one_that_waits() {
    let mut rig = Rig::new(plain(), &[1]);
    let mut running = rig.run_on(0, ask("running", 5));
    let patient: Vec<_> = (0..10).map(|_| rig.queue(ask("patient", 0))).collect();
    let mut newcomers = 0..;
    for ticket in patient {
        // Those that are there when its wait for this turn begins, and no others, go first.
        let flows = rig.stats().bands.into_iter().find(|band| band.priority == Priority(0)).unwrap().flows;
        let ahead = flows.iter().filter(|flow| flow.waiting.requests > 0 && &*flow.tenant != "patient").count();
        for _ in 0..ahead {
            rig.queue(ask(&format!("fresh-{}", newcomers.next().unwrap()), 0));
            let next = granted(&rig.release(running));
            assert_ne!(next, [ticket]);
            running = next[0];
        }
        rig.queue(ask(&format!("fresh-{}", newcomers.next().unwrap()), 0));
        assert_eq!(granted(&rig.release(running)), [ticket]);
        running = ticket;
    }
}

#[test]
fn strict_serves_the_band_as_one_queue() {
    let mut config = plain();
    config.template = band(sluice_plugins::flow::Fcfs, GlobalStrict);
    let mut rig = Rig::new(config, &[1]);
    let mut next = rig.run_on(0, ask("other", 5));
    let order: Vec<_> =
        ["a", "a", "b", "a"].into_iter().zip(1..).map(|(tenant, at)| rig.at_millis(at).queue(ask(tenant, 0))).collect();
    for expected in order {
        assert_eq!(granted(&rig.release(next)), [expected]);
        next = expected;
    }
}

#[test]
fn the_earliest_deadline_goes_first() {
    let mut config = plain();
    config.template = band(Edf, GlobalStrict);
    let mut rig = Rig::new(config, &[1]);
    let mut next = rig.run_on(0, ask("a", 0));
    let ttl = |secs| sluice_flow::TtlHeader::Within(std::time::Duration::from_secs(secs));
    let late = rig.queue(ask("a", 0));
    let soon = rig.queue(sluice_flow::Ask { ttl: ttl(5), ..ask("a", 0) });
    let soonest = rig.queue(sluice_flow::Ask { ttl: ttl(2), ..ask("b", 0) });
    for expected in [soonest, soon, late] {
        assert_eq!(granted(&rig.release(next)), [expected]);
        next = expected;
    }
}

#[test]
fn a_missing_or_absurd_target_goes_last() {
    let mut config = plain();
    config.template = band(SloDeadline, RoundRobin);
    let mut rig = Rig::new(config, &[1]);
    let mut next = rig.run_on(0, ask("a", 0));
    let target = |ttft| sluice_flow::Ask { ttft, ..ask("a", 0) };
    let none = rig.queue(target(None));
    let absurd = rig.queue(target(Some(std::time::Duration::MAX)));
    let real = rig.queue(target(Some(std::time::Duration::from_millis(900))));
    for expected in [real, none, absurd] {
        assert_eq!(granted(&rig.release(next)), [expected]);
        next = expected;
    }
}

#[test]
fn a_second_release_frees_nothing_more() {
    let mut rig = Rig::new(plain(), &[1]);
    let running = rig.run_on(0, ask("a", 0));
    let first = rig.queue(ask("a", 0));
    rig.queue(ask("a", 0));
    assert_eq!(granted(&rig.release(running)), [first]);
    assert_eq!(rig.release(running), []);
    assert_eq!(rig.stats().endpoints[&EndpointKey(0)].load.requests, 0);
}

#[test]
fn a_grant_that_is_given_back_is_counted_as_never_dispatched() {
    let mut rig = Rig::new(plain(), &[1]);
    let ticket = rig.grant(ask("a", 0));
    rig.engine.release(rig.now, ticket, Ended { cause: TerminationCause::Error, usage: None });
    let totals = rig.stats().totals[&Priority(0)];
    assert_eq!(totals.outcome(Outcome::Dispatched), 0);
    assert_eq!(totals.outcome(Outcome::EvictedOther), 1);
}

#[test]
fn one_idle_endpoint_does_not_hide_an_overloaded_one() {
    // Loads 0 and 8 at limits of 4: the pool as a whole is full.
    let mut config = plain();
    config.detector = std::sync::Arc::new(sluice_plugins::flow::ConcurrencyDetector {
        max_concurrency: 4,
        headroom: 1.0,
        ..Default::default()
    });
    let mut rig = Rig::new(config, &[]);
    let members = [0, 1]
        .map(|number| crate::harness::endpoints::member(number, number.into(), sluice_flow::Stages::DECODE, None));
    rig.observe(sluice_flow::Signal::Pool(members.to_vec()));
    rig.run_many(8, "a", 0);
    assert!((rig.stats().effective_saturation - 1.0).abs() < f64::EPSILON);
    rig.queue(ask("a", 0));
}
