use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::Scorer;

use crate::backlog::{Backlog, score_lowest_best};

/// Prefers endpoints with fewer requests waiting.
///
/// With q waiting, and between a and b on the candidates: (b − q) / (b − a); 1 for all if they are equal. Requests in flight
/// that an endpoint has not reported count as [waiting](Backlog::waiting).
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueScorer;

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct QueueScorerParams {}

impl Plugin for QueueScorer {
    const TYPE: &'static str = "queue-scorer";
    const STABILITY: Stability = Stability::Beta;
    type Params = QueueScorerParams;

    fn build(QueueScorerParams {}: Self::Params, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::scorer(Self).reading_scraped())
    }
}

impl Scorer for QueueScorer {
    fn score(&self, _request: &Request, candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        score_lowest_best(candidates.iter().map(|endpoint| Backlog::of(endpoint).waiting()), scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reporting, scores};

    #[test]
    fn shorter_queues_score_higher() {
        // In flight, waiting, running: nothing is unreported.
        let endpoints = reporting(&[(50, 10, 40), (45, 5, 40), (0, 0, 100), (9, 9, 0)]);
        assert_eq!(scores(&QueueScorer, &endpoints), [0.0, 0.5, 1.0, 0.1]);
    }

    #[test]
    fn equal_queues_score_alike_whatever_runs() {
        assert_eq!(scores(&QueueScorer, &reporting(&[(3, 2, 1), (9, 2, 90)])), [1.0, 1.0]);
    }

    #[test]
    fn what_is_not_reported_yet_waits() {
        assert_eq!(scores(&QueueScorer, &reporting(&[(4, 0, 0), (1, 0, 0), (0, 0, 0)])), [0.0, 0.75, 1.0]);
    }
}
