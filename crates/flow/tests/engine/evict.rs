//! Who has to go so that more urgent work gets in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_core::Priority;
use sluice_flow::{
    Ask, BandConfig, Config, EndpointKey, EvictionConfig, RevocationStats, Signal, Stages, Start, Ticket, VictimOrder,
};
use sluice_plugins::flow::{Fcfs, SloDeadline, Weighted, Weights};

use crate::harness::endpoints::member;
use crate::harness::rig::{Rig, ask, band, evicting, granted, plain, pool, revoked, with_ceilings};

/// Runs what is in flight on a pool that has room for it, then shrinks the pool to `slots` and lets the rest
/// wait.
fn plan(ceilings: &[(i32, f64)], slots: u64, in_flight: &[(usize, i32)], waiting: &[(usize, i32)]) -> Vec<i32> {
    let mut rig = Rig::new(evicting(with_ceilings(ceilings)), &[1000]);
    let mut running = Vec::new();
    for &(count, priority) in in_flight {
        let tickets = rig.run_many(count, "running", priority);
        running.extend(tickets.into_iter().map(|ticket| (ticket, priority)));
    }
    let mut effects = rig.observe(pool(&[slots]));
    for &(count, priority) in waiting {
        for _ in 0..count {
            effects.extend(rig.submit(ask("waiting", priority)).1);
        }
    }
    assert_eq!(granted(&effects), []);
    let priority = |ticket| running.iter().find(|(other, _)| *other == ticket).map(|(_, priority)| *priority).unwrap();
    revoked(&effects).into_iter().map(priority).collect()
}

const OPEN: &[(i32, f64)] = &[(100, 1.0), (0, 1.0), (-10, 1.0)];

#[test]
fn one_waiting_request_takes_one_place() {
    assert_eq!(plan(OPEN, 32, &[(32, -10)], &[(1, 100)]), [-10]);
}

#[test]
fn thirty_two_waiting_requests_take_thirty_two() {
    assert_eq!(plan(OPEN, 32, &[(32, -10)], &[(32, 100)]).len(), 32);
    assert_eq!(plan(OPEN, 32, &[(32, -10)], &[(40, 100)]).len(), 32);
}

