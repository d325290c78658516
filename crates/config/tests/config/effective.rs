//! The configuration in force, written as one.

use serde_json::json;

use crate::support::accept;

const FULL: &str = "
featureGates: [flowControl]
plugins:
  - {name: cap, type: concurrency-detector, parameters: {number: 7}}
  - {name: reserve, type: static-usage-limit-policy, parameters: {number: 8}}
  - {name: deadline, type: edf-ordering-policy}
  - {type: test-discovery, parameters: {path: endpoints.yaml, watch: true}}
  - {type: test-scorer}
  - {type: test-picker}
  - {type: test-filter, parameters: {labels: [a], limit: {value: 0.5}}}
schedulingProfiles:
  - {name: main, plugins: [{pluginRef: test-filter}, {pluginRef: test-scorer, weight: 0.1}]}
dataLayer: {discovery: {pluginRef: test-discovery}}
flowControl:
  maxBytes: 6Gi
  defaultRequestTTL: 1m30.5s
  saturationDetector: {pluginRef: cap}
  usageLimitPolicyPluginRef: reserve
  priorityBands:
    - {priority: 20, maxRequests: '4k', orderingPolicyRef: deadline}
    - {priority: -5, requestTTL: 5s, noEndpointRequestTTL: 0s}
    - {shed: true}
  defaultNegativePriorityBand: {maxBytes: 200M}
sluice:
  objectives: [{name: premium, priority: 20}, {name: batch, priority: -7}]
  modelRewrites: [{matches: [{model: {value: a}}], targets: [{modelRewrite: b, weight: 2}, {modelRewrite: c}]}]
  defaultObjective: batch
  dryRun: [ceilings]
  limits: {bodyProgressTimeout: 250ms}
";

#[test]
fn it_is_a_configuration_that_means_the_same() {
    let legacy = "
plugins: [{name: cap, type: concurrency-detector}]
saturationDetector: {pluginRef: cap}
";
    for text in ["{}", legacy, FULL] {
        let first = accept(text);
        let again = accept(&first.effective.to_string());
        assert_eq!(again.effective, first.effective, "{text}");
        assert_eq!(again.settings, first.settings, "{text}");
        assert_eq!(again.discovery, first.discovery, "{text}");
        assert_eq!(format!("{:?}", again.scheduler), format!("{:?}", first.scheduler), "{text}");
        let detector = |assembled: &sluice_config::Assembled| format!("{:?}", assembled.legacy_detector);
        assert_eq!(detector(&again), detector(&first), "{text}");
        assert_eq!(again.flow_control.is_some(), first.flow_control.is_some(), "{text}");
        if let (Some(again), Some(first)) = (again.flow_control, first.flow_control) {
            assert_eq!((again.desired, again.config.budgets), (first.desired, first.config.budgets));
            assert_eq!(again.config.global, first.config.global);
            assert_eq!(format!("{:?}", again.config.usage_limit), format!("{:?}", first.config.usage_limit));
        }
    }
}

/// What is filled in then has another name.
#[test]
fn it_can_be_read_back_where_a_plugin_of_another_type_has_the_name_of_a_type() {
    for taken in ["max-score-picker", "single-profile-handler", "metrics-data-source", "core-metrics-extractor"] {
        let text = format!(
            "plugins: [{{type: test-reader}}, {{name: {taken}, type: test-scorer}}, {{name: {taken}-2, type: test-filter}}]"
        );
        let effective = accept(&text).effective;
        let plugins = effective["plugins"].as_array().unwrap();
        let of_type = |plugin_type: &str| plugins.iter().find(|plugin| plugin["type"] == plugin_type).unwrap();
        assert_eq!(of_type(taken)["name"], format!("{taken}-3"), "{text}");
        let again = accept(&effective.to_string());
        assert_eq!(again.effective, effective, "{text}");
        assert!(again.scraping.is_some(), "{text}");
    }
}

#[test]
fn what_was_left_out_is_filled_in() {
    let effective = accept(FULL).effective;
    let flow_control = &effective["flowControl"];
    assert_eq!((&flow_control["maxRequests"], &flow_control["maxBytes"]), (&json!(0), &json!(6_u64 << 30)));
    for ttl in ["defaultRequestTTL", "noEndpointRequestTTL"] {
        assert_eq!(flow_control[ttl], "1m30s500ms");
    }
    let default_band = json!({
        "shed": false,
        "orderingPolicyRef": "fcfs-ordering-policy",
        "fairnessPolicyRef": "round-robin-fairness-policy",
        "maxRequests": 5_000,
        "maxBytes": 1_000_000_000,
        "requestTTL": "1m30s500ms",
        "noEndpointRequestTTL": "1m30s500ms",
    });
    assert_eq!(flow_control["defaultPriorityBand"], default_band);
    let [low, zero, high] = [0, 1, 2].map(|band| &flow_control["priorityBands"][band]);
    assert_eq!((&low["requestTTL"], &low["noEndpointRequestTTL"]), (&json!("5s"), &json!("0s")));
    let sheds = json!({"priority": 0, "shed": true, "fairnessPolicyRef": "round-robin-fairness-policy"});
    assert_eq!(zero, &sheds);
    assert_eq!((&high["priority"], &high["maxRequests"]), (&json!(20), &json!(4_000)));
    assert_eq!(high["fairnessPolicyRef"], "global-strict-fairness-policy", "as for every order by deadlines");
    let parts = ["test-filter", "test-scorer", "test-picker"];
    let listed = effective["schedulingProfiles"][0]["plugins"].as_array().unwrap();
    assert!(listed.iter().map(|part| part["pluginRef"].as_str().unwrap()).eq(parts), "{listed:?}");
    let filter = json!({
        "name": "test-filter",
        "type": "test-filter",
        "parameters": {"maxNumOfEndpoints": 0, "labels": ["a"], "limit": {"value": 0.5, "strict": false}},
    });
    assert_eq!(effective["plugins"][6], filter);
    assert_eq!(effective["sluice"]["limits"]["maxRequestBody"], 64 << 20);
    assert_eq!(effective["sluice"]["limits"]["bodyProgressTimeout"], "250ms");
    assert_eq!(effective["sluice"]["queue"]["whenFull"], "reject");
    let effective = accept("{}").effective;
    let filled_in = effective["plugins"].as_array().unwrap().iter().map(|plugin| plugin["type"].as_str().unwrap());
    let expected =
        ["anthropic-parser", "max-score-picker", "openai-parser", "passthrough-parser", "single-profile-handler"];
    assert!(filled_in.eq(expected), "{effective}");
}
