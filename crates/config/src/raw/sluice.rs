use serde::Deserialize;

use crate::document::Located;
use crate::settings::{
    Bodies, Drain, DryRun, Eviction, HeaderOnly, Limits, MessageTimeout, Metrics, Queue, Refusals, Reload,
    RewriteTarget, Trust, UnknownObjective,
};

/// The section `sluice`. The sections in it that need no check across fields are read as what they resolve to.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawSluice {
    pub(crate) objectives: Vec<Located<RawObjective>>,
    pub(crate) model_rewrites: Vec<Located<RawModelRewrite>>,
    pub(crate) default_objective: Option<Located<String>>,
    pub(crate) unknown_objective: UnknownObjective,
    pub(crate) trust: Trust,
    pub(crate) header_only: HeaderOnly,
    pub(crate) bodies: Bodies,
    pub(crate) message_timeout: MessageTimeout,
    pub(crate) dry_run: Vec<Located<DryRun>>,
    pub(crate) queue: Queue,
    pub(crate) eviction: Eviction,
    pub(crate) refusals: Refusals,
    pub(crate) limits: Limits,
    pub(crate) reload: Reload,
    pub(crate) drain: Drain,
    pub(crate) metrics: Metrics,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawObjective {
    pub(crate) name: Option<Located<String>>,
    pub(crate) priority: i32,
}

/// One rule of an InferenceModelRewrite.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawModelRewrite {
    pub(crate) matches: Vec<Located<RawModelMatch>>,
    pub(crate) targets: Vec<Located<RewriteTarget>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawModelMatch {
    pub(crate) model: Option<Located<RawModelPattern>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawModelPattern {
    #[serde(rename = "type")]
    pub(crate) match_type: Option<MatchType>,
    pub(crate) value: Option<Located<String>>,
}

#[derive(Debug, Deserialize)]
pub(crate) enum MatchType {
    Exact,
}