#[test]
fn whoever_waits_when_eviction_is_switched_on_is_served_by_one_plan() {
    let config = plain();
    let mut rig = Rig::new(config.clone(), &[32]);
    let batch = rig.run_many(32, "batch", -10);
    for _ in 0..32 {
        rig.queue(ask("chat", 100));
    }
    let effects = rig.observe(Signal::Reload { config: Box::new(evicting(config)), desired: None });
    assert_eq!(revoked(&effects), batch.iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(effects.len(), 32);
    assert_eq!(wanted_back(&rig), "32");
    assert_eq!(rig.stats().revocations.outstanding, 32);
    // The next plan counts upon their ends.
    rig.on_time();
    assert_eq!(wanted_back(&rig), "0");
}

fn wanted_back(rig: &Rig) -> String {
    rig.stats().reclaim_target.to_string()
}

#[test]
fn what_is_wanted_back_is_shown_though_less_can_be_had() {
    let mut rig = Rig::new(plain(), &[4]);
    let [batch, ..] = [-1, 0, 0, 0].map(|priority| rig.run_on(0, ask("a", priority)));
    for priority in [100, 100, 0] {
        rig.queue(ask("chat", priority));
    }
    let effects = rig.observe(Signal::Reload { config: Box::new(evicting(plain())), desired: None });
    assert_eq!(revoked(&effects), [batch]);
    assert_eq!(wanted_back(&rig), "2", "two of the first band; for the second the gate is shut for good");
}

#[test]
fn a_band_that_has_come_to_shed_has_nobody_evicted() {
    let mut config = plain();
    let mut rig = Rig::new(config.clone(), &[1]);
    let batch = rig.run_on(0, ask("batch", -10));
    rig.queue(ask("chat", 0));
    config.bands.insert(Priority(0), BandConfig { shed: true, ..config.template.clone() });
    assert_eq!(rig.observe(Signal::Reload { config: Box::new(evicting(config)), desired: None }), []);
    // Nor does it hide the bands below.
    assert_eq!(revoked(&rig.submit(ask("batch", -1)).1), [batch]);
}

#[test]
fn a_gated_but_empty_top_band_hides_nothing() {
    assert_eq!(plan(OPEN, 32, &[(32, -10)], &[(1, 0)]), [-10]);
}

#[test]
fn a_consumed_reserve_is_restored() {
    let ceilings = [(100, 1.0), (0, 0.8), (-10, 0.6)];
    assert_eq!(plan(&ceilings, 32, &[(10, 100), (20, -10)], &[(1, 0)]).len(), 5);
}

#[test]
fn work_that_is_not_sheddable_is_safe() {
    assert_eq!(plan(OPEN, 32, &[(32, 0)], &[(5, 100)]), [0; 0]);
    assert_eq!(plan(OPEN, 32, &[(31, 0), (1, -10)], &[(5, 100)]), [-10]);
}

#[test]
fn a_victim_is_strictly_below_the_demand() {
    assert_eq!(plan(&[(0, 1.0), (-1, 1.0)], 2, &[(1, -5), (1, -1)], &[(2, -1)]), [-5]);
}

#[test]
fn nothing_is_evicted_if_no_number_of_victims_would_open_the_gate() {
    assert_eq!(plan(OPEN, 4, &[(6, 0), (2, -10)], &[(1, 100)]), [0; 0]);
}

#[test]
fn a_band_whose_ceiling_is_zero_is_no_demand() {
    let (mut rig, _) = full_of_batch(plain(), 4);
    let closed = evicting(with_ceilings(&[(0, 1.0), (-1, 0.0)]));
    rig.observe(Signal::Reload { config: Box::new(closed), desired: None });
    rig.queue(ask("batch", -1));
}

#[test]
fn lower_bands_count_on_what_higher_ones_leave() {
    // Two for the top band, two for the middle one: the second pair is not taken for the first again.
    let victims = plan(OPEN, 8, &[(4, 0), (4, -10)], &[(2, 100), (2, 0)]);
    assert_eq!(victims.len(), 4);
}

fn full_of_batch(config: Config, count: u64) -> (Rig, Vec<Ticket>) {
    let mut rig = Rig::new(evicting(config), &[count]);
    let batch = (0..count).map(|_| rig.run_on(0, ask("batch", -10))).collect();
    (rig, batch)
}

#[test]
fn the_newest_of_the_lowest_goes_first() {
    let mut rig = Rig::new(evicting(plain()), &[3]);
    let [old_low, new_low, higher] = [-10, -10, -1].map(|priority| rig.run_on(0, ask("batch", priority)));
    let order: Vec<_> = (0..3).flat_map(|_| revoked(&rig.submit(ask("chat", 0)).1)).collect();
    assert_eq!(order, [new_low, old_low, higher]);
}

#[test]
fn a_revoked_lease_counts_until_its_end_and_then_serves_the_demand() {
    let (mut rig, batch) = full_of_batch(plain(), 4);
    let (chat, effects) = rig.submit(ask("chat", 0));
    assert_eq!(revoked(&effects), [batch[3]]);
    assert_eq!(rig.on_time(), [], "what is on its way out is not taken twice");
    assert_eq!(rig.stats().leases.revoked, 1);
    assert_eq!(granted(&rig.release(batch[3])), [chat]);
    assert_eq!(rig.stats().revocations.confirmed, 1);
}

#[test]
fn an_end_that_does_not_come_lets_the_next_victim_be_taken() {
    let (mut rig, batch) = full_of_batch(plain(), 4);
    rig.submit(ask("chat", 0));
    assert_eq!(rig.engine.next_wakeup(), Some(sluice_core::Time::from_secs(1)));
    rig.at_millis(1_000);
    assert_eq!(revoked(&rig.on_time()), [batch[2]]);
    let stats = rig.stats().revocations;
    assert_eq!((stats.timed_out, stats.outstanding), (1, 1));
    // The late end still frees its place, and confirms nothing.
    assert_eq!(granted(&rig.release(batch[3])).len(), 1);
    assert_eq!(rig.stats().revocations.confirmed, 0);
}

#[test]
fn a_limit_on_revocations_under_way_is_kept() {
    let mut config = plain();
    config.eviction = Some(EvictionConfig { max_in_flight_revocations: Some(2), ..EvictionConfig::default() });
    let mut rig = Rig::new(config, &[4]);
    let batch = rig.run_many(4, "batch", -10);
    let first: Vec<_> = (0..4).flat_map(|_| revoked(&rig.submit(ask("chat", 0)).1)).collect();
    assert_eq!(first, [batch[3], batch[2]]);
    assert_eq!(revoked(&rig.release(batch[3])), [batch[1]]);
}

#[test]
fn most_slack_spares_what_is_due_soon() {
    let mut config = plain();
    config.template = band(SloDeadline, sluice_plugins::flow::RoundRobin);
    config.eviction = Some(EvictionConfig { victim_order: VictimOrder::MostSlack, ..EvictionConfig::default() });
    let mut rig = Rig::new(config, &[3]);
    let due = |millis: Option<u64>| Ask { ttft: millis.map(Duration::from_millis), ..ask("batch", -10) };
    let [soon, never, late] = [Some(100), None, Some(9_000)].map(|millis| rig.run_on(0, due(millis)));
    let order: Vec<_> = (0..3).flat_map(|_| revoked(&rig.submit(ask("chat", 0)).1)).collect();
    assert_eq!(order, [never, late, soon]);
}

#[test]
fn cheapest_looks_at_what_the_client_has_when_the_plan_is_made() {
    let mut config = plain();
    config.eviction = Some(EvictionConfig { victim_order: VictimOrder::Cheapest, ..EvictionConfig::default() });
    let mut rig = Rig::new(config, &[4]);
    let run = |rig: &mut Rig| {
        let bytes = Arc::new(AtomicU64::new(0));
        let ticket = rig.grant(ask("batch", -10));
        let start = Start { progress: Some(Arc::clone(&bytes)), ..Start::on(EndpointKey(0), 0) };
        rig.engine.start(rig.now, ticket, start).unwrap();
        (ticket, bytes)
    };
    let runs: Vec<_> = (0..4).map(|_| run(&mut rig)).collect();
    for ((_, bytes), sent) in runs.iter().zip([500, 0, 20, 0]) {
        bytes.store(sent, Ordering::Relaxed);
    }
    let order: Vec<_> = (0..4).flat_map(|_| revoked(&rig.submit(ask("chat", 0)).1)).collect();
    assert_eq!(order, [runs[3].0, runs[1].0, runs[2].0, runs[0].0]);
}

#[test]
fn a_tenant_is_demand_for_what_it_may_still_hold() {
    let mut config = plain();
    config.bands.insert(Priority(0), band(Fcfs, Weighted::new(Weights::default(), Some(2))));
    let mut rig = Rig::new(evicting(config), &[5]);
    rig.run_on(0, ask("limited", 0));
    let batch: Vec<_> = (0..4).map(|_| rig.run_on(0, ask("batch", -1))).collect();
    let revoked: Vec<_> = (0..3).flat_map(|_| revoked(&rig.submit(ask("limited", 0)).1)).collect();
    assert_eq!(revoked, [batch[3]]);
    // Nothing while it is at its limit; then again one.
    assert_eq!(granted(&rig.release(batch[3])).len(), 1);
    assert_eq!(rig.stats().leases.revoked, 0);
}

#[test]
fn what_has_gone_is_no_demand() {
    let mut config = plain();
    config.bands.insert(Priority(0), band(Fcfs, Weighted::new(Weights::default(), Some(3))));
    let mut rig = Rig::new(evicting(config), &[5]);
    rig.run_on(0, ask("limited", 0));
    let busy = rig.run_many(4, "busy", 10);
    let gone: Vec<_> = (0..4).map(|_| rig.queue(ask("limited", 0))).collect();
    gone.into_iter().for_each(|ticket| rig.engine.cancel(rig.now, ticket));
    busy.into_iter().for_each(|ticket| drop(rig.release(ticket)));
    let batch = rig.run_many(4, "batch", -1);
    let revoked: Vec<_> = (0..2).flat_map(|_| revoked(&rig.submit(ask("limited", 0)).1)).collect();
    assert_eq!(revoked, [batch[3], batch[2]]);
}

#[test]
fn an_empty_pool_and_a_departed_endpoint_evict_nobody() {
    let (mut rig, _) = full_of_batch(plain(), 2);
    rig.observe(Signal::Pool(vec![]));
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), []);
    rig.observe(Signal::Pool(vec![member(1, 1, Stages::DECODE, Some(0))]));
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), []);
}

