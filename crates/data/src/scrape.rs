//! Keeps what endpoints say of themselves up to date, by reading their pages of metrics again and again.
//!
//! ```text
//! EndpointTable ──listener──┐              ┌─> Schedule      whose turn it is (pure)
//! Scraper::set, request ────┴─bell─> Driver┼─> Page::read    one connection for each endpoint
//!                                          ├─> EngineMapping::begin, in parts: nobody waits for somebody else's page
//!                                          └─> Endpoint::set_scraped, then the observer
//! ```
//!
//! One task does it all, apart from those that serve requests: a pool of a hundred endpoints is read thousands of times a
//! second. While nothing is to be scraped there is none.

mod client;
mod driver;
mod metrics;
mod pace;
mod pool_gauges;
mod schedule;
mod source;
#[cfg(test)]
mod tests;
mod tls;
mod verdict;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use sluice_core::{Clock, Criticality, Endpoint, Tasks};
use tokio::sync::Notify;

use self::client::Page;
use self::driver::{Driver, Plan};
use crate::exposition::EngineMappings;
use crate::{EndpointTable, Snapshot};

pub use metrics::ScrapeMetrics;
pub use pool_gauges::PoolGauges;
pub use source::{ClientPair, HttpsOptions, MIN_SCRAPE_INTERVAL, MetricsPath, MetricsSource, Transport, Verify};
pub use tls::TlsFileError;

/// What is scraped, of every endpoint in the pool.
#[derive(Clone, Debug)]
pub struct Scraping {
    pub source: MetricsSource,
    pub engines: Arc<EngineMappings>,
    /// How often.
    pub interval: Duration,
}

impl Scraping {
    /// The longest that two scrapes of an endpoint begin apart by schedule, if it answers within the interval.
    pub fn longest_gap(&self) -> Duration {
        schedule::longest_gap(self.interval)
    }
}

/// Mappings are the same if they are one object: a plugin that goes on keeps its own.
impl PartialEq for Scraping {
    fn eq(&self, other: &Self) -> bool {
        let Self { source, engines, interval } = self;
        *source == other.source && *interval == other.interval && Arc::ptr_eq(engines, &other.engines)
    }
}

/// Called with an endpoint whenever it has been scraped with success, from the task that scrapes. It must be quick.
pub type Observer = Box<dyn Fn(&Arc<Endpoint>) + Send + Sync>;

/// What a scraper works with.
pub struct ScrapeContext {
    pub table: Arc<EndpointTable>,
    pub clock: Arc<dyn Clock>,
    /// Seeds the jitter.
    pub seed: u64,
    pub metrics: ScrapeMetrics,
    pub observer: Observer,
    pub tasks: Tasks,
}

/// Scrapes the endpoints of a table, once it is told what.
pub struct Scraper {
    scrape_now: ScrapeNow,
    metrics: ScrapeMetrics,
    state: Mutex<State>,
}

struct State {
    /// What the task is made of; none once it has begun.
    unborn: Option<ScrapeContext>,
    in_force: Option<InForce>,
}

struct InForce {
    scraping: Scraping,
    /// Its engines, marked by what was read before.
    engines: Arc<EngineMappings>,
}

impl InForce {
    fn after(former: Option<&Self>, scraping: Scraping) -> Self {
        let engines = match former {
            Some(former) if former.scraping.source.is_same_page(&scraping.source) => {
                Arc::new(scraping.engines.after(&former.engines))
            }
            Some(_) => Arc::new(scraping.engines.read_anew()),
            None => Arc::clone(&scraping.engines),
        };
        Self { scraping, engines }
    }
}

/// Asks for scrapes out of turn. Clones ask the same scraper.
#[derive(Clone)]
pub struct ScrapeNow(Arc<Shared>);

#[derive(Default)]
struct Shared {
    orders: Mutex<Orders>,
    /// Rung after every change of `orders`.
    bell: Notify,
    scraping: AtomicBool,
}

