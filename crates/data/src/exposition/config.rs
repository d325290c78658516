use serde::{Deserialize, Deserializer, Serialize, de};

use super::MetricSpec;

/// How the pages of one kind of model server are read, as a configuration says it: an element of `engineConfigs`.
///
/// A spec that is left out or empty is not looked for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineConfig {
    /// The value of the engine label of its endpoints.
    pub name: String,
    /// Requests in its queue.
    #[serde(default, deserialize_with = "spec_or_empty")]
    pub queued_requests_spec: Option<MetricSpec>,
    /// Requests that it works on. A counter is read as what it grows by per second.
    #[serde(default, deserialize_with = "spec_or_empty")]
    pub running_requests_spec: Option<MetricSpec>,
    /// The used part of the KV cache, 0 to 1.
    #[serde(default, deserialize_with = "spec_or_empty")]
    pub kv_usage_spec: Option<MetricSpec>,
    /// The series whose labels list the LoRA adapters.
    #[serde(default, deserialize_with = "spec_or_empty")]
    pub lora_spec: Option<MetricSpec>,
    /// The series whose labels describe the KV cache.
    #[serde(default, deserialize_with = "spec_or_empty")]
    pub cache_info_spec: Option<MetricSpec>,
    /// Which label of `cacheInfoSpec` has the tokens per block.
    #[serde(default = "block_size_label")]
    pub cache_block_size_label_name: String,
    /// Which label of `cacheInfoSpec` has the number of blocks.
    #[serde(default = "num_blocks_label")]
    pub cache_num_blocks_label_name: String,
    /// Tokens per block, where no label says it.
    #[serde(default, deserialize_with = "spec_or_empty")]
    pub cache_block_size_spec: Option<MetricSpec>,
    /// The number of blocks, where no label says it.
    #[serde(default, deserialize_with = "spec_or_empty")]
    pub cache_num_blocks_spec: Option<MetricSpec>,
    /// Further values, for plugins that ask for them by key.
    #[serde(default)]
    pub custom_metrics: Vec<CustomMetric>,
}

/// A value that a configuration names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CustomMetric {
    /// What plugins call it; unique within the engine.
    pub attribute_key: String,
    pub metric_spec: MetricSpec,
}

impl EngineConfig {
    /// Whether anything is read that tells how full an endpoint is.
    pub const fn tells_load(&self) -> bool {
        self.queued_requests_spec.is_some() || self.kv_usage_spec.is_some()
    }

    /// An engine of which nothing is read.
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            queued_requests_spec: None,
            running_requests_spec: None,
            kv_usage_spec: None,
            lora_spec: None,
            cache_info_spec: None,
            cache_block_size_label_name: block_size_label(),
            cache_num_blocks_label_name: num_blocks_label(),
            cache_block_size_spec: None,
            cache_num_blocks_spec: None,
            custom_metrics: Vec::new(),
        }
    }
}

fn block_size_label() -> String {
    "block_size".to_owned()
}

fn num_blocks_label() -> String {
    "num_gpu_blocks".to_owned()
}

fn spec_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MetricSpec>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.trim().is_empty() { Ok(None) } else { text.parse().map(Some).map_err(de::Error::custom) }
}
