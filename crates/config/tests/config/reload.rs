//! What of a configuration goes on in the next one, and what cannot change.

use std::collections::BTreeSet;
use std::sync::Arc;

use insta::assert_snapshot;
use sluice_config::{Assembled, Options, Source, reload};
use sluice_flow::Config;

use crate::support::{REGISTRY, accept};

const BEFORE: &str = "
featureGates: [flowControl]
plugins:
  - {name: endpoints, type: test-discovery, parameters: {path: e.yaml, watch: true}}
  - {name: gate, type: concurrency-detector, parameters: {number: 1}}
  - {name: limit, type: static-usage-limit-policy, parameters: {number: 7}}
dataLayer: {discovery: {pluginRef: endpoints}}
flowControl:
  saturationDetector: {pluginRef: gate}
  usageLimitPolicyPluginRef: limit
";

fn again(previous: &Assembled, text: &str) -> Result<Assembled, String> {
    let source = Source::new("c.yaml", text);
    reload(&source, REGISTRY, &Options::default(), &previous.as_previous).map_err(|error| error.to_string())
}

/// What reloading `text` over [`BEFORE`] says.
fn refusal(text: &str) -> String {
    again(&accept(BEFORE), text).map_or_else(|error| error, |_| "ok".to_owned())
}

fn config(assembled: &Assembled) -> &Config {
    &assembled.flow_control.as_ref().expect("the gate is on").config
}

/// Whether the detector, the usage limit, the ordering and the fairness are the same objects.
fn same(before: &Assembled, after: &Assembled) -> [bool; 4] {
    let (before, after) = (config(before), config(after));
    [
        Arc::ptr_eq(&before.detector, &after.detector),
        Arc::ptr_eq(&before.usage_limit, &after.usage_limit),
        Arc::ptr_eq(&before.template.ordering, &after.template.ordering),
        Arc::ptr_eq(&before.template.fairness, &after.template.fairness),
    ]
}

#[test]
fn the_same_plugins_go_on_whatever_they_look_like() {
    let before = accept(BEFORE);
    let json = r#"{"sluice": {"drain": {"queued": "hand-over"}},
        "flowControl": {"usageLimitPolicyPluginRef": "limit", "saturationDetector": {"pluginRef": "gate"}, "maxRequests": 9},
        "dataLayer": {"discovery": {"pluginRef": "endpoints"}},
        "plugins": [
            {"parameters": {"number": 7}, "type": "static-usage-limit-policy", "name": "limit"},
            {"parameters": {"watch": true, "path": "e.yaml"}, "type": "test-discovery", "name": "endpoints"},
            {"parameters": {"number": 1}, "type": "concurrency-detector", "name": "gate"}
        ],
        "featureGates": ["flowControl=true"]}"#;
    let after = again(&before, json).unwrap();
    assert_eq!(same(&before, &after), [true; 4]);
    assert_eq!(config(&after).global.requests, Some(9), "what is no plugin is as it says now");
    let later = again(&after, BEFORE).unwrap();
    assert_eq!(same(&before, &later), [true; 4], "and so from one to the next");
}

#[test]
fn another_parameter_name_or_type_is_another_plugin() {
    let before = accept(BEFORE);
    let changed = |from: &str, to: &str| {
        assert!(BEFORE.contains(from), "{from}");
        same(&before, &again(&before, &BEFORE.replace(from, to)).unwrap())
    };
    assert_eq!(changed("{number: 1}", "{number: 2}"), [false, true, true, true]);
    assert_eq!(changed(", parameters: {number: 7}", ""), [true, false, true, true]);
    assert_eq!(changed("gate", "door"), [false, true, true, true]);
    let swapped = BEFORE.replace("name: gate", "name: x").replace("name: limit", "name: gate");
    let swapped = swapped.replace("name: x", "name: limit");
    let swapped =
        swapped.replace("PluginRef: limit", "PluginRef: gate").replace("{pluginRef: gate}", "{pluginRef: limit}");
    assert_eq!(same(&before, &again(&before, &swapped).unwrap()), [false, false, true, true]);
}

#[test]
fn a_default_that_is_spelled_out_changes_nothing() {
    let implied = BEFORE.replace("{number: 1}", "{number: null}");
    let (before, spelled_out) = (accept(&implied), BEFORE.replace("{number: 1}", "{number: 0}"));
    assert_eq!(same(&before, &again(&before, &spelled_out).unwrap()), [true; 4]);
}

#[test]
fn what_was_filled_in_is_the_same_as_if_it_is_declared() {
    let before = accept(BEFORE);
    let declared = BEFORE.replace("plugins:\n", "plugins:\n  - {type: fcfs-ordering-policy, parameters: {}}\n");
    assert_eq!(same(&before, &again(&before, &declared).unwrap()), [true; 4]);
}

#[test]
fn a_plugin_that_was_left_out_meanwhile_begins_anew() {
    let before = accept(BEFORE);
    let without = BEFORE
        .replace("\n  usageLimitPolicyPluginRef: limit", "")
        .replace("  - {name: limit, type: static-usage-limit-policy, parameters: {number: 7}}\n", "");
    let between = again(&before, &without).unwrap();
    let after = again(&between, BEFORE).unwrap();
    assert_eq!(same(&before, &after), [true, false, true, true]);
}

