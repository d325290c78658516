use serde_json::{Value, json};

/// A picker's configuration with flow control: `slots` requests per model server, and the objectives interactive (100),
/// standard (0) and batch (-10).
pub fn flow_config(slots: u32) -> Value {
    json!({
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "featureGates": ["flowControl"],
        "plugins": [
            {"name": "endpoints", "type": "file-discovery", "parameters": {"path": "", "watchFile": true}},
            {"name": "in-flight", "type": "concurrency-detector", "parameters": {"maxConcurrency": slots}},
            {"type": "active-request-scorer"},
        ],
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "active-request-scorer"}]}],
        "dataLayer": {"discovery": {"pluginRef": "endpoints"}},
        "flowControl": {"saturationDetector": {"pluginRef": "in-flight"}, "defaultRequestTTL": "60s"},
        "sluice": {"objectives": [
            {"name": "interactive", "priority": 100},
            {"name": "standard", "priority": 0},
            {"name": "batch", "priority": -10},
        ]},
    })
}
