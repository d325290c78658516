//! Every interleaving of the calls that can meet.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc as StdArc;
use std::task::{Context, Waker};
use std::time::Duration;

use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use sluice_core::{Clock, Endpoint, EndpointId, EndpointUid, FlowKey, Priority, Time};
use sluice_flow::{Ask, BandConfig, Config, Eligibility, Engine, Outcome, Stage, TtlHeader};
use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, GlobalStrict, StaticUsageLimit};

use super::lease::{NotParked, NotStarted, Permit, Target};
use super::shared::Shared;
use super::wait::Admit;

#[derive(Debug)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// A pool with one place.
fn one_place() -> (Arc<Shared>, StdArc<TestClock>) {
    places(&[endpoint("a")])
}

fn endpoint(name: &str) -> StdArc<Endpoint> {
    let (id, uid) = (EndpointId::new("default", name), EndpointUid(name.into()));
    StdArc::new(Endpoint::new(id, uid, ([127, 0, 0, 1], 8000).into(), BTreeMap::new()))
}

/// A pool with one place on each of `endpoints`.
fn places(endpoints: &[StdArc<Endpoint>]) -> (Arc<Shared>, StdArc<TestClock>) {
    let template = BandConfig::new(StdArc::new(Fcfs), StdArc::new(GlobalStrict));
    let detector = ConcurrencyDetector { max_concurrency: 1, ..ConcurrencyDetector::default() };
    let config = Config::new(template, StdArc::new(StaticUsageLimit::default()), StdArc::new(detector));
    let clock = StdArc::new(TestClock(AtomicU64::new(0)));
    let shared = Arc::new(Shared::new(Engine::new(config), StdArc::clone(&clock) as _));
    shared.set_pool(endpoints);
    (shared, clock)
}

fn admit(shared: &Arc<Shared>) -> Admit {
    admit_within(shared, 60)
}

fn admit_within(shared: &Arc<Shared>, seconds: u64) -> Admit {
    let flow = FlowKey { tenant: "a".into(), priority: Priority(0) };
    let ttl = TtlHeader::Within(Duration::from_secs(seconds));
    Admit::submit(Arc::clone(shared), Ask { ttl, ..Ask::new(flow, Time::ZERO) })
}

fn assert_free(shared: &Arc<Shared>) {
    let stats = shared.call(|engine, now| engine.stats(now));
    assert_eq!((stats.waiting.requests, stats.leases.granted), (0, 0));
}

#[test]
fn a_waiter_is_woken_by_a_release_on_another_thread() {
    loom::model(|| {
        let (shared, _) = one_place();
        let first = block_on(admit(&shared)).expect("the gate is open");
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || drop(block_on(admit(&shared)).expect("its turn comes"))
        });
        drop(first);
        other.join().expect("it ended");
        assert_free(&shared);
    });
}

#[test]
fn a_cancel_that_meets_its_grant_returns_the_lease() {
    loom::model(|| {
        let (shared, _) = one_place();
        let first = block_on(admit(&shared)).expect("the gate is open");
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut waiting = admit(&shared);
                let polled = pin!(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_ready();
                drop(waiting);
                polled
            }
        });
        drop(first);
        other.join().expect("it ended");
        assert_free(&shared);
        drop(block_on(admit(&shared)).expect("the place is free"));
    });
}

#[test]
fn one_place_is_never_granted_twice() {
    loom::model(|| {
        let (shared, _) = one_place();
        let held = Arc::new(AtomicU64::new(0));
        let work = |shared: Arc<Shared>, held: Arc<AtomicU64>| {
            let permit = block_on(admit(&shared)).expect("its turn comes");
            assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "two hold the only place");
            held.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
        };
        let other = thread::spawn({
            let (shared, held) = (Arc::clone(&shared), Arc::clone(&held));
            move || work(shared, held)
        });
        work(Arc::clone(&shared), held);
        other.join().expect("it ended");
        assert_free(&shared);
    });
}

#[test]
fn an_expiry_that_meets_a_release_gives_one_verdict() {
    loom::model(|| {
        let (shared, clock) = one_place();
        let first = block_on(admit(&shared)).expect("the gate is open");
        let waiting = admit_within(&shared, 1);
        let timer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                clock.0.store(1_000, Ordering::SeqCst);
                shared.on_time();
            }
        });
        drop(first);
        // Granted or expired, but an answer comes, and whatever it is, nothing is lost.
        drop(block_on(waiting));
        timer.join().expect("it ended");
        assert_free(&shared);
    });
}

#[test]
fn a_cancel_that_meets_its_expiry_ends_the_request_once() {
    loom::model(|| {
        let (shared, clock) = one_place();
        let first = block_on(admit(&shared)).expect("the gate is open");
        let waiting = admit_within(&shared, 1);
        let timer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                clock.0.store(1_000, Ordering::SeqCst);
                shared.on_time();
            }
        });
        drop(waiting);
        timer.join().expect("it ended");
        let stats = shared.call(|engine, now| engine.stats(now));
        let count = |outcome| stats.totals[&Priority(0)].outcome(outcome);
        assert_eq!(count(Outcome::EvictedTtl) + count(Outcome::EvictedContextCancelled), 1);
        drop(first);
        assert_free(&shared);
    });
}

/// All endpoints but one are of no use.
#[derive(Debug)]
struct Only(StdArc<Endpoint>);

impl Eligibility for Only {
    fn allows(&self, endpoint: &Endpoint) -> bool {
        endpoint.serial() == self.0.serial()
    }
}

/// Runs on `endpoint` and nowhere else, as soon as there is room.
fn run_on(mut permit: Permit, endpoint: &StdArc<Endpoint>) {
    let target = Target { endpoint: StdArc::clone(endpoint), stage: Stage::Decode, tokens: 0 };
    loop {
        permit = match permit.start(std::slice::from_ref(&target), None) {
            Ok(in_flight) => return drop(in_flight),
            Err(NotStarted { permit, .. }) => match permit.park(StdArc::new(Only(StdArc::clone(endpoint)))) {
                Ok(admit) => block_on(admit).expect("there is room soon"),
                Err(NotParked { permit }) => permit,
            },
        };
    }
}

#[test]
fn whoever_parks_while_another_starts_and_ends_is_woken() {
    loom::model(|| {
        let endpoints = [endpoint("a"), endpoint("b")];
        let (shared, _) = places(&endpoints);
        let [one, two] = [0; 2].map(|_| block_on(admit(&shared)).expect("the gate is open"));
        let wanted = StdArc::clone(&endpoints[0]);
        let other = thread::spawn(move || run_on(one, &wanted));
        run_on(two, &endpoints[0]);
        other.join().expect("it ended");
        assert_free(&shared);
    });
}
