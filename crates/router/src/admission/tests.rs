use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::SeedableRng;
use sluice_core::{
    BoxFuture, Clock, Criticality, DropReason, Endpoint, EndpointId, EndpointUid, FlowKey, Priority, Scraped, Spawn,
    Tasks, TerminationCause, Time,
};
use sluice_flow::{
    Ask, BandConfig, Config, Eligibility, Ended, EvictionConfig, Outcome, RevokeCause, Signal, Stage,
    TokensAtFirstChunk, TtlHeader,
};
use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};

use super::{Admission, Admit, InFlight, Permit, Rejection, Target};

/// Starts tasks on the runtime of the test.
struct Runtime;

impl Spawn for Runtime {
    #[expect(clippy::disallowed_methods, reason = "the runtime ends with the test")]
    fn spawn(&self, _: &'static str, _: Criticality, body: BoxFuture) {
        drop(tokio::spawn(body));
    }
}

/// The runtime's clock, which a test may stop and move; counts how often it is read.
#[derive(Debug)]
struct PausedClock {
    start: tokio::time::Instant,
    reads: AtomicU64,
}

impl PausedClock {
    #[expect(clippy::disallowed_methods, reason = "this is a clock")]
    fn start() -> Arc<Self> {
        Arc::new(Self { start: tokio::time::Instant::now(), reads: AtomicU64::new(0) })
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Time {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Time::ZERO.saturating_add(self.start.elapsed())
    }
}

fn config() -> Config {
    let template = BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin));
    let detector = ConcurrencyDetector { max_concurrency: 1, ..ConcurrencyDetector::default() };
    Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(detector))
}

fn endpoint(name: &str) -> Arc<Endpoint> {
    let (id, uid) = (EndpointId::new("default", name), EndpointUid(name.into()));
    Arc::new(Endpoint::new(id, uid, ([127, 0, 0, 1], 8000).into(), BTreeMap::new()))
}

fn admission(config: Config, endpoints: &[Arc<Endpoint>]) -> (Admission, Arc<PausedClock>) {
    let clock = PausedClock::start();
    let admission = Admission::start(config, Arc::clone(&clock) as _, &Tasks::new(Runtime));
    admission.set_pool(endpoints);
    (admission, clock)
}

fn ask(priority: i32) -> Ask {
    Ask::new(FlowKey { tenant: "a".into(), priority: Priority(priority) }, Time::ZERO)
}

/// The answer, if it is there already.
fn now_or_never<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn at_once(mut admit: Admit) -> Permit {
    now_or_never(&mut admit).expect("the gate is open").expect("it is let in")
}

fn run_on(permit: Permit, endpoint: &Arc<Endpoint>) -> InFlight {
    let target = Target { endpoint: Arc::clone(endpoint), stage: Stage::Decode, tokens: 0 };
    permit.start(&[target], None).expect("there is room")
}

