use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{OutputEstimate, TokenEstimate};

use crate::ignored_params::IgnoredParam;

/// Says how many tokens a request is taken for before anything has counted them. What is in flight needs no
/// plugin: the router keeps count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InflightLoadProducer;

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct InflightLoadProducerParams {
    /// The answer counts too, not only the prompt.
    add_estimated_output_tokens: bool,
    /// Tokens of the answer for each of the prompt; not negative.
    output_ratio: Option<f64>,
    /// No answer is taken for more.
    max_estimated_output_tokens: Option<u64>,
    prefix_match_info_producer_name: IgnoredParam,
    sync_cross_replica_state: IgnoredParam,
}

const DEFAULT_RATIO: f64 = 1.5;

impl Plugin for InflightLoadProducer {
    const TYPE: &'static str = "inflight-load-producer";
    const STABILITY: Stability = Stability::Beta;
    type Params = InflightLoadProducerParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let InflightLoadProducerParams {
            add_estimated_output_tokens,
            output_ratio,
            max_estimated_output_tokens,
            prefix_match_info_producer_name,
            sync_cross_replica_state,
        } = params;
        let ratio = output_ratio.unwrap_or(DEFAULT_RATIO);
        if !(ratio.is_finite() && ratio >= 0.0) {
            return Err(BuildError::new("outputRatio", format!("{ratio} is not a finite number from 0 up")));
        }
        if add_estimated_output_tokens {
            cx.fill_in("outputRatio", ratio);
        } else {
            let without_output = "has no effect without addEstimatedOutputTokens: only the prompt counts";
            if output_ratio.is_some() {
                cx.warn("outputRatio", without_output);
            }
            if max_estimated_output_tokens.is_some() {
                cx.warn("maxEstimatedOutputTokens", without_output);
            }
        }
        let message = "has no effect in this version, which does not know what engines have cached";
        prefix_match_info_producer_name.warn_if_given("prefixMatchInfoProducerName", message, cx);
        let message = "has no effect in this version, in which each replica counts for itself";
        sync_cross_replica_state.warn_if_given("syncCrossReplicaState", message, cx);
        let output = OutputEstimate { ratio, max: max_estimated_output_tokens };
        Ok(Roles::token_estimate(TokenEstimate { output: add_estimated_output_tokens.then_some(output) }))
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use sluice_config::{Options, PluginType, Source, load};

    use super::*;
    use crate::max_score_picker::MaxScorePicker;
    use crate::single_profile_handler::SingleProfileHandler;

    const REGISTRY: &[PluginType] = &[
        PluginType::of::<InflightLoadProducer>(),
        PluginType::of::<MaxScorePicker>(),
        PluginType::of::<SingleProfileHandler>(),
    ];

    /// What is said about these parameters, and the estimate that they lead to.
    fn build(parameters: &str) -> String {
        let text = format!("plugins: [{{type: inflight-load-producer, parameters: {parameters}}}]\n");
        match load(&Source::new("c.yaml", text), REGISTRY, &Options::default()) {
            Ok(assembled) => {
                let about_parameters = assembled.warnings.iter().filter(|warning| warning.path.contains("parameters"));
                let estimate = format!("{:?}", assembled.token_estimate);
                about_parameters.map(ToString::to_string).chain([estimate]).collect::<Vec<_>>().join("\n")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn only_the_prompt_counts_unless_the_answer_is_asked_for() {
        assert_snapshot!(build("{}"), @"TokenEstimate { output: None }");
        assert_snapshot!(build("{addEstimatedOutputTokens: true}"), @"TokenEstimate { output: Some(OutputEstimate { ratio: 1.5, max: None }) }");
        assert_snapshot!(build("{addEstimatedOutputTokens: true, outputRatio: 0.7, maxEstimatedOutputTokens: 2048}"), @"TokenEstimate { output: Some(OutputEstimate { ratio: 0.7, max: Some(2048) }) }");
        assert_snapshot!(build("{addEstimatedOutputTokens: true, outputRatio: 0, maxEstimatedOutputTokens: 0}"), @"TokenEstimate { output: Some(OutputEstimate { ratio: 0.0, max: Some(0) }) }");
    }

    #[test]
    fn what_has_no_effect_is_named() {
        assert_snapshot!(build("{outputRatio: 2, maxEstimatedOutputTokens: 10}"), @"
        c.yaml:1:68: warning: plugins[0].parameters.outputRatio: has no effect without addEstimatedOutputTokens: only the prompt counts
        c.yaml:1:97: warning: plugins[0].parameters.maxEstimatedOutputTokens: has no effect without addEstimatedOutputTokens: only the prompt counts
        TokenEstimate { output: None }
        ");
        assert_snapshot!(build("{prefixMatchInfoProducerName: approx, syncCrossReplicaState: false}"), @"
        c.yaml:1:84: warning: plugins[0].parameters.prefixMatchInfoProducerName: has no effect in this version, which does not know what engines have cached
        c.yaml:1:115: warning: plugins[0].parameters.syncCrossReplicaState: has no effect in this version, in which each replica counts for itself
        TokenEstimate { output: None }
        ");
    }

    #[test]
    fn impossible_estimates_are_refused() {
        assert_snapshot!(build("{outputRatio: -0.5}"), @"c.yaml:1:68: plugins[0].parameters.outputRatio: -0.5 is not a finite number from 0 up");
        assert_snapshot!(build("{outputRatio: .nan}"), @"c.yaml:1:68: plugins[0].parameters.outputRatio: NaN is not a finite number from 0 up");
        assert_snapshot!(build("{outputRatio: .inf}"), @"c.yaml:1:68: plugins[0].parameters.outputRatio: inf is not a finite number from 0 up");
        assert_snapshot!(build("{outputRatio: high, maxEstimatedOutputTokens: -1, addEstimatedOutputTokens: 1}"), @r#"
        c.yaml:1:68: plugins[0].parameters.outputRatio: expected a number, found the string "high"
        c.yaml:1:100: plugins[0].parameters.maxEstimatedOutputTokens: expected a whole number from 0 up, found the number -1
        c.yaml:1:130: plugins[0].parameters.addEstimatedOutputTokens: expected true or false, found the number 1
        "#);
    }
}
