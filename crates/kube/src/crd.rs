//! The kinds of the group `llm-d.ai`. Their doc comments are what `kubectl explain` shows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_core::MAX_MODEL_NAME;

/// The groups that objectives and rewrites may have.
pub(crate) const GROUP: &str = "llm-d.ai";
pub(crate) const OLDER_GROUP: &str = "inference.networking.x-k8s.io";

/// The API group that an InferencePool has, and that references to one have where they name none.
pub(crate) const POOL_GROUP: &str = "inference.networking.k8s.io";

/// How urgent the requests are that name this objective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "llm-d.ai",
    version = "v1alpha2",
    kind = "InferenceObjective",
    plural = "inferenceobjectives",
    namespaced,
    status = "ObjectiveStatus",
    derive = "PartialEq",
    doc = "An InferenceObjective gives a priority to the requests that name it in the header x-llm-d-inference-objective.",
    printcolumn(name = "Inference Pool", type_ = "string", json_path = ".spec.poolRef.name"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].reason"}"#,
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InferenceObjectiveSpec {
    /// The higher, the more urgent; work below 0 is shed first when there is not enough room. Unset counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The pool to whose requests the objective applies.
    pub pool_ref: PoolRef,
}

impl InferenceObjectiveSpec {
    /// Of an objective that has none: it refers to no pool.
    pub(crate) const EMPTY: Self =
        Self { priority: None, pool_ref: PoolRef { group: String::new(), kind: String::new(), name: String::new() } };
}

/// Under which name the models of requests are known to the model servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "llm-d.ai",
    version = "v1alpha2",
    kind = "InferenceModelRewrite",
    plural = "inferencemodelrewrites",
    namespaced,
    status = "RewriteStatus",
    derive = "PartialEq",
    doc = "An InferenceModelRewrite replaces the model that a request names.",
    printcolumn(name = "Inference Pool", type_ = "string", json_path = ".spec.poolRef.name"),
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].reason"}"#,
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelRewriteSpec {
    /// The pool to whose requests the rules apply.
    pub pool_ref: PoolRef,
    pub rules: Vec<RewriteRule>,
}

/// A pool in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolRef {
    #[serde(default = "pool_group")]
    #[schemars(
        length(max = 253),
        regex(pattern = r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub group: String,
    #[serde(default = "pool_kind")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub kind: String,
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

fn pool_group() -> String {
    POOL_GROUP.to_owned()
}

fn pool_kind() -> String {
    "InferencePool".to_owned()
}

/// What the models of some requests become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RewriteRule {
    /// One match is enough. Without any, the rule is for every request that no other rule is for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<RewriteMatch>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub targets: Vec<RewriteTarget>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RewriteMatch {
    pub model: ModelMatch,
}

/// A model as requests name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelMatch {
    #[serde(default, rename = "type")]
    pub kind: MatchType,
    #[schemars(length(min = 1, max = MAX_MODEL_NAME))]
    pub value: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MatchType {
    #[default]
    Exact,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RewriteTarget {
    /// The name under which model servers know the model.
    #[schemars(length(min = 1, max = MAX_MODEL_NAME))]
    pub model_rewrite: String,
    /// The share of requests that get this target. Either all targets of a rule have a weight or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub weight: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectiveStatus {
    #[serde(default = "pending")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RewriteStatus {
    #[serde(default = "pending")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// One aspect of an object's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub kind: String,
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// The generation of the object that the condition speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
    pub reason: String,
    #[schemars(length(max = 32768))]
    pub message: String,
}

/// Before anybody has looked at the object.
fn pending() -> Vec<Condition> {
    vec![Condition {
        kind: "Accepted".to_owned(),
        status: "Unknown".to_owned(),
        observed_generation: None,
        last_transition_time: "1970-01-01T00:00:00Z".to_owned(),
        reason: "Pending".to_owned(),
        message: "no picker has looked at it yet".to_owned(),
    }]
}

/// The definitions of the kinds, to be installed in a cluster.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut objective = InferenceObjective::crd();
    // An objective may be made before it is decided what for.
    for version in &mut objective.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            schema.required = None;
        }
    }
    vec![InferenceModelRewrite::crd(), objective]
}

#[cfg(test)]
#[path = "crd_tests.rs"]
mod tests;
