//! Requests per second through the lock, on 1 and on 2 threads: `admission_throughput [SECONDS]`.
//!
//! Each thread admits, starts and finishes one request after the other, while the gate is open; then it has one request
//! after the other wait and withdraws it, while there is no endpoint.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use sluice_core::{
    BoxFuture, Clock, Criticality, Endpoint, EndpointId, EndpointUid, FlowKey, Priority, Spawn, SystemClock, Tasks,
    TerminationCause, Time,
};
use sluice_flow::{Ask, BandConfig, Config, Ended, Stage};
use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};
use sluice_router::admission::{Admission, Target};

/// Nothing here waits for a time.
struct NoTimer;

impl Spawn for NoTimer {
    fn spawn(&self, _: &'static str, _: Criticality, body: BoxFuture) {
        drop(body);
    }
}

#[expect(clippy::print_stdout, reason = "the result is for whoever ran the command")]
#[expect(clippy::disallowed_methods, reason = "it sleeps while the threads work")]
fn main() {
    let seconds = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(2);
    let works: [(&str, Work, usize); 2] =
        [("admitted, started and finished", turn_over, 1), ("queued and withdrawn", wait_and_leave, 0)];
    for (what, work, endpoints) in works {
        for threads in [1, 2] {
            let (admission, endpoint) = admission();
            admission.set_pool(&std::slice::from_ref(&endpoint)[..endpoints]);
            let stop = AtomicBool::new(false);
            let clock = SystemClock::start();
            let done: u64 = thread::scope(|scope| {
                let worker = |tenant: usize| {
                    let (admission, endpoint, stop) = (&admission, &endpoint, &stop);
                    scope.spawn(move || work(admission, endpoint, &format!("tenant-{tenant}"), stop))
                };
                let workers: Vec<_> = (0..threads).map(worker).collect();
                thread::sleep(Duration::from_secs(seconds));
                stop.store(true, Ordering::Relaxed);
                workers.into_iter().map(|worker| worker.join().unwrap_or_default()).sum()
            });
            let nanos = clock.now().saturating_since(Time::ZERO).as_nanos();
            let per_second = u128::from(done) * 1_000_000_000 / nanos.max(1);
            println!("{threads} thread(s): {per_second} requests per second {what}");
        }
    }
}

/// Returns how many requests it was done with until it had to stop.
type Work = fn(&Admission, &Arc<Endpoint>, &str, &AtomicBool) -> u64;

fn admission() -> (Admission, Arc<Endpoint>) {
    let template = BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin));
    let config = Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(ConcurrencyDetector::default()));
    let (id, uid) = (EndpointId::new("default", "a"), EndpointUid("a".into()));
    let endpoint = Arc::new(Endpoint::new(id, uid, ([127, 0, 0, 1], 8000).into(), BTreeMap::new()));
    let admission = Admission::start(config, Arc::new(SystemClock::start()), &Tasks::new(NoTimer));
    (admission, endpoint)
}

fn turn_over(admission: &Admission, endpoint: &Arc<Endpoint>, tenant: &str, stop: &AtomicBool) -> u64 {
    let tenant: Arc<str> = tenant.into();
    let target = [Target { endpoint: Arc::clone(endpoint), stage: Stage::Decode, tokens: 0 }];
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let flow = FlowKey { tenant: Arc::clone(&tenant), priority: Priority(0) };
        let mut admit = admission.admit(Ask::new(flow, Time::ZERO));
        let polled = pin!(&mut admit).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(permit)) = polled else { continue };
        let Ok(running) = permit.start(&target, None) else { continue };
        running.finish(Ended { cause: TerminationCause::Natural, usage: None });
        done += 1;
    }
    done
}

fn wait_and_leave(admission: &Admission, _: &Arc<Endpoint>, tenant: &str, stop: &AtomicBool) -> u64 {
    let tenant: Arc<str> = tenant.into();
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let flow = FlowKey { tenant: Arc::clone(&tenant), priority: Priority(0) };
        let mut admit = admission.admit(Ask::new(flow, Time::ZERO));
        let polled = pin!(&mut admit).poll(&mut Context::from_waker(Waker::noop()));
        done += u64::from(polled.is_pending());
    }
    done
}
