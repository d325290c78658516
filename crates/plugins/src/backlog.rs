//! How much endpoints have to do: what they say of themselves, and what they cannot have said yet.
//!
//! A model server brings its gauges up to date once in a while, and they are read once in a while. A burst in between
//! would go to whichever endpoint looked the emptiest before it. So requests that this process has in flight on an endpoint
//! count until its gauges show as many: they are what it has not reported yet. Gauges that are true leave nothing to add.
//! One that never reports is judged by the requests in flight alone.

use sluice_core::Endpoint;
use smallvec::SmallVec;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    waiting: u64,
    running: u64,
    /// In flight here, and not among those.
    unreported: u64,
}

impl Backlog {
    pub(crate) fn of(endpoint: &Endpoint) -> Self {
        let (waiting, running) = endpoint.with_scraped(|scraped| match scraped {
            Some(scraped) => (scraped.waiting.unwrap_or(0), scraped.running.unwrap_or(0)),
            None => (0, 0),
        });
        let reported = waiting.saturating_add(running);
        Self { waiting, running, unreported: endpoint.load().requests().saturating_sub(reported) }
    }

    /// Requests that wait for their turn, should none of the unreported ones have had it.
    pub(crate) const fn waiting(self) -> u64 {
        self.waiting.saturating_add(self.unreported)
    }

    /// Requests that are worked on, should all of the unreported ones be.
    pub(crate) const fn running(self) -> u64 {
        self.running.saturating_add(self.unreported)
    }
}

/// Scores the candidates by their `counts`: 1 for the lowest, 0 for the highest, in proportion in between; 1 for all if they
/// are equal.
pub(crate) fn score_lowest_best(counts: impl Iterator<Item = u64>, scores: &mut [f32]) {
    let counts: SmallVec<[u64; 32]> = counts.collect();
    let lowest = counts.iter().copied().min().unwrap_or(0);
    let highest = counts.iter().copied().max().unwrap_or(0);
    for (score, count) in scores.iter_mut().zip(counts) {
        *score = if highest == lowest { 1.0 } else { ratio(highest - count, highest - lowest) };
    }
}

#[expect(clippy::cast_precision_loss, reason = "a score needs no more precision")]
fn ratio(part: u64, whole: u64) -> f32 {
    part as f32 / whole as f32
}

#[cfg(test)]
mod tests {
    use sluice_core::{Scraped, Time};

    use super::*;
    use crate::testing::endpoints_with_load;

    fn backlog(in_flight: u64, waiting: Option<u64>, running: Option<u64>) -> (u64, u64) {
        let endpoint = &endpoints_with_load(&[in_flight])[0];
        endpoint.set_scraped(Scraped { waiting, running, ..Scraped::at(Time::ZERO) });
        (Backlog::of(endpoint).waiting(), Backlog::of(endpoint).running())
    }

    #[test]
    fn true_gauges_are_taken_as_they_are() {
        assert_eq!(backlog(7, Some(3), Some(4)), (3, 4));
        // Another process sends requests there too.
        assert_eq!(backlog(7, Some(30), Some(40)), (30, 40));
        assert_eq!(backlog(0, Some(3), Some(4)), (3, 4));
    }

    #[test]
    fn requests_that_are_not_reported_count() {
        assert_eq!(backlog(12, Some(3), Some(4)), (8, 9));
        assert_eq!(backlog(12, Some(0), Some(0)), (12, 12));
        assert_eq!(backlog(12, None, Some(4)), (8, 12));
        assert_eq!(backlog(12, Some(3), None), (12, 9));
    }

    #[test]
    fn an_endpoint_that_never_reported_is_judged_by_what_is_in_flight() {
        let endpoint = &endpoints_with_load(&[5])[0];
        assert_eq!((Backlog::of(endpoint).waiting(), Backlog::of(endpoint).running()), (5, 5));
    }

    #[test]
    fn the_lowest_count_scores_best() {
        let scored = |counts: &[u64]| {
            let mut scores = vec![0.0; counts.len()];
            score_lowest_best(counts.iter().copied(), &mut scores);
            scores
        };
        assert_eq!(scored(&[10, 5, 0, 9]), [0.0, 0.5, 1.0, 0.1]);
        assert_eq!(scored(&[1_000_000, 999_999]), [0.0, 1.0]);
        assert_eq!(scored(&[3, 3]), [1.0, 1.0]);
        assert_eq!(scored(&[u64::MAX]), [1.0]);
        assert_eq!(scored(&[]), [0.0; 0]);
    }
}
