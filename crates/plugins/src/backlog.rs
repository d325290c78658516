//! How much endpoints have to do: what they say of themselves, and what they cannot have said yet.
//!
//! A model server brings its gauges up to date once in a while, and they are read once in a while. A burst in between
//! would go to whichever endpoint looked the emptiest before it. So requests that this process has in flight on an endpoint
//! count until its gauges show as many: they are what it has not reported yet. Gauges that are true leave nothing to add.
//!
//! An endpoint that does not say how much it has, or has not lately, is not taken for idle, which would draw every request for as long as its
//! metrics are broken: it counts like the mean of those that do say, and for no less than is in flight there.

use sluice_core::Endpoint;
use smallvec::SmallVec;

use crate::fresh::Fresh;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    waiting: Option<u64>,
    running: Option<u64>,
    /// In flight here, and not among those.
    unreported: u64,
}

/// A number of requests on an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// As the endpoint says, and what it cannot have said yet.
    Known(u64),
    /// It does not say; no fewer than these.
    AtLeast(u64),
}

impl Backlog {
    /// As far as the endpoint has said it lately.
    pub(crate) fn of(endpoint: &Endpoint, fresh: Fresh) -> Self {
        let (waiting, running) = fresh.with(endpoint, |scraped| match scraped {
            Some(scraped) => (scraped.waiting, scraped.running),
            None => (None, None),
        });
        let reported = waiting.unwrap_or(0).saturating_add(running.unwrap_or(0));
        Self { waiting, running, unreported: endpoint.load().requests().saturating_sub(reported) }
    }

    /// Requests that wait for their turn, should none of the unreported ones have had it.
    pub(crate) const fn waiting(self) -> Requests {
        self.with_unreported(self.waiting)
    }

    /// Requests that are worked on, should all of the unreported ones be.
    pub(crate) const fn running(self) -> Requests {
        self.with_unreported(self.running)
    }

    const fn with_unreported(self, reported: Option<u64>) -> Requests {
        match reported {
            Some(reported) => Requests::Known(reported.saturating_add(self.unreported)),
            None => Requests::AtLeast(self.unreported),
        }
    }
}

/// Scores the candidates by their `counts`: 1 for the lowest, 0 for the highest, in proportion in between; 1 for all if they
/// are equal. A count that is not known is the mean of those that are, or more.
pub(crate) fn score_lowest_best(counts: impl Iterator<Item = Requests>, scores: &mut [f32]) {
    let counts: SmallVec<[Requests; 32]> = counts.collect();
    let mean = mean_of_known(&counts);
    let counts = counts.into_iter().map(|count| match count {
        Requests::Known(count) => count,
        Requests::AtLeast(least) => least.max(mean),
    });
    let counts: SmallVec<[u64; 32]> = counts.collect();
    let lowest = counts.iter().copied().min().unwrap_or(0);
    let highest = counts.iter().copied().max().unwrap_or(0);
    for (score, count) in scores.iter_mut().zip(counts) {
        *score = if highest == lowest { 1.0 } else { ratio(highest - count, highest - lowest) };
    }
}