#[test]
fn warnings_do_not_depend_on_what_was_before() {
    let text = format!("{BEFORE}sluice: {{drain: {{queued: refuse}}}}\n")
        .replace("plugins:\n", "plugins:\n  - {type: test-filter, parameters: {limit: {value: 2}}}\n");
    let before = accept(&text);
    assert!(!before.warnings.is_empty());
    assert_eq!(again(&before, &text).unwrap().warnings, before.warnings);
}

#[test]
fn what_cannot_change_is_refused_by_name_all_of_it() {
    assert_eq!(refusal(BEFORE), "ok");
    let text = "
featureGates: [flowControl=false, haPopulateNonLeaderDatastore=false]
plugins:
  - {name: endpoints, type: test-discovery, parameters: {path: other.yaml, watch: true}}
dataLayer: {discovery: {pluginRef: endpoints}}
sluice: {metrics: {legacyNames: false}}
";
    assert_snapshot!(refusal(text), @"
    c.yaml:2:15: featureGates: the feature gate flowControl cannot change while the process runs; restart the process, or set it back
    c.yaml:2:15: featureGates: the feature gate haPopulateNonLeaderDatastore cannot change while the process runs; restart the process, or set it back
    c.yaml:4:57: plugins[0].parameters: the source of the endpoints cannot change while the process runs; restart the process, or set it back
    c.yaml:6:33: sluice.metrics.legacyNames: the names of the metrics cannot change while the process runs; restart the process, or set it back
    ");
    assert_snapshot!(refusal("{}"), @"
    c.yaml:1:1: featureGates: the feature gate flowControl cannot change while the process runs; restart the process, or set it back
    c.yaml:1:1: dataLayer.discovery: the source of the endpoints cannot change while the process runs; restart the process, or set it back
    ");
}

#[test]
fn mistakes_come_before_what_cannot_change() {
    let text = BEFORE.replace("e.yaml", "other.yaml").replace("number: 1", "nummer: 1");
    assert_snapshot!(refusal(&text), @r#"c.yaml:5:59: plugins[1].parameters.nummer: unknown field "nummer", did you mean "number"?"#);
}

#[test]
fn the_source_of_the_endpoints_may_get_another_name() {
    assert_eq!(refusal(&BEFORE.replace("endpoints", "file")), "ok");
    assert_snapshot!(refusal(&BEFORE.replace("watch: true", "watch: false")), @"c.yaml:4:57: plugins[0].parameters: the source of the endpoints cannot change while the process runs; restart the process, or set it back");
}

/// The settings in the table of the page are those that are refused, no more and no fewer.
#[test]
fn the_page_names_what_cannot_change() {
    let page = include_str!("../../../../docs/configuration.md");
    let section = page.split("## Reload").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let listed: BTreeSet<&str> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    let nothing_stays = "sluice: {metrics: {legacyNames: false}}";
    let source = Source::new("c.yaml", nothing_stays);
    let refused = reload(&source, REGISTRY, &Options::default(), &accept(BEFORE).as_previous).unwrap_err();
    let refused: BTreeSet<&str> = refused.iter().map(|diagnostic| diagnostic.path.as_str()).collect();
    assert_eq!(listed, refused);
}

#[test]
fn everything_else_can_change() {
    let text = format!(
        "{BEFORE}  maxRequests: 5
  maxBytes: 1G
  defaultRequestTTL: 5s
  noEndpointRequestTTL: 6s
  enableEviction: true
  defaultPriorityBand: {{maxRequests: 7, orderingPolicyRef: edf-ordering-policy}}
  defaultNegativePriorityBand: {{maxRequests: 8}}
  priorityBands: [{{priority: 9, shed: true}}]
schedulingProfiles: [{{name: another, plugins: [{{pluginRef: test-scorer, weight: 3}}]}}]
sluice:
  objectives: [{{name: batch, priority: -1}}]
  defaultObjective: batch
  unknownObjective: reject
  trust: {{source: metadata, metadataNamespace: other}}
  headerOnly: admit
  bodies: full
  messageTimeout: keep
  dryRun: [ceilings]
  queue: {{whenFull: displace, maxFlowsPerBand: 3}}
  eviction: {{midStream: reset, victimOrder: cheapest, maxInFlightRevocations: 4, confirmationTimeout: 2s}}
  refusals: {{body: text, retryAfter: false}}
  limits: {{maxRequestHeaders: 1Ki, maxRequestBody: 2Ki, bodyProgressTimeout: 3s, bodyMemory: 4Ki}}
  reload: {{enabled: false}}
  drain: {{queued: hand-over}}
  metrics: {{maxTenants: 5}}
"
    );
    let text = text.replace(
        "plugins:\n",
        "plugins:\n  - {type: test-scorer}\n  - {type: edf-ordering-policy}\n  - {type: inflight-load-producer}\n",
    );
    let before = accept(BEFORE);
    let after = again(&before, &text).unwrap();
    let (before, after) = (&before.effective["sluice"], &after.effective["sluice"]);
    let kept = before.as_object().unwrap().iter().filter(|(setting, value)| after[setting] == **value);
    let kept: Vec<&String> = kept.map(|(setting, _)| setting).collect();
    assert_eq!(kept, ["modelRewrites"], "a setting that this test does not change");
}
