use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::Scorer;
use smallvec::SmallVec;

use crate::fresh::{Fresh, default_staleness};

/// Prefers endpoints whose KV cache has more room: 1 − its used part.
///
/// An endpoint that has not lately said how full its cache is scores like the mean of those that have, so that its silence
/// neither draws requests nor keeps them away; 1 if none has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvCacheUtilizationScorer {
    staleness: Duration,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KvCacheUtilizationScorerParams {}

impl Plugin for KvCacheUtilizationScorer {
    const TYPE: &'static str = "kv-cache-utilization-scorer";
    const STABILITY: Stability = Stability::Beta;
    type Params = KvCacheUtilizationScorerParams;

    fn build(KvCacheUtilizationScorerParams {}: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let staleness = default_staleness(cx.scrape_interval());
        Ok(Roles::scorer(Self { staleness }).reading_scraped())
    }
}

impl Scorer for KvCacheUtilizationScorer {
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a score needs no more precision")]
    fn score(&self, request: &Request, candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        let fresh = Fresh::new(request, candidates.iter().copied(), self.staleness);
        let usages = candidates.iter().map(|endpoint| fresh.with(endpoint, |scraped| scraped?.kv_usage));
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
    use crate::fresh::LEAST_STALENESS;
    use crate::testing::{endpoints_with_load, scores};

    const SCORER: KvCacheUtilizationScorer = KvCacheUtilizationScorer { staleness: LEAST_STALENESS };

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
        assert_eq!(scores(&SCORER, &endpoints), [1.0, 0.75, 0.0]);
    }

    #[test]
    fn an_endpoint_that_does_not_say_is_taken_for_an_average_one() {
        let endpoints = with_usage(&[Some(0.0), None, Some(0.5)]);
        assert_eq!(scores(&SCORER, &endpoints), [1.0, 0.75, 0.5]);
    }

    #[test]
    fn what_was_said_long_ago_is_not_gone_by() {
        let endpoints = with_usage(&[Some(0.0), Some(0.5), Some(0.25)]);
        for endpoint in &endpoints[1..] {
            let began = Time::from_millis(201);
            endpoint.set_scraped(Scraped { began, ..(*endpoint.scraped().unwrap()).clone() });
        }
        assert_eq!(scores(&SCORER, &endpoints), [0.625, 0.5, 0.75]);
    }

    #[test]
    fn where_none_says_all_score_alike() {
        assert_eq!(scores(&SCORER, &with_usage(&[None, None])), [1.0, 1.0]);
        assert_eq!(scores(&SCORER, &endpoints_with_load(&[0, 3])), [1.0, 1.0]);
    }
}
