//! The plugin types that llm-d-router's EPP knows.

/// Every plugin type of llm-d-router's EPP. One that a registry does not have is not a typo but something
/// this version cannot do.
const KNOWN: &[&str] = &[
    // filters
    "label-selector-filter",
    "by-label-selector",
    "by-label",
    "encode-filter",
    "prefill-filter",
    "decode-filter",
    "prefix-cache-affinity-filter",
    "slo-headroom-tier-filter",
    "session-affinity-filter",
    "multicluster-session-affinity-filter",
    "endpoint-attribute-filter",
    "topology-affinity-filter",
    "utilization-filter",
    "header-based-testing-filter",
    // scorers
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "running-requests-size-scorer",
    "prefix-cache-scorer",
    "lora-affinity-scorer",
    "token-load-scorer",
    "active-request-scorer",
    "load-aware-scorer",
    "no-hit-lru-scorer",
    "context-length-aware",
    "precise-prefix-cache-scorer",
    "mm-embeddings-cache-scorer",
    "latency-scorer",
    "session-affinity-scorer",
    "header-label-affinity-scorer",
    "endpoint-attribute-scorer",
    "topology-affinity-scorer",
    "multicluster-queue-scorer",
    "multicluster-kv-cache-utilization-scorer",
    "multicluster-prefix-cache-scorer",
    // pickers
    "max-score-picker",
    "random-picker",
    "weighted-random-picker",
    // profile handlers and what they ask
    "single-profile-handler",
    "disagg-profile-handler",
    "pd-profile-handler",
    "data-parallel-profile-handler",
    "header-profile-handler",
    "always-disagg-pd-decider",
    "prefix-based-pd-decider",
    "always-disagg-multimodal-decider",
    "disagg-headers-handler",
    "prefill-header-handler",
    // flow control
    "global-strict-fairness-policy",
    "round-robin-fairness-policy",
    "program-aware-fairness",
    "fcfs-ordering-policy",
    "edf-ordering-policy",
    "slo-deadline-ordering-policy",
    "static-usage-limit-policy",
    "priority-holdback-policy",
    "soft-reflective-ceiling-policy",
    "sheddable-eviction-filter",
    "priority-then-time-eviction-order-policy",
    "utilization-detector",
    "concurrency-detector",
    // request control
    "approx-prefix-cache-producer",
    "inflight-load-producer",
    "predicted-latency-producer",
    "mm-embeddings-cache-producer",
    "token-producer",
    "tokenizer",
    "session-id-producer",
    "precise-prefix-cache-producer",
    "burst-prefix-cache-producer",
    "p2p-source-producer",
    "multicluster-approx-prefix-cache-producer",
    "latency-slo-admitter",
    "probabilistic-admitter",
    "disaggregatedset-rollout-screener",
    "agent-identity",
    "request-attribute-reporter",
    "destination-endpoint-served-verifier",
    // parsers
    "openai-parser",
    "anthropic-parser",
    "vllmhttp-parser",
    "sglanghttp-parser",
    "vllmgrpc-parser",
    "vertexai-parser",
    "passthrough-parser",
    // data layer
    "metrics-data-source",
    "multicluster-metrics-data-source",
    "models-data-source",
    "dcgm-data-source",
    "k8s-notification-source",
    "endpoint-notification-source",
    "core-metrics-extractor",
    "multicluster-metrics-extractor",
    "models-data-extractor",
    "dcgm-extractor",
    "topology-extractor",
    "file-discovery",
    "multicluster-file-discovery",
];

pub(crate) fn is_known(plugin_type: &str) -> bool {
    KNOWN.contains(&plugin_type)
}

pub(crate) fn known() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().copied()
}

/// What to do without a type that this version does not have.
pub(crate) fn advice(plugin_type: &str) -> Option<&'static str> {
    Some(match plugin_type {
        "sglanghttp-parser" | "vllmgrpc-parser" | "vertexai-parser" => {
            "the passthrough-parser passes such requests on without reading them"
        }
        "load-aware-scorer" => "active-request-scorer prefers endpoints with fewer requests in flight",
        "by-label" | "by-label-selector" => "llm-d-router has deprecated it in favour of label-selector-filter",
        "pd-profile-handler"
        | "data-parallel-profile-handler"
        | "disagg-headers-handler"
        | "prefill-header-handler" => "llm-d-router has deprecated it in favour of disagg-profile-handler",
        "tokenizer" => "llm-d-router has deprecated it in favour of token-producer",
        "precise-prefix-cache-scorer" => {
            "llm-d-router has deprecated it in favour of prefix-cache-scorer and precise-prefix-cache-producer"
        }
        _ => return None,
    })
}
