//! What the section `sluice` asks for, with every default filled in.

use std::num::NonZeroU32;

use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::quantity::ByteSize;
use crate::timeout::Timeout;

/// Sluice's own settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// In the order they are written; every name once.
    pub objectives: Vec<Objective>,
    /// In the order they are written.
    pub model_rewrites: Vec<ModelRewrite>,
    /// The objective of a request that names none.
    pub default_objective: Option<String>,
    pub unknown_objective: UnknownObjective,
    pub trust: Trust,
    pub header_only: HeaderOnly,
    pub bodies: Bodies,
    pub message_timeout: MessageTimeout,
    /// What is counted instead of done.
    pub dry_run: Vec<DryRun>,
    pub queue: Queue,
    pub eviction: Eviction,
    pub refusals: Refusals,
    pub limits: Limits,
    pub reload: Reload,
    pub drain: Drain,
    pub metrics: Metrics,
}

/// As an InferenceObjective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Objective {
    pub name: String,
    pub priority: i32,
}

/// As a rule of an InferenceModelRewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRewrite {
    /// The models it applies to; every request if there are none.
    pub models: Vec<String>,
    pub targets: Vec<RewriteTarget>,
}

/// As it is written in a configuration.
impl Serialize for ModelRewrite {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { models, targets } = self;
        let matches: Vec<_> = models.iter().map(|model| json!({"model": {"value": model}})).collect();
        json!({"matches": matches, "targets": targets}).serialize(serializer)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewriteTarget {
    pub model_rewrite: String,
    pub weight: Option<NonZeroU32>,
}

/// What happens to a request whose objective nobody has defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownObjective {
    /// It runs as if it had named none.
    #[default]
    Default,
    /// It is answered 400.
    Reject,
}

/// Who says which objective and tenant a request has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Trust {
    pub source: TrustSource,
    /// The namespace of the ext_proc metadata, for [`TrustSource::Metadata`].
    pub metadata_namespace: String,
}

impl Default for Trust {
    fn default() -> Self {
        Self { source: TrustSource::default(), metadata_namespace: "sluice".to_owned() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrustSource {
    /// The client, by request headers.
    #[default]
    Headers,
    /// The proxy, by ext_proc metadata; what the client says is ignored.
    Metadata,
}

/// What happens to requests that have no body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeaderOnly {
    /// They get an endpoint, but neither queue nor count.
    #[default]
    Pass,
    /// They are admitted like any other.
    Admit,
}

/// Which request bodies are asked for where the proxy lets the picker choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bodies {
    /// Those that a plugin needs.
    #[default]
    Auto,
    Full,
    Headers,
}

/// What happens while a request waits in a body mode in which the proxy measures the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageTimeout {
    /// A proxy that would not wait long enough is asked for more time. From then on the request cannot move to another
    /// picker.
    #[default]
    Extend,
    /// Nothing: the proxy's timeout is long enough.
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DryRun {
    Ceilings,
    Eviction,
}

/// Requests that wait.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Queue {
    pub when_full: WhenFull,
    pub max_flows_per_band: NonZeroU32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { when_full: WhenFull::default(), max_flows_per_band: ONE_THOUSAND }
    }
}

const ONE_THOUSAND: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// Who goes when a global limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// The newcomer.
    #[default]
    Reject,
    /// Waiting requests of lower bands.
    Displace,
}

/// How running requests make room for more urgent ones.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Eviction {
    pub mid_stream: MidStream,
    pub victim_order: VictimOrder,
    /// At most this many at a time; 0 for as many as the waiting demand needs.
    pub max_in_flight_revocations: u32,
    /// A victim whose stream has not ended by then no longer holds back the next one.
    pub confirmation_timeout: Timeout,
}

impl Default for Eviction {
    fn default() -> Self {
        Self {
            mid_stream: MidStream::default(),
            victim_order: VictimOrder::default(),
            max_in_flight_revocations: 0,
            confirmation_timeout: Timeout::from_secs(1),
        }
    }
}

/// What a client sees when its stream is taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MidStream {
    #[default]
    EventThenReset,
    Reset,
    EventThenEnd,
}

/// Who is evicted first among those of the lowest priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VictimOrder {
    #[default]
    Newest,
    MostSlack,
    Cheapest,
}

/// What a refused client is told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Refusals {
    pub body: RefusalBody,
    /// Say when to come back.
    pub retry_after: bool,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { body: RefusalBody::default(), retry_after: true }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalBody {
    /// In the shape of the API that was called.
    #[default]
    Api,
    Text,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Longer request headers are answered 431.
    pub max_request_headers: ByteSize,
    /// A longer request body is answered 413.
    pub max_request_body: ByteSize,
    /// A body that stops arriving for this long is answered 408.
    pub body_progress_timeout: Timeout,
    /// Bytes of requests, headers and bodies, held before admission; 0 for a quarter of the memory the process may use.
    pub body_memory: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_request_headers: ByteSize(64 << 10),
            max_request_body: ByteSize(64 << 20),
            body_progress_timeout: Timeout::from_secs(60),
            body_memory: ByteSize(0),
        }
    }
}

/// Whether changes of the configuration file are followed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Reload {
    pub enabled: bool,
}

impl Default for Reload {
    fn default() -> Self {
        Self { enabled: true }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Drain {
    pub queued: DrainQueued,
}

/// What happens to queued requests after the drain window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainQueued {
    #[default]
    Refuse,
    HandOver,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Metrics {
    /// Also emit the names that llm-d-router's EPP has deprecated.
    pub legacy_names: bool,
    /// Tenants that get a label value of their own.
    pub max_tenants: u32,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { legacy_names: true, max_tenants: 1000 }
    }
}
