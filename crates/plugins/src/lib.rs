//! Every built-in plugin, one file each. They use nothing but the public traits, so a plugin from elsewhere
//! can do whatever these can.

mod active_request_scorer;
mod agent_identity;
mod file_discovery;
pub mod flow;
mod inflight_load_producer;
mod max_endpoints;
mod max_score_picker;
mod random_picker;
mod single_profile_handler;
#[cfg(test)]
mod testing;

use sluice_config::PluginType;

use crate::active_request_scorer::ActiveRequestScorer;
use crate::agent_identity::AgentIdentity;
use crate::file_discovery::FileDiscoveryPlugin;
use crate::flow::{
    ConcurrencyDetector, Edf, Fcfs, GlobalStrict, PriorityHoldback, RoundRobin, SloDeadline, StaticUsageLimit, Weighted,
};
use crate::inflight_load_producer::InflightLoadProducer;
use crate::max_score_picker::MaxScorePicker;
use crate::random_picker::RandomPicker;
use crate::single_profile_handler::SingleProfileHandler;

/// The plugin types that a configuration can name.
pub const BUILTIN: &[PluginType] = &[
    // scheduling
    PluginType::of::<ActiveRequestScorer>(),
    PluginType::of::<MaxScorePicker>(),
    PluginType::of::<RandomPicker>(),
    PluginType::of::<SingleProfileHandler>(),
    // request control
    PluginType::of::<AgentIdentity>(),
    PluginType::of::<InflightLoadProducer>(),
    // admission
    PluginType::of::<ConcurrencyDetector>(),
    PluginType::of::<Edf>(),
    PluginType::of::<Fcfs>(),
    PluginType::of::<GlobalStrict>(),
    PluginType::of::<PriorityHoldback>(),
    PluginType::of::<RoundRobin>(),
    PluginType::of::<SloDeadline>(),
    PluginType::of::<StaticUsageLimit>(),
    PluginType::of::<Weighted>(),
    // endpoints
    PluginType::of::<FileDiscoveryPlugin>(),
];
