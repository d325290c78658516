//! What a configuration says of the requests that come from now on: a pure function of it and the flags.

use sluice_config::settings::{
    self, DrainQueued, HeaderOnly, MessageTimeout, RefusalBody, Settings, TrustSource, UnknownObjective,
};
use sluice_config::{Assembled, FlowControl};
use sluice_core::Priority;
use sluice_extproc::{Bodies, MidStream, RefusalStyle, ServiceSettings};
use sluice_flow::policy::{BookingLimit, EndpointFacts, SaturationDetector};
use sluice_flow::{Config, EndpointKey, Stages};
use sluice_router::{IdentityRules, Objectives, RewriteRule, RewriteTarget};

use crate::flags::Flags;
use crate::memory;

/// How streams are treated.
pub(crate) fn service_settings(assembled: &Assembled, flags: &Flags) -> ServiceSettings {
    let Assembled { flow_control, legacy_detector, parsers, token_estimate, settings, .. } = assembled;
    let flow_control = flow_control.as_ref();
    let detector = flow_control.map(|flow_control| &flow_control.config.detector).or(legacy_detector.as_ref());
    let max_request_body = settings.limits.max_request_body.0;
    ServiceSettings {
        parsers: *parsers,
        max_request_headers: settings.limits.max_request_headers.0,
        max_request_body,
        body_progress_timeout: settings.limits.body_progress_timeout.0,
        body_memory: memory::body_memory(settings.limits.body_memory.0),
        refusal_style: match settings.refusals.body {
            RefusalBody::Api => RefusalStyle::Api,
            RefusalBody::Text => RefusalStyle::Text,
        },
        retry_after: settings.refusals.retry_after,
        bodies: match settings.bodies {
            settings::Bodies::Auto => Bodies::Auto,
            settings::Bodies::Full => Bodies::Full,
            settings::Bodies::Headers => Bodies::Headers,
        },
        // The client's bound on generated tokens stands in the body.
        needs_request_body: token_estimate.output.is_some(),
        needs_response_body: flow_control.is_some_and(heeds_real_cost),
        bounds_tokens: detector.is_some_and(|detector| bounds_tokens(&**detector)),
        extend_message_timeout: settings.message_timeout == MessageTimeout::Extend,
        hand_over: settings.drain.queued == DrainQueued::HandOver,
        eviction: flow_control.is_some_and(|flow_control| evicts(&flow_control.config)).then(|| mid_stream(settings)),
        vouched_namespace: settings.trust.metadata_namespace.clone(),
        max_message: max_message(flags, max_request_body),
    }
}

/// Who a request is from.
pub(crate) fn identity_rules(settings: &Settings, tenant_headers: &[String]) -> IdentityRules {
    IdentityRules {
        only_vouched: settings.trust.source == TrustSource::Metadata,
        default_objective: settings.default_objective.clone(),
        refuse_unknown: settings.unknown_objective == UnknownObjective::Reject,
        tenant_headers: tenant_headers.to_vec(),
    }
}

/// The objectives of the configuration.
pub(crate) fn objectives(settings: &Settings) -> Objectives {
    let objectives = settings.objectives.iter();
    objectives.map(|objective| (objective.name.clone(), Priority(objective.priority))).collect()
}

/// The rules of the configuration by which models are replaced, under the name of the setting.
pub(crate) fn model_rewrites(settings: &Settings) -> Vec<RewriteRule> {
    let target = |target: &settings::RewriteTarget| {
        let settings::RewriteTarget { model_rewrite, weight } = target;
        RewriteTarget { model: model_rewrite.clone(), weight: *weight }
    };
    let rule = |rule: &settings::ModelRewrite| RewriteRule {
        origin: "sluice.modelRewrites".into(),
        models: rule.models.clone(),
        targets: rule.targets.iter().map(target).collect(),
    };
    settings.model_rewrites.iter().map(rule).collect()
}

/// Requests without a body are admitted and counted like any other.
pub(crate) fn admit_header_only(settings: &Settings) -> bool {
    settings.header_only == HeaderOnly::Admit
}

/// How many tenants metrics tell apart.
pub(crate) fn max_tenants(settings: &Settings) -> usize {
    usize::try_from(settings.metrics.max_tenants).unwrap_or(usize::MAX)
}

/// Requests are charged what they really cost, which their responses tell.
fn heeds_real_cost(FlowControl { config, desired: _ }: &FlowControl) -> bool {
    let bands = config.bands.values().chain([&config.template]).chain(&config.negative_template);
    bands.into_iter().any(|band| band.fairness.heeds_real_cost())
}

/// Whether what endpoints have in flight is bounded in tokens.
fn bounds_tokens(detector: &dyn SaturationDetector) -> bool {
    let endpoint =
        EndpointFacts { key: EndpointKey(0), partitions: Stages::DECODE.partitions(), max_concurrency: None };
    detector.new_state().booking_limit(&endpoint).tokens < BookingLimit::UNLIMITED.tokens
}

/// Whether requests in flight may have to make room in earnest.
const fn evicts(config: &Config) -> bool {
    config.eviction.is_some() && !config.dry_run.eviction
}

const fn mid_stream(settings: &Settings) -> MidStream {
    match settings.eviction.mid_stream {
        settings::MidStream::EventThenReset => MidStream::EventThenReset,
        settings::MidStream::Reset => MidStream::Reset,
        settings::MidStream::EventThenEnd => MidStream::EventThenEnd,
    }
}

/// The largest message that is taken from the proxy: by default room for the largest body in one piece.
fn max_message(flags: &Flags, max_request_body: u64) -> usize {
    let given = flags.grpc_max_recv_msg_size.and_then(|size| size.0);
    given.unwrap_or_else(|| usize::try_from(max_request_body.saturating_add(1 << 20)).unwrap_or(usize::MAX))
}
