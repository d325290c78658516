//! Every built-in plugin, one file each. They use nothing but the public traits, so a plugin from elsewhere
//! can do whatever these can.

mod active_request_scorer;
mod agent_identity;
mod approx_prefix_cache_producer;
mod backlog;
mod core_metrics_extractor;
mod eviction_policies;
mod file_discovery;
pub mod flow;
mod fresh;
mod ignored_params;
mod inflight_load_producer;
mod kv_cache_utilization_scorer;
mod max_endpoints;
mod max_score_picker;
mod metrics_data_source;
mod parsers;
mod prefix_cache_scorer;
mod queue_scorer;
mod random_picker;
mod running_requests_size_scorer;
mod single_profile_handler;
#[cfg(test)]
mod testing;
mod weighted_random_picker;

use sluice_config::PluginType;

use crate::active_request_scorer::ActiveRequestScorer;
use crate::agent_identity::AgentIdentity;
use crate::approx_prefix_cache_producer::ApproxPrefixCacheProducer;
use crate::core_metrics_extractor::CoreMetricsExtractor;
use crate::eviction_policies::{PriorityThenTime, SheddableEvictionFilter};
use crate::file_discovery::FileDiscoveryPlugin;
use crate::flow::{
    ConcurrencyDetector, Edf, Fcfs, GlobalStrict, PriorityHoldback, RoundRobin, SloDeadline, StaticUsageLimit,
    UtilizationDetector, Weighted,
};
use crate::inflight_load_producer::InflightLoadProducer;
use crate::kv_cache_utilization_scorer::KvCacheUtilizationScorer;
use crate::max_score_picker::MaxScorePicker;
use crate::metrics_data_source::MetricsDataSource;
use crate::parsers::{AnthropicParser, OpenAiParser, PassthroughParser, VllmHttpParser};
use crate::prefix_cache_scorer::PrefixCacheScorer;
use crate::queue_scorer::QueueScorer;
use crate::random_picker::RandomPicker;
use crate::running_requests_size_scorer::RunningRequestsSizeScorer;
use crate::single_profile_handler::SingleProfileHandler;
use crate::weighted_random_picker::WeightedRandomPicker;

/// The plugin types that a configuration can name.
pub const BUILTIN: &[PluginType] = &[
    // scheduling
    PluginType::of::<ActiveRequestScorer>(),
    PluginType::of::<KvCacheUtilizationScorer>(),
    PluginType::of::<MaxScorePicker>(),
    PluginType::of::<PrefixCacheScorer>(),
    PluginType::of::<QueueScorer>(),
    PluginType::of::<RandomPicker>(),
    PluginType::of::<RunningRequestsSizeScorer>(),
    PluginType::of::<SingleProfileHandler>(),
    PluginType::of::<WeightedRandomPicker>(),
    // request control
    PluginType::of::<AgentIdentity>(),
    PluginType::of::<ApproxPrefixCacheProducer>(),
    PluginType::of::<InflightLoadProducer>(),
    PluginType::of::<OpenAiParser>(),
    PluginType::of::<AnthropicParser>(),
    PluginType::of::<VllmHttpParser>(),
    PluginType::of::<PassthroughParser>(),
    // admission
    PluginType::of::<ConcurrencyDetector>(),
    PluginType::of::<Edf>(),
    PluginType::of::<Fcfs>(),
    PluginType::of::<GlobalStrict>(),
    PluginType::of::<PriorityHoldback>(),
    PluginType::of::<RoundRobin>(),
    PluginType::of::<SloDeadline>(),
    PluginType::of::<StaticUsageLimit>(),
    PluginType::of::<UtilizationDetector>(),
    PluginType::of::<Weighted>(),
    PluginType::of::<SheddableEvictionFilter>(),
    PluginType::of::<PriorityThenTime>(),
    // endpoints
    PluginType::of::<CoreMetricsExtractor>(),
    PluginType::of::<FileDiscoveryPlugin>(),
    PluginType::of::<MetricsDataSource>(),
];
