//! The task that scrapes: it asks the [`Schedule`] whose turn it is, reads pages side by side, and hands each to the
//! endpoint it came from.

use std::collections::{BTreeMap, btree_map};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use hyper::body::Bytes;
use rand::rngs::SmallRng;
use sluice_core::{Clock, Endpoint, Scraped, Time};

use super::client::{Connection, Page, ReadError};
use super::metrics::ScrapeMetrics;
use super::schedule::Schedule;
use super::{Observer, Orders, Shared};
use crate::Snapshot;
use crate::exposition::{EngineMappings, ScanState};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is read, and how.
pub(super) struct Plan {
    pub(super) page: Page,
    pub(super) engines: Arc<EngineMappings>,
    pub(super) interval: Duration,
    /// Keeps the page's TLS in step with its files, without end.
    pub(super) follower: Option<BoxFuture<()>>,
}

/// One endpoint, in the hands of the driver.
struct Target {
    endpoint: Arc<Endpoint>,
    /// None while it is in use, and where there is none to keep.
    connection: Option<Connection>,
    scan: ScanState,
    /// What its last page lacked.
    missing: Vec<Arc<str>>,
    /// Gives up the scrape that runs.
    running: Option<AbortHandle>,
}

impl Target {
    fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, connection: None, scan: ScanState::default(), missing: Vec::new(), running: None }
    }

    /// Gives the endpoint what its page says. The error says why that is nothing at all.
    fn take_in(&mut self, page: &[u8], began: Time, plan: &Plan, metrics: &ScrapeMetrics) -> Result<(), String> {
        let engine = plan.engines.for_labels(&self.endpoint.labels);
        let report = engine.scan(page, began, &mut self.scan);
        metrics.ignored(report.ignored_values);
        if report.broken_lines > 0 || !report.missing.is_empty() {
            metrics.incomplete_page();
        }
        if !report.missing.is_empty() && report.scraped == Scraped::at(began) {
            return Err(format!("no metrics of the engine {} in the page", engine.name()));
        }
        if report.missing != self.missing {
            let endpoint = &self.endpoint.id;
            if report.missing.is_empty() {
                tracing::info!(%endpoint, "the endpoint's page has all metrics of its engine again");
            } else {
                let missing = report.missing.join(", ");
                let what = "metrics of the engine are not in the endpoint's page";
                tracing::warn!(%endpoint, engine = %engine.name(), missing, "{what}");
            }
            self.missing = report.missing;
        }
        self.endpoint.set_scraped(report.scraped);
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// A scrape that is over.
struct Ended {
    serial: u64,
    began: Time,
    read: Result<(Bytes, Option<Connection>), ReadError>,
}

enum Event {
    Orders,
    Ended(Ended),
    Due,
}

pub(super) struct Driver {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    rng: SmallRng,
    metrics: ScrapeMetrics,
    observer: Observer,
    /// None: nothing is scraped.
    plan: Option<Plan>,
    pool: Arc<Snapshot>,
    schedule: Schedule,
    /// By the serials of their endpoints.
    targets: BTreeMap<u64, Target>,
    running: FuturesUnordered<Abortable<BoxFuture<Ended>>>,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<Shared>,
        clock: Arc<dyn Clock>,
        rng: SmallRng,
        metrics: ScrapeMetrics,
        observer: Observer,
    ) -> Self {
        Self {
            shared,
            clock,
            rng,
            metrics,
            observer,
            plan: None,
            pool: Arc::default(),
            schedule: Schedule::new(Duration::ZERO),
            targets: BTreeMap::new(),
            running: FuturesUnordered::new(),
        }
    }

    /// Scrapes as it is told, without end.
    pub(super) async fn run(mut self) {
        loop {
            self.begin_due();
            match self.next_event().await {
                Event::Orders => self.take_orders(),
                Event::Ended(ended) => self.finish(ended),
                Event::Due => {}
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let until_due = self.schedule.next_due().map(|due| due.saturating_since(self.clock.now()));
        let follower = self.plan.as_mut().and_then(|plan| plan.follower.as_mut());
        tokio::select! {
            // Orders come first: an endpoint that is gone is not to be heard any more.
            biased;
            () = self.shared.bell.notified() => Event::Orders,
            Some(ended) = self.running.next() => match ended {
                Ok(ended) => Event::Ended(ended),
                Err(_given_up) => Event::Due,
            },
            () = sleep_or_forever(until_due) => Event::Due,
            () = or_forever(follower) => Event::Due,
        }
    }

    fn take_orders(&mut self) {
        let Orders { pool, plan, wanted, .. } = self.shared.take_orders();
        let now = self.clock.now();
        if let Some(plan) = plan {
            self.targets.clear();
            self.schedule = Schedule::new(plan.as_ref().map_or(Duration::ZERO, |plan| plan.interval));
            self.plan = plan;
        }
        if let Some(pool) = pool {
            self.pool = pool;
        }
        self.follow_pool(now);
        for serial in wanted {
            self.schedule.request(now, serial);
        }
    }

    /// Makes `targets` what the plan and the pool say.
    fn follow_pool(&mut self, now: Time) {
        let mut gone = std::mem::take(&mut self.targets);
        let wanted = if self.plan.is_some() { self.pool.endpoints() } else { &[] };
        for endpoint in wanted {
            let serial = endpoint.serial();
            match self.targets.entry(serial) {
                btree_map::Entry::Occupied(_) => {}
                btree_map::Entry::Vacant(place) => {
                    let known = gone.remove(&serial).map(|mut known| {
                        // Its labels may have changed.
                        known.endpoint = Arc::clone(endpoint);
                        known
                    });
                    place.insert(known.unwrap_or_else(|| {
                        self.schedule.add(now, serial);
                        Target::new(Arc::clone(endpoint))
                    }));
                }
            }
        }
        for serial in gone.keys() {
            self.schedule.remove(*serial);
        }
    }

    fn begin_due(&mut self) {
        let now = self.clock.now();
        while let Some(serial) = self.schedule.take_due(now) {
            let (Some(plan), Some(target)) = (&self.plan, self.targets.get_mut(&serial)) else { continue };
            let (page, address, kept) = (plan.page.clone(), target.endpoint.address, target.connection.take());
            let began = self.clock.now();
            let scrape: BoxFuture<Ended> =
                Box::pin(async move { Ended { serial, began, read: page.read(address, kept).await } });
            let (handle, registration) = AbortHandle::new_pair();
            target.running = Some(handle);
            self.running.push(Abortable::new(scrape, registration));
        }
    }

    fn finish(&mut self, Ended { serial, began, read }: Ended) {
        let now = self.clock.now();
        self.metrics.took(now.saturating_since(began));
        let (Some(plan), Some(target)) = (&self.plan, self.targets.get_mut(&serial)) else { return };
        target.running = None;
        let answered = match read {
            Ok((page, connection)) => {
                target.connection = connection;
                target.take_in(&page, began, plan, &self.metrics)
            }
            Err(error) => {
                self.metrics.no_page();
                Err(error.to_string())
            }
        };
        let failures = self.schedule.finished(now, serial, answered.is_ok(), &mut self.rng).unwrap_or(0);
        let endpoint = &target.endpoint;
        match answered {
            Ok(()) => {
                if failures > 0 {
                    tracing::info!(endpoint = %endpoint.id, failures, "metrics of the endpoint can be read again");
                }
                (self.observer)(endpoint);
            }
            Err(reason) if failures == 0 => {
                tracing::warn!(endpoint = %endpoint.id, reason, "metrics of the endpoint cannot be read");
            }
            Err(reason) => tracing::debug!(endpoint = %endpoint.id, reason, failures, "no metrics"),
        }
    }
}

async fn sleep_or_forever(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => pending().await,
    }
}

async fn or_forever(future: Option<&mut BoxFuture<()>>) {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
