//! The admission engine in use: one lock around it, whoever waits beside it, one timer.
//!
//! ```text
//!  admit(ask) ──> Admit ──await──> Permit ──start──> InFlight ──finish──> gone
//!                   ^                 │
//!                   └──── park ───────┘        dropped at any point: given back at once, exactly once
//! ```
//!
//! Each call takes the lock, reads the clock, calls the engine, moves its effects to those who wait for them,
//! and wakes them once the lock is free. Effects own nothing: a permit that was dropped under the lock would
//! come back to it.
//!
//! The lock is held for microseconds, never across an await, and makes dropping a waiting future
//! synchronous: when `drop` returns, its place is free.

mod keys;
mod lease;
mod poison;
mod shared;
mod sync;
mod timer;
mod wait;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::Arc as StdArc;

use prometheus::Histogram;
use sluice_core::{Clock, Criticality, Endpoint, Priority, Tasks, Time};
use sluice_flow::{Ask, Config, Engine, Outcome, Signal, Stats};

pub(crate) use self::keys::members;
pub use self::lease::{InFlight, NotParked, NotStarted, Permit, Target};
pub use self::wait::{Admit, Rejection};

use self::shared::Shared;
use self::sync::Arc;

/// Lets requests into the pool. Clones share one engine.
#[derive(Clone)]
pub struct Admission {
    shared: Arc<Shared>,
}

impl Admission {
    /// An engine with an empty pool, and its timer, which runs as long as `tasks` does.
    pub fn start(config: Config, clock: StdArc<dyn Clock>, tasks: &Tasks) -> Self {
        let shared = Arc::new(Shared::new(Engine::new(config), clock));
        tasks.spawn("admission timer", Criticality::Critical, timer::run(Arc::clone(&shared)));
        Self { shared }
    }

    /// Asks for admission. The request is in the engine when this returns; where the gate is open, the
    /// future is ready. Dropping the future withdraws the request.
    pub fn admit(&self, ask: Ask) -> Admit {
        Admit::submit(Arc::clone(&self.shared), ask)
    }

    /// Refuses, and counts, a request that would be refused whatever its body says. None does not promise admission.
    pub fn refuse_by_headers(&self, ask: &Ask) -> Option<Rejection> {
        self.shared.call(|engine, now| {
            let outcome = engine.refuse_by_headers(now, ask)?;
            Some(Rejection { outcome, retry_after: engine.retry_after(outcome, ask.flow.priority) })
        })
    }

    /// The most bytes that a request of `priority` may have to be let in at all; none where nothing bounds them.
    pub fn largest_request(&self, priority: Priority) -> Option<u64> {
        self.shared.look(|engine, _| engine.largest_request(priority))
    }

    /// Seconds, in `1..=15`, after which a request of `priority` has a fair chance to get in: the base of a jittered
    /// `Retry-After`.
    pub fn retry_after(&self, priority: Priority) -> u8 {
        // As for one that finds the queue full: it has to wait for those that are there.
        let outcome = Outcome::RejectedCapacity;
        self.shared.call(|engine, _| engine.retry_after(outcome, priority)).unwrap_or(1)
    }

    /// When the wait of a request of `priority`, which asked for admission at `arrival` and has no time limit of its own,
    /// ends at the latest, as things are; none if nothing ends it.
    pub fn wait_ends(&self, priority: Priority, arrival: Time) -> Option<Time> {
        self.shared.look(|engine, _| engine.wait_ends(priority, arrival))
    }

    /// Puts `endpoints` in place of the present pool.
    pub fn set_pool(&self, endpoints: &[StdArc<Endpoint>]) {
        self.shared.set_pool(endpoints);
    }

    /// Tells the engine of objectives, configuration or the end.
    pub fn observe(&self, signal: Signal) {
        self.shared.observe(signal);
    }

    /// Tells the engine what `endpoint` last said of itself.
    pub fn scraped(&self, endpoint: &Endpoint) {
        if let Some(sample) = endpoint.scraped() {
            self.shared.call(|engine, now| engine.scraped(now, keys::key_of(endpoint), &sample));
        }
    }

    /// Has `scrape` called, from now on, with the [serial number](Endpoint::serial) of each endpoint that should be scraped
    /// at once because somebody waits for what it says. It must not block. The first call counts.
    pub fn on_doubt(&self, scrape: impl Fn(u64) + Send + Sync + 'static) {
        self.shared.scrape_now.get_or_init(|| Box::new(scrape));
    }

    pub fn stats(&self) -> Stats {
        self.shared.look(Engine::stats)
    }

    /// Observes in `passes`, from now on, how long each change of the engine takes, in seconds. The first call counts.
    pub fn observe_passes(&self, passes: Histogram) {
        self.shared.passes.get_or_init(|| passes);
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admission")
    }
}
