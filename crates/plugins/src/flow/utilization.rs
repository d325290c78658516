//! Saturation by what model servers say of themselves, with what happened since they said it.

mod endpoint;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability, Timeout};
use sluice_core::{Endpoint, Request, Scraped};
use sluice_flow::policy::{Saturation, SaturationDetector};
use sluice_schedule::{Candidates, Filter};
use smallvec::SmallVec;

use self::pool::PoolState;
use crate::fresh::{Fresh, LEAST_STALENESS, default_staleness};

/// Compares the requests that wait in the queues of model servers, and the used part of their KV caches, with thresholds.
///
/// An endpoint's part in the saturation is the larger of two shares: requests taken to wait in its queue over
/// `queue_depth_threshold`, and KV usage over `kv_cache_util_threshold`; neither is cut off at 1.
#[derive(Clone, Copy, Debug)]
pub struct UtilizationDetector {
    /// Requests in the queue of one endpoint; above zero.
    pub queue_depth_threshold: u64,
    /// The used part of its KV cache; above 0, up to 1.
    pub kv_cache_util_threshold: f64,
    /// What an endpoint said longer ago than this is not gone by; the time that its pages take is not counted.
    pub staleness: Duration,
    /// How far beyond the thresholds the filter still lets an endpoint through, as a share of them. Saturation knows
    /// nothing of it.
    pub headroom: f64,
    pub staleness_policy: StalenessPolicy,
    pub aggregation: Aggregation,
    /// How many requests an endpoint runs at once; none: the most that it was seen to.
    pub running_limit: Option<u64>,
}

/// What an endpoint counts for that has said nothing of itself for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StalenessPolicy {
    /// It is exactly full.
    #[default]
    Saturated,
    /// It is left out. If all are, nothing is held back.
    Ignore,
}

/// How the endpoints make up the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aggregation {
    /// The mean of all.
    #[default]
    Mean,
    /// The least loaded one: as long as anything fits anywhere, the pool is not full.
    Min,
}

impl Default for UtilizationDetector {
    fn default() -> Self {
        Self {
            queue_depth_threshold: 5,
            kv_cache_util_threshold: 0.8,
            staleness: LEAST_STALENESS,
            headroom: 0.0,
            staleness_policy: StalenessPolicy::Saturated,
            aggregation: Aggregation::Mean,
            running_limit: None,
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct UtilizationDetectorParams {
    queue_depth_threshold: u64,
    kv_cache_util_threshold: f64,
    metrics_staleness_threshold: Option<Timeout>,
    headroom: f64,
    staleness_policy: StalenessPolicy,
    aggregation: Aggregation,
    running_limit: Option<u64>,
}

impl Default for UtilizationDetectorParams {
    fn default() -> Self {
        let UtilizationDetector {
            queue_depth_threshold,
            kv_cache_util_threshold,
            staleness: _,
            headroom,
            staleness_policy,
            aggregation,
            running_limit,
        } = UtilizationDetector::default();
        Self {
            queue_depth_threshold,
            kv_cache_util_threshold,
            metrics_staleness_threshold: None,
            headroom,
            staleness_policy,
            aggregation,
            running_limit,
        }
    }
}

impl Plugin for UtilizationDetector {
    const TYPE: &'static str = "utilization-detector";
    const STABILITY: Stability = Stability::Beta;
    type Params = UtilizationDetectorParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let UtilizationDetectorParams {
            queue_depth_threshold,
            kv_cache_util_threshold,
            metrics_staleness_threshold,
            headroom,
            staleness_policy,
            aggregation,
            running_limit,
        } = params;
        if queue_depth_threshold == 0 || queue_depth_threshold > Endpoint::MAX_LIMIT {
            let message = format!("{queue_depth_threshold} is not above zero and up to {}", Endpoint::MAX_LIMIT);
            cx.refuse("queueDepthThreshold", message);
        }
        if !(kv_cache_util_threshold > 0.0 && kv_cache_util_threshold <= 1.0) {
            cx.refuse("kvCacheUtilThreshold", format!("{kv_cache_util_threshold} is not above 0 and up to 1"));
        }
        let interval = cx.scrape_interval();
        let staleness = match metrics_staleness_threshold {
            Some(Timeout(staleness)) => {
                if staleness.is_zero() {
                    cx.refuse("metricsStalenessThreshold", "0s is not above zero");
                } else if staleness <= interval {
                    let message = format!(
                        "{staleness:?} is over before the next scrape, {interval:?} after the last one: most of the time \
                         nothing is known of any endpoint"
                    );
                    cx.warn("metricsStalenessThreshold", message);
                }
                staleness
            }
            None => default_staleness(interval),
        };
        cx.fill_in("metricsStalenessThreshold", Timeout(staleness));
        if !(headroom.is_finite() && headroom >= 0.0) {
            cx.refuse("headroom", format!("{headroom} is not a finite number from 0 up"));
        } else if headroom > 1.0 {
            cx.warn("headroom", format!("{headroom} lets an endpoint be used at more than twice its thresholds"));
        }
        if let Some(limit) = running_limit.filter(|limit| *limit == 0 || *limit > Endpoint::MAX_LIMIT) {
            cx.refuse("runningLimit", format!("{limit} is not above zero and up to {}", Endpoint::MAX_LIMIT));
        }
        let detector = Self {
            queue_depth_threshold,
            kv_cache_util_threshold,
            staleness,
            headroom,
            staleness_policy,
            aggregation,
            running_limit,
        };
        Ok(Roles { filter: Some(Arc::new(detector)), ..Roles::detector(detector) }.reading_scraped())
    }
}

/// Keeps the endpoints that have lately said that they are below both thresholds. Where none has, all are kept.
impl Filter for UtilizationDetector {
    fn filter(&self, request: &Request, candidates: &mut Candidates<'_>) {
        let endpoints = candidates.as_slice();
        let fresh = Fresh::new(request, endpoints.iter().copied(), self.staleness);
        let fits =
            |endpoint: &&Arc<Endpoint>| fresh.with(endpoint, |scraped| scraped.is_some_and(|said| self.fits(said)));
        let fits: SmallVec<[bool; 32]> = endpoints.iter().map(fits).collect();
        if fits.contains(&true) {
            let mut fits = fits.into_iter();
            candidates.retain(|_| fits.next().unwrap_or(false));
        }
    }

    fn is_by_load(&self) -> bool {
        true
    }
}

impl UtilizationDetector {
    #[expect(clippy::cast_precision_loss, reason = "queues are far shorter than 2^53")]
    /// By the same rule as saturation, which takes what does not [tell the load](Scraped::tells_load) for stale.
    fn fits(&self, sample: &Scraped) -> bool {
        let scale = 1.0 + self.headroom;
        let has_queue = |waiting: u64| (waiting as f64) < self.queue_depth_threshold as f64 * scale;
        let has_cache = |usage: f64| usage < self.kv_cache_util_threshold * scale;
        sample.tells_load() && sample.waiting.is_none_or(has_queue) && sample.kv_usage.is_none_or(has_cache)
    }
}

impl SaturationDetector for UtilizationDetector {
    fn new_state(&self) -> Box<dyn Saturation> {
        Box::new(PoolState::new(*self))
    }

    fn supports_eviction(&self) -> bool {
        // An end on one endpoint takes nothing off the least loaded one.
        self.aggregation != Aggregation::Min
    }
}

#[cfg(test)]
#[path = "utilization/tests.rs"]
mod tests;
