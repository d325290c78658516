//! Versions, gates, deprecated fields, and settings that do nothing yet.

use insta::assert_snapshot;

use crate::support::{accept, diagnose};

#[test]
fn only_the_version_and_kind_that_are_read_here() {
    assert_snapshot!(diagnose("apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n"), @r#"
    c.yaml:1:13: warning: apiVersion: "inference.networking.x-k8s.io/v1alpha1" is deprecated; write llm-d.ai/v1alpha1
    ok
    "#);
    assert_snapshot!(diagnose("apiVersion: llm-d.ai/v1\nkind: InferencePool\n"), @r#"
    c.yaml:1:13: apiVersion: unknown version "llm-d.ai/v1"; write llm-d.ai/v1alpha1
    c.yaml:2:7: kind: unknown kind "InferencePool"; write EndpointPickerConfig
    "#);
}

#[test]
fn feature_gates_are_switched_in_the_notation_of_go() {
    assert_snapshot!(diagnose("
featureGates:
  - flowControl=False
  - 'flowControl= f '
  - flowControl=0=1
  - haPopulateNonLeaderDatastore
  - haPopulateNonLeaderDatastore=T
"), @r#"
    c.yaml:5:5: warning: featureGates[2]: "1", behind the second =, has no effect
    ok
    "#);
    assert_snapshot!(diagnose("
featureGates:
  - flowControls
  - dataLayerr=true
  - ' flowControl'
  - flowControl=yes
  - flowControl=
  - enableLegacyMetrics=maybe
"), @r#"
    c.yaml:3:5: featureGates[0]: unknown feature gate "flowControls", did you mean "flowControl"?
    c.yaml:4:5: featureGates[1]: unknown feature gate "dataLayerr"; the gates are flowControl, haPopulateNonLeaderDatastore
    c.yaml:5:5: featureGates[2]: unknown feature gate " flowControl", did you mean "flowControl"?
    c.yaml:6:5: featureGates[3]: the value of feature gate "flowControl=yes" must be true or false
    c.yaml:7:5: featureGates[4]: the value of feature gate "flowControl=" must be true or false
    c.yaml:8:5: featureGates[5]: the value of feature gate "enableLegacyMetrics=maybe" must be true or false
    "#);
}

#[test]
fn retired_gates_warn() {
    assert_snapshot!(diagnose("featureGates: [dataLayer, enableLegacyMetrics=false, prepareDataPlugins]"), @r#"
    c.yaml:1:16: warning: featureGates[0]: the feature gate "dataLayer" is retired; remove it
    c.yaml:1:27: warning: featureGates[1]: the feature gate "enableLegacyMetrics" is retired; remove it
    c.yaml:1:54: warning: featureGates[2]: the feature gate "prepareDataPlugins" is retired; remove it
    ok
    "#);
}

#[test]
fn of_a_gate_that_is_repeated_the_last_item_counts() {
    for (gates, flow_control, populate_standbys) in [
        ("[]", false, true),
        ("[flowControl]", true, true),
        ("[flowControl, flowControl=false]", false, true),
        ("[haPopulateNonLeaderDatastore=false]", false, false),
        ("[haPopulateNonLeaderDatastore=false, haPopulateNonLeaderDatastore]", false, true),
    ] {
        let assembled = accept(&format!("featureGates: {gates}"));
        let found = (assembled.flow_control.is_some(), assembled.populate_standbys);
        assert_eq!(found, (flow_control, populate_standbys), "{gates}");
        let again = accept(&assembled.effective.to_string());
        assert_eq!(again.populate_standbys, populate_standbys, "{gates}, as it is printed");
    }
}

#[test]
fn deprecated_fields_move() {
    assert_snapshot!(diagnose("
saturationDetector: {pluginRef: utilization-detector}
parser: {pluginRef: openai-parser}
"), @"
    c.yaml:2:1: warning: saturationDetector: deprecated in favour of flowControl.saturationDetector
    c.yaml:3:1: warning: parser: deprecated in favour of requestHandler.parsers
    ok
    ");
    assert_snapshot!(diagnose("
saturationDetector: {pluginRef: utilization-detector}
parser: {pluginRef: openai-parser}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
requestHandler: {parsers: [{pluginRef: anthropic-parser}]}
"), @r#"
    c.yaml:2:1: warning: saturationDetector: deprecated in favour of flowControl.saturationDetector; ignored, because that is set too
    c.yaml:3:1: warning: parser: deprecated in favour of requestHandler.parsers; ignored, because that is set too
    c.yaml:4:47: flowControl.saturationDetector.pluginRef: there is no plugin "concurrency-detector"; declare it under plugins
    "#);
}

#[test]
fn settings_without_effect_are_named() {
    assert_snapshot!(diagnose("
dataLayer:
  injectDefaults: false
  peerDiscovery: {pluginRef: x}
  crossReplicaSyncInterval: 1s
flowControl:
  maxBytes: 6Gi
  maxRequests: 20k
  defaultRequestTTL: 25s
  enableEviction: true
  defaultPriorityBand: {maxRequests: 400}
  priorityBands: [{priority: 20, fairnessPolicyRef: rr}]
sluice:
  objectives: [{name: premium, priority: 100}]
  queue: {whenFull: displace}
  eviction: {victimOrder: cheapest}
  limits: {maxRequestBody: 1Mi}
  bodies: null
"), @"
    c.yaml:4:19: warning: dataLayer.peerDiscovery.pluginRef: has no effect: this version has no peer discovery yet
    c.yaml:5:3: warning: dataLayer.crossReplicaSyncInterval: has no effect: this version has no synchronisation between replicas yet
    c.yaml:7:3: warning: flowControl.maxBytes: has no effect without the feature gate flowControl
    c.yaml:8:3: warning: flowControl.maxRequests: has no effect without the feature gate flowControl
    c.yaml:9:3: warning: flowControl.defaultRequestTTL: has no effect without the feature gate flowControl
    c.yaml:10:3: warning: flowControl.enableEviction: has no effect without the feature gate flowControl
    c.yaml:11:3: warning: flowControl.defaultPriorityBand: has no effect without the feature gate flowControl
    c.yaml:12:3: warning: flowControl.priorityBands: has no effect without the feature gate flowControl
    c.yaml:15:11: warning: sluice.queue.whenFull: has no effect without the feature gate flowControl
    c.yaml:16:14: warning: sluice.eviction.victimOrder: has no effect without the feature gate flowControl
    ok
    ");
}

#[test]
fn what_is_empty_sets_nothing() {
    assert_eq!(
        diagnose("{flowControl: {}, sluice: {dryRun: [], queue: {}, eviction: {}}, dataLayer: {peerDiscovery: {}}}"),
        "ok"
    );
}

#[test]
fn sluice_settings_are_checked() {
    assert_snapshot!(diagnose("
sluice:
  objectives: [{name: a}, {name: a, priority: 1}, {priority: 3}, {name: b, priority: 3000000000}]
  modelRewrites:
    - matches: [{model: {type: Regex, value: x}}, {model: {value: ''}}, {}]
      targets: [{modelRewrite: a, weight: 0}, {weight: 2}]
  unknownObjective: drop
  trust: {source: header}
  headerOnly: skip
  bodies: none
  dryRun: [ceiling]
  queue: {whenFull: displaced, maxFlowsPerBand: 0}
  eviction: {midStream: reset-now, victimOrder: oldest, confirmationTimeout: 1}
  refusals: {body: json, retryAfter: sometimes}
  limits: {maxRequestBody: 0, bodyProgressTimeout: -1s, bodyMemory: lots, maxRequestHeaders: 0}
  reload: {enable: true}
  drain: {queued: handover}
  metrics: {maxTenants: -1}
"), @r#"
    c.yaml:3:34: sluice.objectives[1].name: there is an objective "a" already
    c.yaml:3:51: sluice.objectives[2].name: the field "name" is missing
    c.yaml:3:86: sluice.objectives[3].priority: expected a whole number from -2147483648 to 2147483647, found the number 3000000000
    c.yaml:5:32: sluice.modelRewrites[0].matches[0].model.type: unknown value "Regex"; the values are Exact
    c.yaml:5:59: sluice.modelRewrites[0].matches[1].model.value: the field "value" is missing
    c.yaml:5:73: sluice.modelRewrites[0].matches[2].model: the field "model" is missing
    c.yaml:6:43: sluice.modelRewrites[0].targets[0].weight: expected a whole number from 1 to 4294967295, found the number 0
    c.yaml:6:47: sluice.modelRewrites[0].targets[1].modelRewrite: the field "modelRewrite" is missing
    c.yaml:7:21: sluice.unknownObjective: unknown value "drop"; the values are default, reject
    c.yaml:8:19: sluice.trust.source: unknown value "header", did you mean "headers"?
    c.yaml:9:15: sluice.headerOnly: unknown value "skip"; the values are pass, admit
    c.yaml:10:11: sluice.bodies: unknown value "none"; the values are auto, full, headers
    c.yaml:11:12: sluice.dryRun[0]: unknown value "ceiling", did you mean "ceilings"?
    c.yaml:12:21: sluice.queue.whenFull: unknown value "displaced", did you mean "displace"?
    c.yaml:12:49: sluice.queue.maxFlowsPerBand: expected a whole number from 1 to 4294967295, found the number 0
    c.yaml:13:25: sluice.eviction.midStream: unknown value "reset-now"; the values are event-then-reset, reset, event-then-end
    c.yaml:13:49: sluice.eviction.victimOrder: unknown value "oldest"; the values are newest, most-slack, cheapest
    c.yaml:13:78: sluice.eviction.confirmationTimeout: expected a duration with a unit, such as 200ms or 30s, found the number 1
    c.yaml:14:20: sluice.refusals.body: unknown value "json"; the values are api, text
    c.yaml:14:38: sluice.refusals.retryAfter: expected true or false, found the string "sometimes"
    c.yaml:15:28: sluice.limits.maxRequestBody: a limit of 0 would refuse every request; write a size such as 64Mi
    c.yaml:15:52: sluice.limits.bodyProgressTimeout: -1s is negative, it must be zero or more
    c.yaml:15:69: sluice.limits.bodyMemory: invalid quantity "lots": it has no digits
    c.yaml:15:94: sluice.limits.maxRequestHeaders: a limit of 0 would refuse every request; write a size such as 64Ki
    c.yaml:16:12: sluice.reload.enable: unknown field "enable", did you mean "enabled"?
    c.yaml:17:19: sluice.drain.queued: unknown value "handover", did you mean "hand-over"?
    c.yaml:18:25: sluice.metrics.maxTenants: expected a whole number from 0 to 4294967295, found the number -1
    "#);
}

#[test]
fn a_model_has_a_name_and_not_too_long_a_one() {
    let longest = "m".repeat(4_096);
    let rule = |from: &str, to: &str| {
        diagnose(&format!(
            "sluice:\n  modelRewrites:\n  - matches:\n    - model: {{value: {from}}}\n    targets:\n    - modelRewrite: {to}\n"
        ))
    };
    assert_eq!(rule(&longest, &longest), "ok");
    assert_snapshot!(rule("a", "''"), @"c.yaml:6:21: sluice.modelRewrites[0].targets[0].modelRewrite: the name of the model is empty");
    let longer = longest + "m";
    assert_snapshot!(rule("a", &longer), @"c.yaml:6:21: sluice.modelRewrites[0].targets[0].modelRewrite: the name of a model has at most 4096 bytes, and this one has 4097");
    assert_snapshot!(rule(&longer, "a"), @"c.yaml:4:22: sluice.modelRewrites[0].matches[0].model.value: the name of a model has at most 4096 bytes, and this one has 4097");
}

#[test]
fn the_default_objective_is_one_of_the_objectives() {
    assert_snapshot!(diagnose("sluice: {objectives: [{name: premium, priority: 2}], defaultObjective: premium}"), @"ok");
    assert_snapshot!(diagnose("sluice: {objectives: [{name: premium, priority: 2}], defaultObjective: premum}"), @r#"c.yaml:1:72: sluice.defaultObjective: there is no objective "premum", did you mean "premium"?"#);
    assert_snapshot!(diagnose("sluice: {defaultObjective: premium}"), @r#"c.yaml:1:28: sluice.defaultObjective: there is no objective "premium"; define it under sluice.objectives"#);
    assert_snapshot!(diagnose("sluice: {defaultObjective: ''}"), @"ok");
    // It may be the one that could not be read.
    assert_snapshot!(diagnose("sluice: {objectives: [{nam: premium}], defaultObjective: premium}"), @r#"
    c.yaml:1:23: sluice.objectives[0].name: the field "name" is missing
    c.yaml:1:24: sluice.objectives[0].nam: unknown field "nam", did you mean "name"?
    "#);
}

#[test]
fn priorities_have_the_range_of_32_bits() {
    let objectives = |priorities: &str| format!("sluice: {{objectives: [{priorities}]}}");
    assert_snapshot!(diagnose(&objectives("{name: a, priority: 2147483647}, {name: b, priority: -2147483648}")), @"ok");
    assert_snapshot!(diagnose(&objectives("{name: a, priority: 2147483648}, {name: b, priority: 1.5}, {name: c, priority: '1'}")), @r#"
    c.yaml:1:43: sluice.objectives[0].priority: expected a whole number from -2147483648 to 2147483647, found the number 2147483648
    c.yaml:1:76: sluice.objectives[1].priority: expected a whole number from -2147483648 to 2147483647, found the number 1.5
    c.yaml:1:102: sluice.objectives[2].priority: expected a whole number from -2147483648 to 2147483647, found the string "1"; remove the quotes
    "#);
}

#[test]
fn metadata_is_read_from_a_namespace_with_a_name() {
    assert_snapshot!(diagnose("sluice: {trust: {source: metadata, metadataNamespace: auth}}"), @"ok");
    assert_snapshot!(diagnose("sluice: {trust: {source: metadata, metadataNamespace: ''}}"), @"c.yaml:1:55: sluice.trust.metadataNamespace: the namespace has no name");
    assert_snapshot!(diagnose("sluice: {trust: {metadataNamespace: auth}}"), @"
    c.yaml:1:18: warning: sluice.trust.metadataNamespace: has no effect: only with source metadata is any metadata read
    ok
    ");
}

#[test]
fn rules_of_rewrites_that_leave_requests_or_targets_with_nothing_are_remarked_upon() {
    let with = |targets: &str| diagnose(&format!("sluice: {{modelRewrites: [{{targets: [{targets}]}}]}}"));
    assert_snapshot!(with("{modelRewrite: a, weight: 1}, {modelRewrite: b, weight: 2}"), @"ok");
    assert_snapshot!(with("{modelRewrite: a}, {modelRewrite: b}"), @"ok");
    assert_snapshot!(with("{modelRewrite: a}, {modelRewrite: b, weight: 2}"), @"
    c.yaml:1:37: warning: sluice.modelRewrites[0].targets[0]: gets no requests: it has no weight, and other targets of the rule have one; give it a weight, or take those of the others away
    ok
    ");
    assert_snapshot!(with(""), @"
    c.yaml:1:26: warning: sluice.modelRewrites[0]: has no targets: the requests that it is for are refused
    ok
    ");
}
