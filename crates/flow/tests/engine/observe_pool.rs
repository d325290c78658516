//! The pool changes.

use std::sync::Arc;

use sluice_flow::policy::FairnessPolicy;
use sluice_flow::{Ask, EndpointKey, Outcome, Partition, Signal, Stages};
use sluice_plugins::flow::{RoundRobin, Weighted, Weights};

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, dropped, evicting, granted, hint, plain, pool, revoked, with_ceilings};

#[test]
fn an_empty_pool_closes_every_gate() {
    let mut rig = Rig::new(plain(), &[]);
    let waiting = rig.queue(ask("a", 0));
    assert!((rig.stats().effective_saturation - 1.0).abs() < f64::EPSILON);
    assert_eq!(granted(&rig.observe(pool(&[1]))), [waiting]);
}

#[test]
fn leases_of_a_departed_endpoint_do_not_close_the_gate() {
    let mut rig = Rig::new(plain(), &[2, 2]);
    let gone: Vec<_> = (0..2).map(|_| rig.run_on(1, ask("a", 0))).collect();
    rig.run_many(2, "a", 0);
    let waiting = rig.queue(ask("a", 0));
    rig.observe(pool(&[3]));
    assert_eq!(rig.stats().endpoints[&EndpointKey(1)].load.requests, 2);
    assert_eq!(rig.stats().leases.granted, 1, "{waiting:?} was granted by the new room");
    for ticket in gone {
        assert_eq!(rig.release(ticket), []);
    }
    assert!(!rig.stats().endpoints.contains_key(&EndpointKey(1)));
}

#[test]
fn a_raised_limit_grants_all_it_can_in_one_pass_and_in_order() {
    let mut rig = Rig::new(with_ceilings(&[(0, 0.9)]), &[0]);
    let waiting: Vec<_> = (0..2_000).map(|_| rig.queue(ask("a", 0))).collect();
    let order = granted(&rig.observe(pool(&[1_000])));
    assert_eq!(order, waiting[..900]);
}

#[test]
fn a_changed_pool_leaves_the_turns_as_they_are() {
    for fairness in [Arc::new(RoundRobin) as Arc<dyn FairnessPolicy>, Arc::new(Weighted::new(Weights::default(), None))]
    {
        let mut config = plain();
        config.template.fairness = fairness;
        let mut rig = Rig::new(config, &[1]);
        let running = rig.run_on(0, ask("running", 0));
        let first = rig.queue(Ask { eligible: hint(&[0]), ..ask("a", 0) });
        rig.queue(ask("b", 0));
        assert_eq!(rig.observe(pool(&[1, 0])), []);
        assert_eq!(granted(&rig.release(running)), [first]);
    }
}

#[test]
fn a_smaller_limit_drops_nobody_and_grants_nothing_until_it_fits() {
    let mut rig = Rig::new(plain(), &[3]);
    let running = rig.run_many(3, "a", 0);
    let waiting = rig.queue(ask("a", 0));
    assert_eq!(rig.observe(pool(&[1])), []);
    assert_eq!(rig.release(running[0]), []);
    assert_eq!(rig.release(running[1]), []);
    assert_eq!(granted(&rig.release(running[2])), [waiting]);
}

#[test]
fn a_hinted_ticket_ends_when_its_last_endpoint_leaves() {
    let mut rig = Rig::new(plain(), &[0, 0]);
    let hinted = rig.queue(Ask { eligible: hint(&[1]), ..ask("a", 0) });
    let free = rig.queue(ask("a", 0));
    assert_eq!(dropped(&rig.observe(pool(&[0]))), [(hinted, Outcome::EvictedNoEndpoints)]);
    assert_eq!(granted(&rig.observe(pool(&[1]))), [free]);
}