/// Rounded up; 0 if none is known.
fn mean_of_known(counts: &[Requests]) -> u64 {
    let known = counts.iter().filter_map(|count| match count {
        Requests::Known(count) => Some(u128::from(*count)),
        Requests::AtLeast(_) => None,
    });
    let (sum, number) = known.fold((0, 0), |(sum, number), count| (sum + count, number + 1));
    u64::try_from(u128::div_ceil(sum, u128::max(number, 1))).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a score needs no more precision")]
fn ratio(part: u64, whole: u64) -> f32 {
    part as f32 / whole as f32
}

#[cfg(test)]
mod tests {
    use sluice_core::{Scraped, Time};

    use super::Requests::{AtLeast, Known};
    use super::*;
    use crate::fresh::LEAST_STALENESS;
    use crate::testing::{endpoints_with_load, request};

    fn of(endpoint: &std::sync::Arc<Endpoint>, received: u64) -> (Requests, Requests) {
        let request = sluice_core::Request { received: Time::from_millis(received), ..request() };
        let backlog = Backlog::of(endpoint, Fresh::new(&request, [endpoint], LEAST_STALENESS));
        (backlog.waiting(), backlog.running())
    }

    fn backlog(in_flight: u64, waiting: Option<u64>, running: Option<u64>) -> (Requests, Requests) {
        let endpoint = &endpoints_with_load(&[in_flight])[0];
        endpoint.set_scraped(Scraped { waiting, running, ..Scraped::at(Time::ZERO) });
        of(endpoint, 200)
    }

    #[test]
    fn true_gauges_are_taken_as_they_are() {
        assert_eq!(backlog(7, Some(3), Some(4)), (Known(3), Known(4)));
        // Another process sends requests there too.
        assert_eq!(backlog(7, Some(30), Some(40)), (Known(30), Known(40)));
        assert_eq!(backlog(0, Some(3), Some(4)), (Known(3), Known(4)));
    }

    #[test]
    fn requests_that_are_not_reported_count() {
        assert_eq!(backlog(12, Some(3), Some(4)), (Known(8), Known(9)));
        assert_eq!(backlog(12, Some(0), Some(0)), (Known(12), Known(12)));
        assert_eq!(backlog(12, None, Some(4)), (AtLeast(8), Known(12)));
        assert_eq!(backlog(12, Some(3), None), (Known(12), AtLeast(9)));
    }

    #[test]
    fn an_endpoint_that_never_reported_has_at_least_what_is_in_flight() {
        let endpoint = &endpoints_with_load(&[5])[0];
        assert_eq!(of(endpoint, 0), (AtLeast(5), AtLeast(5)));
    }

    #[test]
    fn an_endpoint_that_has_fallen_silent_is_one_that_does_not_say() {
        let endpoint = &endpoints_with_load(&[5])[0];
        let said = Scraped { waiting: Some(50), running: Some(3), ..Scraped::at(Time::ZERO) };
        endpoint.set_scraped(said.clone());
        assert_eq!((of(endpoint, 200), of(endpoint, 201)), ((Known(50), Known(3)), (AtLeast(5), AtLeast(5))));
        endpoint.set_scraped(Scraped { lenience: std::time::Duration::from_millis(300), ..said });
        assert_eq!(of(endpoint, 500), (Known(50), Known(3)), "its pages take their time");
        assert_eq!(of(endpoint, 501), (AtLeast(5), AtLeast(5)));
    }

    fn scored(counts: &[Requests]) -> Vec<f32> {
        let mut scores = vec![0.0; counts.len()];
        score_lowest_best(counts.iter().copied(), &mut scores);
        scores
    }

    #[test]
    fn who_does_not_say_is_neither_idle_nor_busy() {
        assert_eq!(scored(&[Known(10), AtLeast(0), Known(0)]), [0.0, 0.5, 1.0]);
        assert_eq!(scored(&[Known(10), AtLeast(9), Known(0)]), [0.0, 0.1, 1.0], "what is in flight is known");
        assert_eq!(scored(&[Known(0), AtLeast(0), Known(1)]), [1.0, 0.0, 0.0], "not idle, if only some are");
        assert_eq!(scored(&[AtLeast(4), AtLeast(0)]), [0.0, 1.0], "where nobody says, what is in flight decides");
        assert_eq!(scored(&[Known(u64::MAX), Known(u64::MAX), AtLeast(0)]), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn the_lowest_count_scores_best() {
        let scored = |counts: &[u64]| scored(&counts.iter().copied().map(Known).collect::<Vec<_>>());
        assert_eq!(scored(&[10, 5, 0, 9]), [0.0, 0.5, 1.0, 0.1]);
        assert_eq!(scored(&[1_000_000, 999_999]), [0.0, 1.0]);
        assert_eq!(scored(&[3, 3]), [1.0, 1.0]);
        assert_eq!(scored(&[u64::MAX]), [1.0]);
        assert_eq!(scored(&[]), [0.0; 0]);
    }
}
