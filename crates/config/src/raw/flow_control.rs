use serde::Deserialize;

use super::RawPluginRef;
use crate::document::Located;
use crate::quantity::{ByteSize, Count};
use crate::timeout::Timeout;

/// The section `flowControl`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawFlowControl {
    max_bytes: Option<ByteSize>,
    max_requests: Option<Count>,
    #[serde(rename = "defaultRequestTTL")]
    default_request_ttl: Option<Timeout>,
    #[serde(rename = "noEndpointRequestTTL")]
    no_endpoint_request_ttl: Option<Timeout>,
    default_priority_band: Option<RawPriorityBand>,
    default_negative_priority_band: Option<RawPriorityBand>,
    pub(crate) priority_bands: Vec<Located<RawPriorityBand>>,
    usage_limit_policy_plugin_ref: Option<String>,
    pub(crate) saturation_detector: Option<Located<RawPluginRef>>,
    enable_eviction: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPriorityBand {
    pub(crate) priority: Option<Located<i32>>,
    max_bytes: Option<ByteSize>,
    max_requests: Option<Count>,
    fairness_policy_ref: Option<String>,
    ordering_policy_ref: Option<String>,
    #[serde(rename = "requestTTL")]
    request_ttl: Option<Timeout>,
    #[serde(rename = "noEndpointRequestTTL")]
    no_endpoint_request_ttl: Option<Timeout>,
    shed: Option<bool>,
}
