//! The way of a request: which endpoints it may use, which one it gets, and the booking that makes it count.

pub mod admission;
mod ask;
mod flow_durations;
mod flow_metrics;
mod gatekeeper;
mod identity;
mod in_flight;
mod model_rewrite;
mod per_tenant;
mod placement;
mod rejection;
mod route;
mod tenant_labels;
mod twin;

pub use flow_durations::FlowDurations;
pub use flow_metrics::{FlowCollector, FlowPlugins, FlowSnapshot, FlowState};
pub use gatekeeper::{Gatekeeper, SheddingGate};
pub use identity::{
    DEFAULT_TENANT, Identities, Identity, IdentityRules, Objectives, Resolved, SharedObjectives, Vouched,
};
pub use in_flight::InFlight;
pub use model_rewrite::{ModelRewrites, RewriteRule, RewriteTarget, Rewritten, SharedModelRewrites};
pub use per_tenant::PerTenant;
pub use placement::SharedScheduler;
pub use rejection::Rejection;
pub use route::{Intent, Routed, Router, RouterParts};
pub use tenant_labels::{OTHER, TenantLabel, TenantLabels};
pub use twin::Twin;
