use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Produced, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::Scorer;

/// Stands where a configuration names it, so that the configuration can be used: every endpoint scores 0, as none is known
/// to have any part of a prompt in its cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixCacheScorer;

#[derive(Debug, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PrefixCacheScorerParams {
    /// The plugin that knows what endpoints have cached.
    prefix_match_info_producer_name: Option<String>,
    /// How much the length of the match counts, beside its share of the prompt; in `0.0..=1.0`.
    match_length_weight: f64,
    /// A match of so many tokens is as good as can be; above 0 where its length counts.
    match_length_scale_tokens: i64,
}

impl Default for PrefixCacheScorerParams {
    fn default() -> Self {
        Self { prefix_match_info_producer_name: None, match_length_weight: 0.0, match_length_scale_tokens: 8192 }
    }
}

impl Plugin for PrefixCacheScorer {
    const TYPE: &'static str = "prefix-cache-scorer";
    const STABILITY: Stability = Stability::Beta;
    type Params = PrefixCacheScorerParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let PrefixCacheScorerParams {
            prefix_match_info_producer_name: _,
            match_length_weight: weight,
            match_length_scale_tokens: scale,
        } = params;
        if !(0.0..=1.0).contains(&weight) {
            return Err(BuildError::new("matchLengthWeight", format!("{weight} is not between 0 and 1")));
        }
        if weight > 0.0 && scale <= 0 {
            let message = format!("{scale} is not above 0, which it has to be where matchLengthWeight is");
            return Err(BuildError::new("matchLengthScaleTokens", message));
        }
        cx.warn_of_plugin("scores every endpoint 0: this version does not know what endpoints have cached");
        Ok(Roles::scorer(Self).needing(Produced::PrefixMatches))
    }
}

impl Scorer for PrefixCacheScorer {
    fn score(&self, _request: &Request, _candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        scores.fill(0.0);
    }
}
