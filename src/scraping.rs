//! Connects what endpoints say of themselves with those who act on it.

use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use sluice_core::{SystemClock, Tasks};
use sluice_data::{EndpointTable, Observer, PoolGauges, ScrapeContext, ScrapeMetrics, Scraper};
use sluice_router::admission::Admission;

use crate::flags::Flags;

/// What the scraper is connected with.
#[derive(Debug)]
pub(crate) struct Connections<'a> {
    pub(crate) flags: &'a Flags,
    pub(crate) table: &'a Arc<EndpointTable>,
    pub(crate) clock: &'a Arc<SystemClock>,
    pub(crate) registry: &'a Registry,
    pub(crate) admission: Option<&'a Admission>,
    /// Seeds the jitter.
    pub(crate) seed: u64,
    pub(crate) legacy_names: bool,
    pub(crate) tasks: &'a Tasks,
}

/// A scraper that has nothing to do yet. What it brings goes to the admission engine, which may ask it for more.
pub(crate) fn connect(connections: &Connections<'_>) -> anyhow::Result<Scraper> {
    let Connections { flags, table, clock, registry, admission, seed, legacy_names, tasks } = *connections;
    let observer: Observer = match admission.cloned() {
        Some(admission) => Box::new(move |endpoint| admission.scraped(endpoint)),
        None => Box::new(|_| {}),
    };
    let scraper = Scraper::new(ScrapeContext {
        table: Arc::clone(table),
        clock: clock.clone(),
        seed,
        metrics: ScrapeMetrics::register(registry, legacy_names).context("registering metrics")?,
        observer,
        tasks: tasks.clone(),
    });
    if let Some(admission) = admission {
        let scrape_now = scraper.scrape_now();
        admission.on_doubt(move |serial| scrape_now.request(serial));
    }
    let gauges = PoolGauges {
        table: Arc::clone(table),
        clock: clock.clone(),
        scrape_now: scraper.scrape_now(),
        staleness: flags.metrics_staleness_threshold,
        pool: flags.pool_name().to_owned(),
        legacy_names,
    };
    registry.register(Box::new(gauges)).context("registering metrics")?;
    Ok(scraper)
}
