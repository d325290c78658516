use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::Scorer;

use crate::ignored_params::{IgnoredParam, LoadProducerName};

/// Prefers endpoints on which this process has fewer requests in flight.
///
/// With n requests in flight, and m on the busiest candidate: 1 if n is at most the idle threshold, else
/// (m − n) / m × the best score of a busy endpoint. Endpoints that are equally busy score 0, all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveRequestScorer {
    idle_threshold: u64,
    max_busy_score: f32,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ActiveRequestScorerParams {
    /// Up to this many requests an endpoint counts as idle; negative for 0.
    idle_threshold: i64,
    /// The score of an endpoint just above the threshold, in `0.0..=1.0`; 1 if outside.
    max_busy_score: f64,
    /// Deprecated.
    request_timeout: IgnoredParam,
    in_flight_load_producer_name: LoadProducerName,
}

impl Default for ActiveRequestScorerParams {
    fn default() -> Self {
        Self {
            idle_threshold: 0,
            max_busy_score: 1.0,
            request_timeout: IgnoredParam::default(),
            in_flight_load_producer_name: LoadProducerName::default(),
        }
    }
}

impl Plugin for ActiveRequestScorer {
    const TYPE: &'static str = "active-request-scorer";
    const STABILITY: Stability = Stability::Beta;
    type Params = ActiveRequestScorerParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let ActiveRequestScorerParams { idle_threshold, max_busy_score, request_timeout, in_flight_load_producer_name } =
            params;
        let idle_threshold = u64::try_from(idle_threshold).unwrap_or_else(|_| {
            cx.warn("idleThreshold", format!("{idle_threshold} is negative, taken as 0"));
            0
        });
        let max_busy_score = if (0.0..=1.0).contains(&max_busy_score) {
            max_busy_score
        } else {
            cx.warn("maxBusyScore", format!("{max_busy_score} is not between 0 and 1, taken as 1"));
            1.0
        };
        cx.fill_in("idleThreshold", idle_threshold);
        cx.fill_in("maxBusyScore", max_busy_score);
        request_timeout.warn_if_given(
            "requestTimeout",
            "deprecated and without effect: a request counts until it ends",
            cx,
        );
        in_flight_load_producer_name.warn(cx);
        #[expect(clippy::cast_possible_truncation, reason = "a score needs no more precision")]
        let max_busy_score = max_busy_score as f32;
        Ok(Roles::scorer(Self { idle_threshold, max_busy_score }))
    }
}

impl Scorer for ActiveRequestScorer {
    fn score(&self, _request: &Request, candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        let busiest = candidates.iter().map(|endpoint| endpoint.load().requests()).max().unwrap_or(0);
        for (endpoint, score) in candidates.iter().zip(scores) {
            let in_flight = endpoint.load().requests();
            *score = if in_flight <= self.idle_threshold {
                1.0
            } else {
                // The count may have risen since `busiest` was taken.
                ratio(busiest.saturating_sub(in_flight), busiest) * self.max_busy_score
            };
        }
    }
}

/// `part / whole`; 0 if `whole` is 0.
#[expect(clippy::cast_precision_loss, reason = "a score needs no more precision")]
fn ratio(part: u64, whole: u64) -> f32 {
    if whole == 0 { 0.0 } else { part as f32 / whole as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{endpoints_with_load, request};

    fn scores(scorer: ActiveRequestScorer, load: &[u64]) -> Vec<f32> {
        let endpoints = endpoints_with_load(load);
        let mut scores = vec![0.0; load.len()];
        scorer.score(&request(), &endpoints.iter().collect::<Vec<_>>(), &mut scores);
        scores
    }

    const DEFAULT: ActiveRequestScorer = ActiveRequestScorer { idle_threshold: 0, max_busy_score: 1.0 };

    #[test]
    fn fewer_requests_in_flight_score_higher() {
        assert_eq!(scores(DEFAULT, &[0, 1, 2, 4]), [1.0, 0.75, 0.5, 0.0]);
    }

    #[test]
    fn up_to_the_idle_threshold_all_are_idle() {
        let scorer = ActiveRequestScorer { idle_threshold: 2, ..DEFAULT };
        assert_eq!(scores(scorer, &[0, 1, 2, 4, 8]), [1.0, 1.0, 1.0, 0.5, 0.0]);
    }

    #[test]
    fn the_best_busy_endpoint_stays_below_the_idle_ones() {
        let scorer = ActiveRequestScorer { max_busy_score: 0.5, ..DEFAULT };
        assert_eq!(scores(scorer, &[0, 2, 4]), [1.0, 0.25, 0.0]);
    }

    #[test]
    fn equally_busy_endpoints_score_the_same() {
        assert_eq!(scores(DEFAULT, &[3, 3, 3]), [0.0; 3]);
        assert_eq!(scores(DEFAULT, &[0, 0]), [1.0; 2]);
    }
}
