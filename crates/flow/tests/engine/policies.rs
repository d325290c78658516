//! Policies that change with time or with each grant, and figures too old to act upon.

use std::sync::Arc;

use sluice_core::Time;
use sluice_flow::policy::{
    BandView, BookingLimit, EndpointFacts, Reading, Refresh, Saturation, SaturationDetector, UsageLimit,
    UsageLimitPolicy,
};
use sluice_flow::{EvictionConfig, Load, Partition, Partitions};
use sluice_plugins::flow::ConcurrencyDetector;

use crate::harness::rig::{Rig, ask, dropped, granted, plain, pool, revoked, verdicts};

/// Counts requests, but says that all is full until a certain time.
#[derive(Clone, Copy, Debug)]
struct FullUntil {
    time: Time,
    stale: bool,
}

#[derive(Debug)]
struct FullUntilState {
    inner: Box<dyn Saturation>,
    policy: FullUntil,
    now: Time,
}

impl SaturationDetector for FullUntil {
    fn new_state(&self) -> Box<dyn Saturation> {
        let inner = ConcurrencyDetector::default().new_state();
        Box::new(FullUntilState { inner, policy: *self, now: Time::ZERO })
    }
}

impl Saturation for FullUntilState {
    fn reset(&mut self, pool: &[(EndpointFacts, Load)]) {
        self.inner.reset(pool);
    }

    fn charge(&mut self, partitions: Partitions, tokens: u64) {
        self.inner.charge(partitions, tokens);
    }

    fn discharge(&mut self, partitions: Partitions, tokens: u64) {
        self.inner.discharge(partitions, tokens);
    }

    fn load_changed(&mut self, endpoint: &EndpointFacts, before: Load, after: Load) {
        self.inner.load_changed(endpoint, before, after);
    }

    fn reading(&self, partition: Partition) -> Reading {
        let Reading { load, capacity } = self.inner.reading(partition);
        Reading { load: if self.now < self.policy.time { capacity } else { load }, capacity }
    }

    fn endpoint_units(&self, endpoint: &EndpointFacts, load: Load) -> u64 {
        self.inner.endpoint_units(endpoint, load)
    }

    fn demand_units(&self, partition: Partition, load: Load) -> u64 {
        self.inner.demand_units(partition, load)
    }

    fn booking_limit(&self, endpoint: &EndpointFacts) -> BookingLimit {
        self.inner.booking_limit(endpoint)
    }

    fn is_stale(&self) -> bool {
        self.policy.stale
    }

    fn next_change(&self) -> Option<Time> {
        (self.now < self.policy.time).then_some(self.policy.time)
    }

    fn advance(&mut self, now: Time) {
        self.now = now;
    }
}

#[test]
fn a_detector_is_read_again_at_the_time_it_names() {
    let mut config = plain();
    config.detector = Arc::new(FullUntil { time: Time::from_secs(5), stale: false });
    let mut rig = Rig::new(config, &[2]);
    let waiting = rig.queue(ask("a", 0));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(5)));
    assert_eq!(rig.at_millis(4_999).on_time(), []);
    assert_eq!(granted(&rig.at_millis(5_000).on_time()), [waiting]);
    assert_eq!(rig.engine.next_wakeup(), None);
}

#[test]
fn nothing_is_evicted_for_figures_that_are_too_old() {
    for stale in [true, false] {
        let mut config = plain();
        config.eviction = Some(EvictionConfig::default());
        config.detector = Arc::new(FullUntil { time: Time::ZERO, stale });
        let mut rig = Rig::new(config, &[1]);
        rig.run_on(0, ask("batch", -1));
        assert_eq!(revoked(&rig.submit(ask("chat", 0)).1).is_empty(), stale);
    }
}

/// Ceilings of 0 until a certain time, and of 1 afterwards.
#[derive(Clone, Copy, Debug)]
struct ClosedUntil {
    time: Time,
    now: Time,
}

impl UsageLimitPolicy for ClosedUntil {
    fn new_state(&self) -> Box<dyn UsageLimit> {
        Box::new(*self)
    }
}

impl UsageLimit for ClosedUntil {
    fn ceilings(&mut self, now: Time, _: &[BandView], _: f64, ceilings: &mut [f64]) {
        self.now = now;
        ceilings.fill(if now < self.time { 0.0 } else { 1.0 });
    }

    fn next_change(&self) -> Option<Time> {
        (self.now < self.time).then_some(self.time)
    }
}

#[test]
fn ceilings_are_computed_again_at_the_time_their_policy_names() {
    let mut config = plain();
    config.usage_limit = Arc::new(ClosedUntil { time: Time::from_secs(5), now: Time::ZERO });
    let mut rig = Rig::new(config, &[2]);
    let waiting = rig.queue(ask("a", 0));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_secs(5)));
    assert_eq!(rig.at_millis(4_999).on_time(), []);
    assert_eq!(granted(&rig.at_millis(5_000).on_time()), [waiting]);
    assert_eq!(rig.engine.next_wakeup(), None);
}

/// Closes every gate once the pool is at this saturation.
#[derive(Clone, Copy, Debug)]
struct ClosedAt(f64);

impl UsageLimitPolicy for ClosedAt {
    fn new_state(&self) -> Box<dyn UsageLimit> {
        Box::new(*self)
    }
}

impl UsageLimit for ClosedAt {
    fn ceilings(&mut self, _: Time, _: &[BandView], saturation: f64, ceilings: &mut [f64]) {
        ceilings.fill(if saturation < self.0 { 1.0 } else { 0.0 });
    }

    fn refresh(&self) -> Refresh {
        Refresh::EachGrant
    }
}

fn closed_at(saturation: f64, limit: u64) -> Rig {
    let mut config = plain();
    config.usage_limit = Arc::new(ClosedAt(saturation));
    Rig::new(config, &[limit])
}

#[test]
fn a_policy_that_asks_for_it_sees_the_saturation_after_each_grant() {
    let mut rig = closed_at(0.5, 0);
    let waiting: Vec<_> = (0..4).map(|_| rig.queue(ask("a", 0))).collect();
    assert_eq!(granted(&rig.observe(pool(&[4]))), waiting[..2]);
}

#[test]
fn a_policy_that_asks_for_it_sees_the_saturation_before_each_newcomer() {
    let mut rig = closed_at(0.5, 4);
    rig.grant(ask("a", 0));
    rig.grant(ask("a", 0));
    rig.queue(ask("a", 0));
}

#[test]
fn grants_to_newcomers_say_nothing_about_how_fast_a_queue_drains() {
    let mut config = plain();
    config.usage_limit = Arc::new(ClosedAt(1.0));
    config.template.max_requests = 1;
    let mut rig = Rig::new(config, &[100]);
    for _ in 0..100 {
        rig.grant(ask("a", 0));
    }
    rig.queue(ask("a", 0));
    let (ticket, effects) = rig.at_millis(10_000).submit(ask("a", 0));
    assert_eq!(dropped(&effects).len(), 1);
    let verdict = verdicts(&effects)[0];
    assert_eq!(verdict.0, ticket);
    assert!(format!("{:?}", verdict.1).contains("retry_after: Some(10)"), "{verdict:?}");
}
