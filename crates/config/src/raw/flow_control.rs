use serde::Deserialize;

use super::RawPluginRef;
use crate::document::Located;
use crate::quantity::{ByteSize, Count};
use crate::timeout::Timeout;

/// The section `flowControl`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawFlowControl {
    pub(crate) max_bytes: Option<ByteSize>,
    pub(crate) max_requests: Option<Count>,
    #[serde(rename = "defaultRequestTTL")]
    pub(crate) default_request_ttl: Option<Timeout>,
    #[serde(rename = "noEndpointRequestTTL")]
    pub(crate) no_endpoint_request_ttl: Option<Timeout>,
    pub(crate) default_priority_band: Option<Located<RawPriorityBand>>,
    pub(crate) default_negative_priority_band: Option<Located<RawPriorityBand>>,
    pub(crate) priority_bands: Vec<Located<RawPriorityBand>>,
    pub(crate) usage_limit_policy_plugin_ref: Option<Located<String>>,
    pub(crate) saturation_detector: Option<Located<RawPluginRef>>,
    pub(crate) enable_eviction: Option<Located<bool>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPriorityBand {
    pub(crate) priority: Option<Located<i32>>,
    pub(crate) max_bytes: Option<ByteSize>,
    pub(crate) max_requests: Option<Count>,
    pub(crate) fairness_policy_ref: Option<Located<String>>,
    pub(crate) ordering_policy_ref: Option<Located<String>>,
    #[serde(rename = "requestTTL")]
    pub(crate) request_ttl: Option<Timeout>,
    #[serde(rename = "noEndpointRequestTTL")]
    pub(crate) no_endpoint_request_ttl: Option<Timeout>,
    pub(crate) shed: bool,
}
