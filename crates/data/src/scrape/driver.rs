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
use rand::rngs::SmallRng;
use sluice_core::{Clock, Endpoint, Time};

use super::client::{Connection, Page, ReadError};
use super::metrics::ScrapeMetrics;
use super::pace::{Pace, effort};
use super::schedule::Schedule;
use super::verdict::{News, Verdict, Verdicts};
use super::{Observer, Orders, Shared};
use crate::exposition::{EngineMapping, EngineMappings, ScanReport, ScanState};
use crate::{MetricsSource, Snapshot};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is read, and how.
pub(super) struct Plan {
    /// What `page` was made of.
    pub(super) source: MetricsSource,
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
    /// That of a new endpoint while it is in use.
    scan: ScanState,
    pace: Pace,
    verdicts: Verdicts,
    /// Gives up the scrape that runs.
    running: Option<AbortHandle>,
}

impl Target {
    fn new(endpoint: Arc<Endpoint>) -> Self {
        Self {
            endpoint,
            connection: None,
            scan: ScanState::default(),
            pace: Pace::default(),
            verdicts: Verdicts::default(),
            running: None,
        }
    }

    /// Gives the endpoint what its page says, if that is anything at all. `asks_load`: it was looked for what tells how
    /// full the endpoint is.
    fn take_in(&mut self, report: ScanReport, asks_load: bool, effort: Duration, metrics: &ScrapeMetrics) -> Verdict {
        let ScanReport { mut scraped, ignored_values, broken_lines, missing } = report;
        metrics.ignored(ignored_values);
        if broken_lines > 0 || !missing.is_empty() {
            metrics.incomplete_page();
        }
        let missing = missing.join(", ");
        if scraped.is_empty() && !missing.is_empty() {
            let engine = scraped.engine.as_deref().unwrap_or_default();
            return Verdict::Unreadable(format!("no metrics of the engine {engine} in the page: {missing}"));
        }
        let tells_load = scraped.tells_load();
        let engine = scraped.engine.clone();
        scraped.lenience = self.pace.note(effort);
        self.endpoint.set_scraped(scraped);
        match (missing.is_empty(), tells_load) {
            (_, false) if !asks_load => {
                let engine = engine.as_deref().unwrap_or_default();
                let asked = format!("the engine {engine} has neither queuedRequestsSpec nor kvUsageSpec");
                let lacks = if missing.is_empty() { missing } else { format!("; not in the page: {missing}") };
                Verdict::Unasked(format!("{asked}: nothing tells how full it is{lacks}"))
            }
            // What a counter grows by is not known at first.
            (true, _) => Verdict::Whole,
            (false, true) => Verdict::Incomplete(missing),
            (false, false) => Verdict::Silent(missing),
        }
    }

    /// Tells the log what has changed, and whoever looks at the endpoint.
    fn judge(&mut self, now: Time, verdict: Verdict) {
        let fault = verdict.fault();
        if fault.as_ref() != self.endpoint.scrape_fault().as_deref() {
            self.endpoint.set_scrape_fault(fault);
        }
        self.tell(now, verdict);
    }