#[test]
fn a_dry_run_counts_and_spares() {
    let mut config = plain();
    config.dry_run.eviction = true;
    let (mut rig, batch) = full_of_batch(config.clone(), 2);
    for _ in 0..2 {
        assert_eq!(rig.submit(ask("chat", 0)).1, []);
    }
    let totals = rig.stats().totals[&Priority(0)];
    assert_eq!((totals.would_revoke, totals.revocations), (2, 0));
    // As long as it is one, each is counted once.
    rig.observe(Signal::Reload { config: Box::new(evicting(config.clone())), desired: None });
    assert_eq!(rig.stats().totals[&Priority(0)].would_revoke, 2);
    let stats = rig.stats();
    assert_eq!((stats.leases.revoked, stats.revocations.outstanding), (0, 0), "nobody is about to end");
    // Once it is no longer a dry run, the same leases are revoked in earnest.
    config.dry_run.eviction = false;
    let effects = rig.observe(Signal::Reload { config: Box::new(evicting(config)), desired: None });
    assert_eq!(revoked(&effects), [batch[1], batch[0]]);
    assert_eq!(rig.stats().leases.revoked, 2);
}

#[test]
fn a_dry_run_uses_up_no_revocations() {
    let mut config = plain();
    config.dry_run.eviction = true;
    config.eviction = Some(EvictionConfig { max_in_flight_revocations: Some(1), ..EvictionConfig::default() });
    let mut rig = Rig::new(config.clone(), &[3]);
    let batch = rig.run_many(3, "batch", -10);
    for _ in 0..2 {
        assert_eq!(rig.submit(ask("chat", 0)).1, []);
    }
    assert_eq!(rig.stats().totals[&Priority(0)].would_revoke, 2);
    // Ends of those that were only counted confirm nothing.
    assert_eq!(granted(&rig.release(batch[2])).len(), 1);
    let stats = rig.stats();
    assert_eq!((stats.leases.revoked, stats.revocations), (0, RevocationStats::default()));
    config.dry_run.eviction = false;
    assert_eq!(revoked(&rig.observe(Signal::Reload { config: Box::new(config), desired: None })), [batch[1]]);
}

#[test]
fn the_end_of_the_process_spares_nobody_whose_revocation_was_only_counted() {
    let mut config = plain();
    config.dry_run.eviction = true;
    let (mut rig, batch) = full_of_batch(config, 2);
    rig.submit(ask("chat", 0));
    assert_eq!(revoked(&rig.observe(Signal::Shutdown)), batch);
    assert_eq!(rig.observe(Signal::Shutdown), []);
}

#[test]
fn without_the_setting_nobody_is_evicted() {
    let mut rig = Rig::new(plain(), &[2]);
    rig.run_many(2, "batch", -10);
    assert_eq!(revoked(&rig.submit(ask("chat", 0)).1), []);
}
