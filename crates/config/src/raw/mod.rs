//! The configuration as it is written: every section and field there is, nothing filled in.
//!
//! No field is required by its type: what is missing is noticed by whoever needs it, together with every
//! other mistake. A field that nothing reads yet has a type all the same, so that mistakes in it show.

mod flow_control;
mod sluice;

pub(crate) use flow_control::{RawFlowControl, RawPriorityBand};
pub(crate) use sluice::{RawModelRewrite, RawObjective, RawSluice};

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::document::Located;
use crate::timeout::Timeout;
use crate::weight::Weight;

/// The whole text.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawConfig {
    pub(crate) api_version: Option<Located<String>>,
    pub(crate) kind: Option<Located<String>>,
    pub(crate) feature_gates: Vec<Located<String>>,
    pub(crate) plugins: Vec<Located<RawPlugin>>,
    pub(crate) scheduling_profiles: Vec<Located<RawProfile>>,
    pub(crate) data_layer: RawDataLayer,
    pub(crate) flow_control: RawFlowControl,
    pub(crate) request_handler: RawRequestHandler,
    /// Deprecated: `flowControl.saturationDetector`.
    pub(crate) saturation_detector: Option<Located<RawPluginRef>>,
    /// Deprecated: the only element of `requestHandler.parsers`.
    pub(crate) parser: Option<Located<RawPluginRef>>,
    pub(crate) sluice: RawSluice,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPlugin {
    pub(crate) name: Option<Located<String>>,
    #[serde(rename = "type")]
    pub(crate) plugin_type: Option<Located<String>>,
    /// Known here, read by the plugin.
    pub(crate) parameters: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawProfile {
    pub(crate) name: Option<Located<String>>,
    pub(crate) plugins: Vec<Located<RawProfilePlugin>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawProfilePlugin {
    pub(crate) plugin_ref: Option<Located<String>>,
    pub(crate) weight: Option<Located<Weight>>,
}

/// A section that consists of the name of a plugin.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPluginRef {
    pub(crate) plugin_ref: Option<Located<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawDataLayer {
    pub(crate) inject_defaults: Option<bool>,
    pub(crate) sources: Vec<Located<RawSource>>,
    pub(crate) discovery: Option<Located<RawPluginRef>>,
    pub(crate) peer_discovery: Option<RawPluginRef>,
    pub(crate) cross_replica_syncer_plugin_ref: Option<Located<String>>,
    pub(crate) cross_replica_sync_interval: Option<Timeout>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawSource {
    pub(crate) plugin_ref: Option<Located<String>>,
    pub(crate) extractors: Vec<Located<RawPluginRef>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawRequestHandler {
    pub(crate) parsers: Vec<Located<RawPluginRef>>,
}
