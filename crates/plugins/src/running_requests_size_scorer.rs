use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::Scorer;

use crate::backlog::{Backlog, score_lowest_best};
use crate::fresh::{Fresh, default_staleness};

/// Prefers endpoints that work on fewer requests.
///
/// With r running, and between a and b on the candidates: (b − r) / (b − a); 1 for all if they are equal. Requests in flight
/// that an endpoint has not reported count as [running](Backlog::running). One that has not lately said how
/// many run is taken for an average one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningRequestsSizeScorer {
    staleness: Duration,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RunningRequestsSizeScorerParams {}

impl Plugin for RunningRequestsSizeScorer {
    const TYPE: &'static str = "running-requests-size-scorer";
    const STABILITY: Stability = Stability::Beta;
    type Params = RunningRequestsSizeScorerParams;

    fn build(RunningRequestsSizeScorerParams {}: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let staleness = default_staleness(cx.scrape_interval());
        Ok(Roles::scorer(Self { staleness }).reading_scraped())
    }
}

impl Scorer for RunningRequestsSizeScorer {
    fn score(&self, request: &Request, candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        let fresh = Fresh::new(request, candidates.iter().copied(), self.staleness);
        score_lowest_best(candidates.iter().map(|endpoint| Backlog::of(endpoint, fresh).running()), scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fresh::LEAST_STALENESS;
    use crate::testing::{reporting, scores};

    const SCORER: RunningRequestsSizeScorer = RunningRequestsSizeScorer { staleness: LEAST_STALENESS };

    #[test]
    fn fewer_running_requests_score_higher() {
        // In flight, waiting, running: nothing is unreported.
        let endpoints = reporting(&[(50, 40, 10), (45, 40, 5), (0, 100, 0), (9, 0, 9)]);
        assert_eq!(scores(&SCORER, &endpoints), [0.0, 0.5, 1.0, 0.1]);
    }

    #[test]
    fn equally_many_score_alike_whatever_waits() {
        assert_eq!(scores(&SCORER, &reporting(&[(3, 1, 2), (9, 90, 2)])), [1.0, 1.0]);
    }

    #[test]
    fn what_is_not_reported_yet_runs() {
        let endpoints = reporting(&[(4, 0, 0), (1, 0, 0), (0, 0, 0)]);
        assert_eq!(scores(&SCORER, &endpoints), [0.0, 0.75, 1.0]);
    }
}