/// What the task is to take in.
#[derive(Default)]
struct Orders {
    /// The pool, if it has changed.
    pool: Option<Arc<Snapshot>>,
    /// What is scraped, or none for nothing, if that has changed.
    plan: Option<Option<Plan>>,
    /// Serials of endpoints to be scraped soon.
    wanted: BTreeSet<u64>,
}

impl Scraper {
    /// Scrapes nothing until [`Scraper::set`].
    pub fn new(context: ScrapeContext) -> Self {
        let metrics = context.metrics.clone();
        Self {
            scrape_now: ScrapeNow(Arc::default()),
            metrics,
            state: Mutex::new(State { unborn: Some(context), in_force: None }),
        }
    }

    /// Scrapes this from now on, or nothing. What endpoints have said so far stays. If it is the page that was scraped before,
    /// the connections stay as well, and what is remembered of earlier pages as far as they were read in the same way. An
    /// error leaves everything as it was.
    pub fn set(&self, scraping: Option<Scraping>) -> Result<(), TlsFileError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if scraping.as_ref() == state.in_force.as_ref().map(|in_force| &in_force.scraping) {
            return Ok(());
        }
        let in_force = scraping.map(|scraping| InForce::after(state.in_force.as_ref(), scraping));
        let plan = in_force.as_ref().map(|in_force| Plan::new(in_force, &self.metrics)).transpose()?;
        let shared = &self.scrape_now.0;
        if plan.is_some()
            && let Some(context) = state.unborn.take()
        {
            start(context, shared);
        }
        state.in_force = in_force;
        shared.scraping.store(plan.is_some(), Ordering::Relaxed);
        shared.order(|orders| orders.plan = Some(plan));
        Ok(())
    }

    pub fn scrape_now(&self) -> ScrapeNow {
        self.scrape_now.clone()
    }
}

impl ScrapeNow {
    /// Asks for a scrape of the endpoint with this serial that begins after now. It comes soon: after the one that runs,
    /// and 5 ms after the beginning of the last one. One that is slow rests no less for it, and one that cannot be read is
    /// not asked more often.
    pub fn request(&self, serial: u64) {
        if self.is_scraping() {
            self.0.order(|orders| orders.wanted.insert(serial));
        }
    }

    /// Whether anything is scraped at all.
    pub fn is_scraping(&self) -> bool {
        self.0.scraping.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order<T>(&self, change: impl FnOnce(&mut Orders) -> T) {
        change(&mut self.orders());
        self.bell.notify_one();
    }

    fn take_orders(&self) -> Orders {
        std::mem::take(&mut *self.orders())
    }
}

impl Plan {
    fn new(in_force: &InForce, metrics: &ScrapeMetrics) -> Result<Self, TlsFileError> {
        let InForce { scraping: Scraping { source, engines: _, interval }, engines } = in_force;
        let MetricsSource { transport, path: MetricsPath(path), port, interval: _ } = source.clone();
        let (tls, follower) = match transport {
            Transport::Http => (None, None),
            Transport::Https(options) => {
                let (tls, follower) = tls::start(options, metrics.certificate_failing())?;
                (Some(tls), follower)
            }
        };
        let page = Page::new(path, port, tls);
        Ok(Self { source: source.clone(), page, engines: Arc::clone(engines), interval: *interval, follower })
    }
}

fn start(context: ScrapeContext, shared: &Arc<Shared>) {
    let ScrapeContext { table, clock, seed, metrics, observer, tasks } = context;
    let listener = Arc::clone(shared);
    table.listen(move |snapshot| listener.order(|orders| orders.pool = Some(Arc::clone(snapshot))));
    let driver = Driver::new(Arc::clone(shared), clock, SmallRng::seed_from_u64(seed), metrics, observer);
    tasks.spawn_apart("scraper", Criticality::Critical, driver.run());
}

impl fmt::Debug for Scraper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraper").field("scrape_now", &self.scrape_now).finish_non_exhaustive()
    }
}

impl fmt::Debug for ScrapeNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScrapeNow").field("scraping", &self.is_scraping()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ScrapeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScrapeContext").field("table", &self.table).finish_non_exhaustive()
    }
}
