//! What endpoints have said lately. What a server said before its page of metrics broke is no longer true of it, and those
//! who go by figures for ever send it everything, or nothing.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Endpoint, Request, Scraped, Time};

/// The default staleness is no less than this.
pub(crate) const LEAST_STALENESS: Duration = Duration::from_millis(200);

/// The default staleness, in intervals between two scrapes: a lost answer makes nobody stale. Nor does a slow one: the time
/// that pages take is [not counted](Scraped::lenience).
const STALE_SCRAPES: u32 = 4;

/// What was said longer ago than this is not gone by, unless somebody says otherwise.
pub(crate) fn default_staleness(scrape_interval: Duration) -> Duration {
    LEAST_STALENESS.max(scrape_interval.saturating_mul(STALE_SCRAPES))
}

/// Reads what endpoints say of themselves, for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    now: Time,
    staleness: Duration,
}

impl Fresh {
    /// The present time is no earlier than that of the request and of the latest scrape, and close to the later one:
    /// endpoints are scraped all the time, or, if scraping has stopped, requests do not wait for long.
    pub(crate) fn new<'a>(
        request: &Request,
        endpoints: impl IntoIterator<Item = &'a Arc<Endpoint>>,
        staleness: Duration,
    ) -> Self {
        let began = |endpoint: &Arc<Endpoint>| endpoint.with_scraped(|scraped| scraped.map(|scraped| scraped.began));
        let now = endpoints.into_iter().filter_map(began).fold(request.received, Time::max);
        Self { now, staleness }
    }

    /// What `read` makes of what the endpoint said; none if that was too long ago, or never.
    pub(crate) fn with<R>(self, endpoint: &Endpoint, read: impl FnOnce(Option<&Scraped>) -> R) -> R {
        endpoint.with_scraped(|scraped| read(scraped.filter(|scraped| scraped.is_fresh(self.now, self.staleness))))
    }
}