#[test]
fn a_ticket_ends_when_a_stage_it_needs_leaves() {
    let mut rig = Rig::new(plain(), &[]);
    let split = |limit| vec![member(0, 0, Stages::PREFILL, limit), member(1, 1, Stages::DECODE, limit)];
    rig.observe(Signal::Pool(split(Some(0))));
    let both = rig.queue(Ask { stages: Stages::BOTH, required: Stages::BOTH, ..ask("a", 0) });
    rig.queue(ask("a", 0));
    let decode_only = split(Some(0)).split_off(1);
    assert_eq!(dropped(&rig.observe(Signal::Pool(decode_only))), [(both, Outcome::EvictedNoEndpoints)]);
}

#[test]
fn the_worse_stage_gates() {
    let mut rig = Rig::new(plain(), &[]);
    rig.observe(Signal::Pool(vec![member(0, 0, Stages::PREFILL, Some(1)), member(1, 1, Stages::DECODE, Some(4))]));
    rig.grant(Ask { stages: Stages::BOTH, ..ask("a", 0) });
    rig.queue(ask("a", 0));
    assert_eq!(rig.stats().saturation, [(Partition::Prefill, 1.0), (Partition::Decode, 0.25)]);
}

#[test]
fn where_no_endpoint_serves_a_stage_the_whole_pool_gates() {
    let mut rig = Rig::new(plain(), &[]);
    rig.observe(Signal::Pool(vec![member(0, 0, Stages::NONE, Some(1))]));
    let any = Ask { stages: Stages::NONE, required: Stages::NONE, ..ask("a", 0) };
    rig.grant(any.clone());
    rig.queue(any);
    assert_eq!(rig.stats().saturation, [(Partition::Pool, 1.0)]);
}

#[test]
fn whoever_needs_a_stage_that_leaves_is_refused_and_the_others_wait_on() {
    let both = vec![member(0, 0, Stages::PREFILL, Some(0)), member(1, 1, Stages::DECODE, Some(0))];
    let decode = vec![member(1, 1, Stages::DECODE, Some(0))];
    let needs_both = Ask { stages: Stages::BOTH, required: Stages::BOTH, ..ask("a", 0) };
    let mut rig = Rig::new(plain(), &[]);
    rig.observe(Signal::Pool(both));
    let doomed = rig.queue(needs_both.clone());
    rig.queue(ask("a", 0));
    assert_eq!(dropped(&rig.observe(Signal::Pool(decode.clone()))), [(doomed, Outcome::EvictedNoEndpoints)]);
    // Whether a pool that was empty has the stage is only known when it comes back.
    rig.observe(Signal::Pool(vec![]));
    let came_meanwhile = rig.queue(needs_both);
    assert_eq!(dropped(&rig.observe(Signal::Pool(decode))), [(came_meanwhile, Outcome::EvictedNoEndpoints)]);
    assert_eq!(rig.stats().waiting.requests, 1);
}

#[test]
fn work_on_an_endpoint_that_left_and_came_back_can_be_evicted_again() {
    let mut rig = Rig::new(evicting(plain()), &[1, 1]);
    rig.run_on(1, ask("a", 0));
    let batch = rig.run_on(0, ask("batch", -1));
    rig.observe(Signal::Pool(vec![member(1, 1, Stages::DECODE, Some(1))]));
    assert_eq!(revoked(&rig.submit(ask("a", 0)).1), [], "its end would free nothing");
    assert_eq!(revoked(&rig.observe(pool(&[1, 1]))), [batch]);
    // And one that ended meanwhile is not thought of again.
    let mut rig = Rig::new(evicting(plain()), &[1, 1]);
    rig.run_on(1, ask("a", 0));
    let batch = rig.run_on(0, ask("batch", -1));
    rig.observe(Signal::Pool(vec![member(1, 1, Stages::DECODE, Some(1))]));
    rig.release(batch);
    let (_, effects) = rig.submit(ask("a", 0));
    assert_eq!(effects, []);
    assert_eq!(granted(&rig.observe(pool(&[1, 1]))).len(), 1);
}
