//! Objectives name other priorities: bands come and go.

use sluice_core::Priority;
use sluice_flow::{Effect, Engine, Signal};
use sluice_plugins::flow::{Curve, Domain, PriorityHoldback};

use crate::harness::rig::{Rig, ask, granted, plain, with_ceilings};

fn priorities(rig: &Rig) -> Vec<i32> {
    rig.stats().bands.iter().map(|band| band.priority.0).collect()
}

fn desired(list: &[i32]) -> Signal {
    Signal::Desired(list.iter().copied().map(Priority).collect())
}

#[test]
fn band_zero_and_named_bands_exist_though_idle() {
    let mut rig = Rig::new(with_ceilings(&[(10, 1.0)]), &[1]);
    assert_eq!(priorities(&rig), [10, 0]);
    rig.observe(desired(&[50, -5]));
    assert_eq!(priorities(&rig), [50, 10, 0, -5]);
    rig.observe(desired(&[]));
    assert_eq!(priorities(&rig), [10, 0]);
}

/// Among those that are there, and in place of others.
#[test]
fn bands_stand_in_the_order_of_their_priorities_however_they_come() {
    let mut rig = Rig::new(with_ceilings(&[(10, 1.0), (-3, 1.0)]), &[0]);
    rig.queue(ask("a", 7));
    rig.observe(desired(&[5, 50, -5]));
    assert_eq!(priorities(&rig), [50, 10, 7, 5, 0, -3, -5]);
    rig.observe(desired(&[60, 8, 5, -2, -9]));
    assert_eq!(priorities(&rig), [60, 10, 8, 7, 5, 0, -2, -3, -9]);
}

#[test]
fn too_many_bands_are_said_once_per_crossing() {
    let mut rig = Rig::new(plain(), &[1]);
    let named: Vec<i32> = (1..=63).collect();
    assert_eq!(rig.observe(desired(&named)), [], "with band 0 these are as many as there should be");
    let others: Vec<i32> = (101..=163).collect();
    assert_eq!(rig.observe(desired(&others)), [], "others in their place are no more");
    // A request in a band of its own.
    let (first, effects) = rig.submit(ask("a", 1));
    assert_eq!(effects.first(), Some(&Effect::ManyBands { bands: 65 }));
    let (second, effects) = rig.submit(ask("a", 2));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::ManyBands { .. })));
    rig.engine.cancel(rig.now, first);
    rig.engine.cancel(rig.now, second);
    rig.effects();
    let more: Vec<i32> = (1..=70).collect();
    assert_eq!(rig.observe(desired(&more)), [Effect::ManyBands { bands: 71 }]);
    assert_eq!(rig.observe(desired(&more)), []);
}

#[test]
fn a_configuration_may_have_too_many_bands_from_the_start() {
    let ceilings: Vec<(i32, f64)> = (0..70).map(|priority| (priority, 1.0)).collect();
    let mut engine = Engine::new(with_ceilings(&ceilings));
    assert_eq!(engine.poll(), Some(Effect::ManyBands { bands: 70 }));
    assert_eq!(engine.poll(), None);
}

#[test]
fn a_band_nobody_names_lives_until_it_is_empty() {
    let mut rig = Rig::new(plain(), &[1]);
    rig.observe(desired(&[50]));
    let running = rig.run_on(0, ask("a", 50));
    let waiting = rig.queue(ask("a", 50));
    rig.observe(desired(&[]));
    assert_eq!(priorities(&rig), [50, 0]);
    assert_eq!(granted(&rig.release(running)), [waiting]);
    rig.release(waiting);
    assert_eq!(priorities(&rig), [0]);
}

#[test]
fn a_priority_never_seen_gets_its_own_band() {
    let mut rig = Rig::new(plain(), &[1]);
    rig.run_on(0, ask("a", 0));
    rig.queue(ask("a", 7));
    rig.queue(ask("a", -7));
    assert_eq!(priorities(&rig), [7, 0, -7]);
}

#[test]
fn negative_priorities_have_their_own_template() {
    let mut config = plain();
    config.negative_template = Some(sluice_flow::BandConfig { max_requests: 3, ..config.template.clone() });
    let mut rig = Rig::new(config, &[0]);
    rig.queue(ask("a", 7));
    rig.queue(ask("a", -7));
    let limits: Vec<u64> = rig.stats().bands.iter().map(|band| band.max_requests).collect();
    assert_eq!(limits, [5000, 5000, 3]);
}

#[test]
fn a_new_objective_moves_the_curve_and_a_lingering_band_does_not() {
    let mut config = plain();
    let curve = Curve::Linear { domain: Domain::Rank, min_ceiling: 0.5 };
    config.usage_limit = std::sync::Arc::new(PriorityHoldback::new(1.0, curve).unwrap());
    let mut rig = Rig::new(config, &[1]);
    let ceilings = |rig: &Rig| -> Vec<f64> { rig.stats().bands.iter().map(|band| band.ceiling).collect() };
    assert_eq!(ceilings(&rig), [1.0]);
    rig.observe(desired(&[10]));
    rig.on_time();
    assert_eq!(ceilings(&rig), [1.0, 0.5]);
    // Priority 5 was named by nobody: it has the ceiling of the band below and moves nothing.
    rig.grant(ask("a", 5));
    assert_eq!(ceilings(&rig), [1.0, 0.5, 0.5]);
}