#[derive(Debug)]
struct Named(&'static str);

impl Eligibility for Named {
    fn allows(&self, endpoint: &Endpoint) -> bool {
        &*endpoint.id.name == self.0
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_gate_answers_without_waiting() {
    let (admission, _) = admission(config(), &[endpoint("a")]);
    drop(at_once(admission.admit(ask(0))));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_woken_when_a_place_is_free() {
    let server = endpoint("a");
    let (admission, _) = admission(config(), &[Arc::clone(&server)]);
    let running = run_on(at_once(admission.admit(ask(0))), &server);
    let waiting = admission.admit(ask(0));
    let finish = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        running.finish(Ended { cause: TerminationCause::Natural, usage: None });
    };
    let (permit, ()) = tokio::join!(waiting, finish);
    drop(permit.expect("it is let in"));
    let stats = admission.stats();
    assert_eq!((stats.leases.granted, stats.leases.started), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_successor_shows_the_room_that_its_predecessor_has_left_until_the_time_is_over() {
    let server = endpoint("a");
    let (admission, clock) = admission(config(), &[Arc::clone(&server)]);
    admission.observe(Signal::Inherit { stale: Duration::from_secs(1) });
    assert!(server.load().has_room());
    server.set_scraped(Scraped { running: Some(1), ..Scraped::at(clock.now()) });
    admission.scraped(&server);
    assert!(!server.load().has_room());
    let permit = admission.admit(ask(0)).await.expect("it is let in");
    assert_eq!(clock.now(), Time::from_secs(2));
    assert!(server.load().has_room());
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_waiting_request_frees_its_place_in_the_queue_at_once() {
    let (admission, _) = admission(config(), &[]);
    let mut waiting = admission.admit(ask(0));
    assert!(now_or_never(&mut waiting).is_none());
    assert_eq!(admission.stats().waiting.requests, 1);
    drop(waiting);
    assert_eq!(admission.stats().waiting.requests, 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_grant_nobody_has_seen_gives_it_to_the_next() {
    let (admission, _) = admission(config(), &[endpoint("a")]);
    let first = admission.admit(ask(0));
    let second = admission.admit(ask(0));
    drop(first);
    drop(at_once(second));
    let totals = &admission.stats().totals[&Priority(0)];
    assert_eq!(totals.outcome(Outcome::EvictedContextCancelled), 1, "whoever waited for the first left");
    assert_eq!(totals.outcome(Outcome::EvictedOther), 1, "the second was given up by whoever held it");
}

/// That cannot happen: a permit is known until it is used. In production the request gets an answer all the same.
#[tokio::test(start_paused = true)]
#[cfg_attr(debug_assertions, should_panic(expected = "the engine knows nothing of this permit"))]
async fn a_permit_that_the_engine_does_not_know_is_refused() {
    let (admission, _) = admission(config(), &[endpoint("a")]);
    let shared = Arc::clone(&admission.shared);
    let (seat, ticket) = shared.call_seated(|engine, now, waiter| engine.submit(now, ask(0), waiter));
    shared.call(|engine, now| engine.cancel(now, ticket));
    let parked = Permit::new(shared, seat, ticket).park(Arc::new(Named("a")));
    let refused = now_or_never(&mut parked.expect("nobody knows of room")).expect("it is answered at once");
    assert_eq!(refused.map(drop).map_err(|rejection| rejection.outcome), Err(Outcome::EvictedOther));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_started_request_frees_its_place_and_its_count() {
    let server = endpoint("a");
    let (admission, _) = admission(config(), &[Arc::clone(&server)]);
    let running = run_on(at_once(admission.admit(ask(0))), &server);
    assert_eq!(server.load().requests(), 1);
    drop(running);
    assert_eq!(server.load().requests(), 0);
    drop(at_once(admission.admit(ask(0))));
}

#[tokio::test(start_paused = true)]
async fn the_timer_ends_a_request_at_its_deadline() {
    let (admission, clock) = admission(config(), &[]);
    let in_two = Ask { ttl: TtlHeader::Within(Duration::from_secs(2)), ..ask(0) };
    let (late, soon) = tokio::join!(admission.admit(ask(0)), async {
        let rejection = admission.admit(in_two).await.map(drop);
        (rejection, clock.now())
    });
    let (rejection, at) = soon;
    assert_eq!(rejection.map_err(|rejection| rejection.outcome), Err(Outcome::EvictedNoEndpoints));
    assert!(at >= Time::from_secs(2) && at < Time::from_millis(2_002), "{at}");
    let late = late.map(drop).expect_err("there is no endpoint");
    assert_eq!(late.reason(), Some(DropReason::RejectedNoEndpoints));
    assert!(clock.now() < Time::from_millis(60_002), "{}", clock.now());
}

#[tokio::test(start_paused = true)]
async fn an_idle_engine_is_never_woken() {
    let (admission, clock) = admission(config(), &[endpoint("a")]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = clock.reads.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(clock.reads.load(Ordering::Relaxed), before);
    drop(admission);
}

/// The timer stays armed for the first of the deadlines, rather than be set anew with every one that goes: that one time it
/// finds nothing to do.
#[tokio::test(start_paused = true)]
async fn after_a_burst_the_timer_looks_once_and_never_again() {
    let (admission, clock) = admission(config(), &[endpoint("a")]);
    let running = at_once(admission.admit(ask(0)));
    let burst: Vec<Admit> = (0..100).map(|_| admission.admit(ask(0))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(burst);
    drop(running);
    let before = clock.reads.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let after = clock.reads.load(Ordering::Relaxed);
    assert!(after - before <= 1, "{}", after - before);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(clock.reads.load(Ordering::Relaxed), after);
    drop(admission);
}

#[tokio::test(start_paused = true)]
async fn a_full_endpoint_leaves_the_permit_and_parking_waits_for_room() {
    let servers = [endpoint("a"), endpoint("b")];
    let (admission, _) = admission(config(), &servers);
    let running = run_on(at_once(admission.admit(ask(0))), &servers[0]);
    let permit = at_once(admission.admit(ask(0)));
    let target = Target { endpoint: Arc::clone(&servers[0]), stage: Stage::Decode, tokens: 0 };
    let refused = permit.start(&[target], None).expect_err("it is full");
    assert_eq!(refused.endpoint.id, servers[0].id);
    let mut parked = refused.permit.park(Arc::new(Named("a"))).expect("there is no room");
    assert!(now_or_never(&mut parked).is_none());
    drop(run_on(at_once(admission.admit(ask(0))), &servers[1]));
    assert!(now_or_never(&mut parked).is_none(), "room elsewhere is no use");
    drop(running);
    run_on(at_once(parked), &servers[0]).finish(Ended { cause: TerminationCause::Natural, usage: None });
    let permit = at_once(admission.admit(ask(0)));
    permit.park(Arc::new(Named("a"))).map(drop).expect_err("there is room");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_to_go_is_told() {
    let server = endpoint("a");
    let (admission, _) =
        admission(Config { eviction: Some(EvictionConfig::default()), ..config() }, &[Arc::clone(&server)]);
    let mut batch = run_on(at_once(admission.admit(ask(-1))), &server);
    let mut urgent = admission.admit(ask(0));
    assert_eq!(batch.revoked().await, RevokeCause::Eviction);
    assert!(now_or_never(&mut urgent).is_none());
    batch.finish(Ended { cause: TerminationCause::Evicted, usage: None });
    drop(at_once(urgent));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_prefill_frees_its_endpoint() {
    let labelled = |name: &str, role: &str| {
        Arc::new(endpoint(name).relabelled(BTreeMap::from([("llm-d.ai/role".to_owned(), role.to_owned())])))
    };
    let servers = [labelled("p", "prefill"), labelled("d", "decode")];
    let (admission, _) = admission(config(), &servers);
    let permit = at_once(admission.admit(ask(0)));
    let target = |index: usize, stage| Target { endpoint: Arc::clone(&servers[index]), stage, tokens: 0 };
    let targets = [target(1, Stage::Decode), target(0, Stage::Prefill)];
    let mut running = permit.start(&targets, None).expect("there is room");
    assert_eq!([0, 1].map(|index: usize| servers[index].load().requests()), [1, 1]);
    running.first_chunk(TokensAtFirstChunk::Keep);
    assert_eq!([0, 1].map(|index: usize| servers[index].load().requests()), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn draining_answers_everyone_who_waits() {
    let (admission, _) = admission(config(), &[]);
    let waiting = admission.admit(ask(0));
    admission.observe(Signal::Drain);
    let rejection = waiting.await.map(drop).expect_err("admission has closed");
    assert_eq!(rejection.reason(), Some(DropReason::RejectedShuttingDown));
    let refused = admission.refuse_by_headers(&ask(0)).map(|rejection| rejection.outcome);
    assert_eq!(refused, Some(Outcome::RejectedOther));
}

#[test]
fn retry_after_lies_between_the_estimate_and_twice_that() {
    let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
    let rejection = Rejection { outcome: Outcome::RejectedCapacity, retry_after: Some(3) };
    let mut seen: Vec<u64> =
        (0..200).filter_map(|_| rejection.retry_after(&mut rng)).map(|after| after.as_secs()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, [3, 4, 5, 6]);
    let never = Rejection { outcome: Outcome::EvictedContextCancelled, retry_after: None };
    assert_eq!(never.retry_after(&mut rng), None);
}

/// An eligibility that panics, as broken code under the lock would.
#[derive(Debug)]
struct Broken;

impl Eligibility for Broken {
    fn allows(&self, _: &Endpoint) -> bool {
        panic!("broken on purpose")
    }
}

/// Not a test by itself: the process that the next one looks at.
#[tokio::test]
#[ignore = "ends the process"]
async fn panics_under_the_lock() {
    let (admission, _) = admission(config(), &[endpoint("a")]);
    let waiting = admission.admit(Ask { eligible: Some(Arc::new(Broken)), ..ask(0) });
    drop(waiting);
}

#[test]
fn a_panic_under_the_lock_ends_the_process() {
    let program = std::env::current_exe().expect("a test knows its program");
    let name = "admission::tests::panics_under_the_lock";
    let output = Command::new(program).args([name, "--exact", "--ignored"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(70), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(start_paused = true)]
async fn a_panic_elsewhere_gives_back_what_it_held() {
    let server = endpoint("a");
    let (admission, _) = admission(config(), &[Arc::clone(&server)]);
    let running = run_on(at_once(admission.admit(ask(0))), &server);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _running = running;
        panic!("on purpose");
    }));
    assert!(result.is_err());
    drop(at_once(admission.admit(ask(0))));
}