    /// Tells the log what has changed.
    fn tell(&mut self, now: Time, verdict: Verdict) {
        let Some(News { before, now, changes, failures }) = self.verdicts.note(now, verdict) else { return };
        let endpoint = &self.endpoint.id;
        match (before, now) {
            (_, Verdict::Unreadable(reason)) => {
                tracing::warn!(%endpoint, reason, changes, "metrics of the endpoint cannot be read");
            }
            (_, Verdict::Incomplete(missing)) => {
                tracing::warn!(%endpoint, missing, changes, "metrics of the engine are not in the endpoint's page");
            }
            (_, Verdict::Silent(missing)) => {
                let what =
                    "the endpoint's page does not tell how full it is: a utilization-detector takes it for stale";
                tracing::warn!(%endpoint, missing, changes, "{what}");
            }
            (_, Verdict::Unasked(reason)) => {
                tracing::info!(%endpoint, reason, changes, "nothing in the endpoint's page tells how full it is");
            }
            (Verdict::Incomplete(_) | Verdict::Silent(_) | Verdict::Unasked(_), Verdict::Whole) => {
                tracing::info!(%endpoint, changes, "the endpoint's page has all metrics of its engine again");
            }
            (Verdict::Unreadable(_) | Verdict::Whole, Verdict::Whole) => {
                tracing::info!(%endpoint, failures, changes, "metrics of the endpoint can be read again");
            }
        }
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
    scan: ScanState,
    read: Result<Read, ReadError>,
}

/// A page that was read.
struct Read {
    report: ScanReport,
    /// It was looked for what tells how full the endpoint is.
    asks_load: bool,
    bytes: usize,
    connection: Option<Connection>,
}

/// What is read of a page before others have their turn: well below a millisecond.
const PART: usize = 64 << 10;

/// Scans a page without holding up anybody for long.
pub(super) async fn scan_in_parts(
    engine: &EngineMapping,
    page: &[u8],
    began: Time,
    state: &mut ScanState,
) -> ScanReport {
    let mut scan = engine.begin(page);
    while !scan.advance(PART) {
        tokio::task::yield_now().await;
    }
    scan.finish(began, state)
}

enum Event {
    Orders,
    Ended(Box<Ended>),
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
    running: FuturesUnordered<Abortable<BoxFuture<Box<Ended>>>>,
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
                Event::Ended(ended) => self.finish(*ended),
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
            // Whatever was wrong with the files of the former plan: nobody follows them any more.
            self.metrics.certificate_failing().set(0);
            self.take_plan(plan, now);
        }
        if let Some(pool) = pool {
            self.pool = pool;
        }
        self.follow_pool(now);
        for serial in wanted {
            self.schedule.request(now, serial);
        }
    }

    /// What is known of a page that is read on is kept, whatever else changes.
    fn take_plan(&mut self, plan: Option<Plan>, now: Time) {
        let interval = plan.as_ref().map_or(Duration::ZERO, |plan| plan.interval);
        let both = self.plan.as_ref().zip(plan.as_ref());
        if both.is_some_and(|(before, after)| before.source.is_same_page(&after.source)) {
            self.schedule.set_interval(now, interval, &mut self.rng);
        } else {
            // What was wrong with pages that may be read no more is wrong no more.
            for target in std::mem::take(&mut self.targets).values() {
                target.endpoint.set_scrape_fault(None);
            }
            self.schedule = Schedule::new(interval);
        }
        self.plan = plan;
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
            let (page, engines, endpoint) =
                (plan.page.clone(), Arc::clone(&plan.engines), Arc::clone(&target.endpoint));
            let (kept, mut scan) = (target.connection.take(), std::mem::take(&mut target.scan));
            let began = self.clock.now();
            let scrape: BoxFuture<Box<Ended>> = Box::pin(async move {
                let read = match page.read(endpoint.address, kept).await {
                    Ok((page, connection)) => {
                        let engine = engines.for_labels(&endpoint.labels);
                        let report = scan_in_parts(engine, &page, began, &mut scan).await;
                        Ok(Read { report, asks_load: engine.tells_load(), bytes: page.len(), connection })
                    }
                    Err(error) => Err(error),
                };
                Box::new(Ended { serial, began, scan, read })
            });
            let (handle, registration) = AbortHandle::new_pair();
            target.running = Some(handle);
            self.running.push(Abortable::new(scrape, registration));
        }
    }

    fn finish(&mut self, Ended { serial, began, scan, read }: Ended) {
        let now = self.clock.now();
        let took = now.saturating_since(began);
        self.metrics.took(took);
        let Some(target) = self.targets.get_mut(&serial) else { return };
        target.running = None;
        target.scan = scan;
        let (verdict, effort) = match read {
            Ok(Read { report, asks_load, bytes, connection }) => {
                target.connection = connection;
                let effort = effort(took, bytes);
                (target.take_in(report, asks_load, effort, &self.metrics), effort)
            }
            Err(error) => {
                self.metrics.no_page();
                (Verdict::Unreadable(shortened(error.to_string())), took)
            }
        };
        let is_page = !matches!(verdict, Verdict::Unreadable(_));
        let failures = self.schedule.finished(now, serial, is_page.then_some(effort), &mut self.rng);
        if let Verdict::Unreadable(reason) = &verdict {
            tracing::debug!(endpoint = %target.endpoint.id, reason, failures, "no metrics");
        } else {
            (self.observer)(&target.endpoint);
        }
        target.judge(now, verdict);
    }
}

/// Of what an endpoint makes others say, no more than this gets into the log at once, in bytes.
const MAX_REASON: usize = 256;

pub(super) fn shortened(mut reason: String) -> String {
    if reason.len() > MAX_REASON {
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        reason.push('…');
    }
    reason
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
