//! The health service on a port of its own, with a thread and a runtime of its own: it answers also while everything that
//! serves requests is busy.

use std::time::Duration;

use anyhow::Context as _;
use sluice_core::{Criticality, Tasks};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::health::Readiness;
use crate::listen::connections;
use crate::pulse::Pulse;

/// A connection on which nothing arrives for this long is asked for a sign of life, and closed if none comes within the
/// same time again.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Serves on `listener` from now on, as a critical one of `tasks`, and notices if the runtime of the others is stuck.
pub(crate) fn start(listener: TcpListener, readiness: Readiness, tasks: &Tasks) -> anyhow::Result<()> {
    start_with(Pulse::default(), listener, readiness, tasks)
}

fn start_with(pulse: Pulse, listener: TcpListener, readiness: Readiness, tasks: &Tasks) -> anyhow::Result<()> {
    tasks.spawn("pulse", Criticality::Critical, pulse.clone().beat());
    // Known to the runtime that it was opened on, but not to the one that is to serve it.
    let listener = listener.into_std().context("handing over the health port")?;
    tasks.spawn_apart("health", Criticality::Critical, serve(listener, readiness, pulse));
    Ok(())
}

async fn serve(listener: std::net::TcpListener, readiness: Readiness, pulse: Pulse) {
    let watched = readiness.clone();
    let watching = pulse.watch(|stuck| {
        // Whoever asks hears it even if the log holds everybody up.
        match watched.set_stuck(stuck) {
            true if stuck => tracing::error!("no thread that serves requests gets on: liveness fails"),
            true => tracing::warn!("the threads that serve requests get on again"),
            false => {}
        }
    });
    let serving = async {
        let incoming = connections(TcpListener::from_std(listener)?, None, CancellationToken::new());
        let mut server =
            Server::builder().http2_keepalive_interval(Some(KEEPALIVE)).http2_keepalive_timeout(Some(KEEPALIVE));
        anyhow::Ok(server.add_service(readiness.into_server()).serve_with_incoming(incoming).await?)
    };
    let served = tokio::select! {
        served = serving => served,
        // It has no end.
        () = watching => Ok(()),
    };
    tracing::error!(?served, "health server ended");
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::Instant;

    use tokio::runtime::{Builder, Runtime};
    use tonic::transport::Endpoint;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;
    use crate::tasks::RuntimeTasks;

    const WORKERS: usize = 2;

    /// A runtime that serves, with its health.
    struct Serving {
        runtime: Runtime,
        address: SocketAddr,
        readiness: Readiness,
    }

    impl Serving {
        fn start() -> Self {
            Self::start_with(Pulse::default())
        }

        fn start_with(pulse: Pulse) -> Self {
            let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().unwrap();
            let (tasks, _reports) = RuntimeTasks::new(runtime.handle().clone());
            let readiness = Readiness::new(false);
            let entered = runtime.enter();
            let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = listener.local_addr().unwrap();
            start_with(pulse, listener, readiness.clone(), &Tasks::new(tasks)).unwrap();
            drop(entered);
            Self { runtime, address, readiness }
        }
    }

    /// Work that takes a whole core each, and ends with this, however a test ends.
    #[derive(Default)]
    struct Busy {
        begun: Arc<AtomicUsize>,
        over: Arc<AtomicBool>,
    }

    impl Busy {
        fn turn(&self) -> impl FnOnce() + Send + 'static {
            let (begun, over) = (Arc::clone(&self.begun), Arc::clone(&self.over));
            move || {
                begun.fetch_add(1, Ordering::Relaxed);
                while !over.load(Ordering::Relaxed) {}
            }
        }

        fn wait_for(&self, turns: usize) {
            while self.begun.load(Ordering::Relaxed) < turns {
                thread::yield_now();
            }
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    /// What a probe hears that comes now, as a kubelet asks: on a connection of its own.
    fn probe(address: SocketAddr, service: &str) -> ServingStatus {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
            let mut client = HealthClient::new(endpoint.connect().await.unwrap());
            let request = HealthCheckRequest { service: service.to_owned() };
            client.check(request).await.unwrap().into_inner().status()
        })
    }

    /// Probes ten times, and prints how long the slowest of them took.
    #[expect(clippy::disallowed_methods, reason = "measures how long other threads take")]
    fn slowest_probe(address: SocketAddr, what: &str) -> Duration {
        let took = (0..10).map(|_| {
            let start = Instant::now();
            for service in ["readiness", "liveness"] {
                assert_eq!(probe(address, service), ServingStatus::Serving, "{service}");
            }
            start.elapsed()
        });
        let slowest = took.max().unwrap();
        println!("the slowest of ten probes while {what}: {slowest:?}");
        slowest
    }

    #[test]
    fn it_answers_within_a_second_while_no_worker_of_the_runtime_that_serves_gets_on() {
        let serving = Serving::start();
        serving.readiness.set_pool_known(true);
        let busy = Busy::default();
        for _ in 0..WORKERS {
            let turn = busy.turn();
            serving.runtime.spawn(async move { turn() });
        }
        busy.wait_for(WORKERS);
        let stuck = serving.runtime.spawn(async {});
        let slowest = slowest_probe(serving.address, "all workers are stuck");
        assert!(!stuck.is_finished() && slowest < Duration::from_secs(1), "{slowest:?}");
    }

    /// Waits until both services have this status.
    fn wait_for(serving: &Serving, expected: ServingStatus) {
        let is_there = || ["readiness", "liveness"].iter().all(|service| probe(serving.address, service) == expected);
        // Each look takes a connection: seconds.
        assert!((0..2_000).any(|_| is_there()), "not {expected:?} in time");
    }

    #[test]
    fn liveness_fails_while_no_worker_comes_back_for_long_and_only_then() {
        // A minute of looks in a little more than half a second.
        let serving = Serving::start_with(Pulse::every(Duration::from_millis(10)));
        serving.readiness.set_pool_known(true);
        let one = Busy::default();
        let turn = one.turn();
        serving.runtime.spawn(async move { turn() });
        one.wait_for(1);
        // For long enough to be noticed.
        slowest_probe(serving.address, "one worker is stuck");
        wait_for(&serving, ServingStatus::Serving);
        let other = Busy::default();
        let turn = other.turn();
        serving.runtime.spawn(async move { turn() });
        wait_for(&serving, ServingStatus::NotServing);
        drop(other);
        wait_for(&serving, ServingStatus::Serving);
        drop(one);
    }

    #[test]
    fn it_answers_within_a_second_while_more_threads_than_there_are_cores_want_to_run() {
        let serving = Serving::start();
        serving.readiness.set_pool_known(true);
        let busy = Busy::default();
        let threads = 4 * thread::available_parallelism().unwrap().get();
        for _ in 0..threads {
            thread::spawn(busy.turn());
        }
        busy.wait_for(threads);
        let slowest = slowest_probe(serving.address, "every core is wanted four times");
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    }
}
