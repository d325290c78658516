//! How slow an endpoint's pages are, and what follows from that. Pure.

use std::time::Duration;

/// Reading a page is taken to cost this much per kB, several times what it does: an endpoint whose pages are large has its
/// turn less often, so that it leaves time for the others.
const PER_KB: Duration = Duration::from_micros(100);

/// What a scrape took that brought a page of so many bytes: the time until it was there, or the work of reading it.
pub(super) fn effort(took: Duration, bytes: usize) -> Duration {
    took.max(PER_KB.saturating_mul(u32::try_from(bytes / 1000).unwrap_or(u32::MAX)))
}

/// Of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The largest effort of its latest pages; earlier ones fade.
    slowest: Duration,
}

impl Pace {
    /// Takes note of what a page took. Returns for how long after that scrape began nothing newer can be expected, but for
    /// the usual interval: it took its time, then the endpoint is [left alone](super::schedule::Schedule) for as long, and
    /// the next page takes its time too.
    pub(super) fn note(&mut self, effort: Duration) -> Duration {
        self.slowest = effort.max(self.slowest - self.slowest / 8);
        self.slowest.saturating_mul(3)
    }
}
