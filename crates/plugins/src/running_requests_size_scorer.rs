use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::Scorer;

use crate::backlog::{Backlog, score_lowest_best};

/// Prefers endpoints that work on fewer requests.
///
/// With r running, and between a and b on the candidates: (b − r) / (b − a); 1 for all if they are equal. Requests in flight
/// that an endpoint has not reported count as [running](Backlog::running).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningRequestsSizeScorer;

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RunningRequestsSizeScorerParams {}

impl Plugin for RunningRequestsSizeScorer {
    const TYPE: &'static str = "running-requests-size-scorer";
    const STABILITY: Stability = Stability::Beta;
    type Params = RunningRequestsSizeScorerParams;

    fn build(
        RunningRequestsSizeScorerParams {}: Self::Params,
        _cx: &mut BuildContext<'_>,
    ) -> Result<Roles, BuildError> {
        Ok(Roles::scorer(Self).reading_scraped())
    }
}

impl Scorer for RunningRequestsSizeScorer {
    fn score(&self, _request: &Request, candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        score_lowest_best(candidates.iter().map(|endpoint| Backlog::of(endpoint).running()), scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reporting, scores};

    #[test]
    fn fewer_running_requests_score_higher() {
        // In flight, waiting, running: nothing is unreported.
        let endpoints = reporting(&[(50, 40, 10), (45, 40, 5), (0, 100, 0), (9, 0, 9)]);
        assert_eq!(scores(&RunningRequestsSizeScorer, &endpoints), [0.0, 0.5, 1.0, 0.1]);
    }

    #[test]
    fn equally_many_score_alike_whatever_waits() {
        assert_eq!(scores(&RunningRequestsSizeScorer, &reporting(&[(3, 1, 2), (9, 90, 2)])), [1.0, 1.0]);
    }

    #[test]
    fn what_is_not_reported_yet_runs() {
        let endpoints = reporting(&[(4, 0, 0), (1, 0, 0), (0, 0, 0)]);
        assert_eq!(scores(&RunningRequestsSizeScorer, &endpoints), [0.0, 0.75, 1.0]);
    }
}
