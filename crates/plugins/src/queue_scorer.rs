use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::Scorer;

use crate::backlog::{Backlog, score_lowest_best};
use crate::fresh::{Fresh, default_staleness};

/// Prefers endpoints with fewer requests waiting.
///
/// With q waiting, and between a and b on the candidates: (b − q) / (b − a); 1 for all if they are equal. Requests in flight
/// that an endpoint has not reported count as [waiting](Backlog::waiting). One that has not lately said how
/// many wait is taken for an average one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueScorer {
    staleness: Duration,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct QueueScorerParams {}

impl Plugin for QueueScorer {
    const TYPE: &'static str = "queue-scorer";
    const STABILITY: Stability = Stability::Beta;
    type Params = QueueScorerParams;

    fn build(QueueScorerParams {}: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let staleness = default_staleness(cx.scrape_interval());
        Ok(Roles::scorer(Self { staleness }).reading_scraped())
    }
}

impl Scorer for QueueScorer {
    fn score(&self, request: &Request, candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        let fresh = Fresh::new(request, candidates.iter().copied(), self.staleness);
        score_lowest_best(candidates.iter().map(|endpoint| Backlog::of(endpoint, fresh).waiting()), scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fresh::LEAST_STALENESS;
    use crate::testing::{reporting, scores};

    const SCORER: QueueScorer = QueueScorer { staleness: LEAST_STALENESS };

    #[test]
    fn shorter_queues_score_higher() {
        // In flight, waiting, running: nothing is unreported.
        let endpoints = reporting(&[(50, 10, 40), (45, 5, 40), (0, 0, 100), (9, 9, 0)]);
        assert_eq!(scores(&SCORER, &endpoints), [0.0, 0.5, 1.0, 0.1]);
    }

    #[test]
    fn equal_queues_score_alike_whatever_runs() {
        assert_eq!(scores(&SCORER, &reporting(&[(3, 2, 1), (9, 2, 90)])), [1.0, 1.0]);
    }

    #[test]
    fn what_is_not_reported_yet_waits() {
        assert_eq!(scores(&SCORER, &reporting(&[(4, 0, 0), (1, 0, 0), (0, 0, 0)])), [0.0, 0.75, 1.0]);
    }
}
