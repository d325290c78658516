use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::Scorer;
use smallvec::SmallVec;

/// Prefers endpoints whose KV cache has more room: 1 − its used part.
///
/// An endpoint that has not said how full its cache is scores like the mean of those that have, so that its silence
/// neither draws requests nor keeps them away; 1 if none has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvCacheUtilizationScorer;

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KvCacheUtilizationScorerParams {}

impl Plugin for KvCacheUtilizationScorer {
    const TYPE: &'static str = "kv-cache-utilization-scorer";
    const STABILITY: Stability = Stability::Beta;
    type Params = KvCacheUtilizationScorerParams;

    fn build(KvCacheUtilizationScorerParams {}: Self::Params, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::scorer(Self).reading_scraped())
    }
}

impl Scorer for KvCacheUtilizationScorer {
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a score needs no more precision")]
    fn score(&self, _request: &Request, candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        let usages = candidates.iter().map(|endpoint| endpoint.with_scraped(|scraped| scraped?.kv_usage));
        let rooms: SmallVec<[Option<f32>; 32]> = usages.map(|usage| usage.map(|usage| 1.0 - usage as f32)).collect();
        let known = rooms.iter().flatten();
        let mean = known.clone().sum::<f32>() / known.count() as f32;
        let unknown = if mean.is_nan() { 1.0 } else { mean };
        for (score, room) in scores.iter_mut().zip(rooms) {
            *score = room.unwrap_or(unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::{Scraped, Time};

    use super::*;
    use crate::testing::{endpoints_with_load, scores};

    fn with_usage(usages: &[Option<f64>]) -> Vec<Arc<Endpoint>> {
        let endpoints = endpoints_with_load(&vec![0; usages.len()]);
        for (endpoint, &kv_usage) in endpoints.iter().zip(usages) {
            endpoint.set_scraped(Scraped { kv_usage, ..Scraped::at(Time::ZERO) });
        }
        endpoints
    }

    #[test]
    fn the_score_is_the_part_that_is_free() {
        let endpoints = with_usage(&[Some(0.0), Some(0.25), Some(1.0)]);
        assert_eq!(scores(&KvCacheUtilizationScorer, &endpoints), [1.0, 0.75, 0.0]);
    }

    #[test]
    fn an_endpoint_that_does_not_say_is_taken_for_an_average_one() {
        let endpoints = with_usage(&[Some(0.0), None, Some(0.5)]);
        assert_eq!(scores(&KvCacheUtilizationScorer, &endpoints), [1.0, 0.75, 0.5]);
    }

    #[test]
    fn where_none_says_all_score_alike() {
        assert_eq!(scores(&KvCacheUtilizationScorer, &with_usage(&[None, None])), [1.0, 1.0]);
        assert_eq!(scores(&KvCacheUtilizationScorer, &endpoints_with_load(&[0, 3])), [1.0, 1.0]);
    }
}
