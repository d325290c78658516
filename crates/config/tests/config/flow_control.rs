//! What the section `flowControl` leads to, with its feature gate and without.

use std::collections::BTreeMap;
use std::time::Duration;

use insta::assert_snapshot;
use sluice_config::FlowControl;
use sluice_config::settings::MidStream;
use sluice_core::{OutputEstimate, Priority, TokenEstimate};
use sluice_flow::{BandConfig, Budgets, Config, DryRun, EvictionConfig, GlobalLimits, VictimOrder, WhenFull};

use crate::support::{accept, diagnose};

/// The beginning of a configuration that has flow control and what it cannot do without.
const ON: &str = "
featureGates: [flowControl]
plugins:
  - type: concurrency-detector
";

/// Flow control with the fields `section` of `flowControl`, beside a detector.
fn with(section: &str) -> String {
    format!("{ON}flowControl: {{saturationDetector: {{pluginRef: concurrency-detector}}, {section}}}\n")
}

fn flow_control(text: &str) -> FlowControl {
    accept(text).flow_control.expect("the gate is on")
}

/// The numbers of a band.
fn limits(band: &BandConfig) -> (u64, u64, Option<Duration>, Option<Duration>, bool) {
    let BandConfig { max_requests, max_bytes, request_ttl, no_endpoint_request_ttl, shed, ordering: _, fairness: _ } =
        band;
    (*max_requests, *max_bytes, *request_ttl, *no_endpoint_request_ttl, *shed)
}

/// Ordering and fairness of a band.
fn policies(band: &BandConfig) -> String {
    format!("{:?} {:?}", band.ordering, band.fairness)
}

const UNTOUCHED: (u64, u64, Option<Duration>, Option<Duration>, bool) = (5000, 1_000_000_000, None, None, false);

#[test]
fn flow_control_is_off_unless_its_gate_is_on() {
    let assembled = accept("{}");
    assert!(assembled.flow_control.is_none());
    assert!(assembled.legacy_detector.is_none());
    assert_eq!(assembled.token_estimate, TokenEstimate { output: None });
}

#[test]
fn what_the_section_leaves_out_has_its_default() {
    let assembled = accept(&with(""));
    assert_eq!(assembled.warnings, []);
    assert!(assembled.legacy_detector.is_none());
    let FlowControl { config, desired } = assembled.flow_control.unwrap();
    let Config {
        bands,
        template,
        negative_template,
        global,
        budgets,
        when_full,
        max_flows_per_band,
        usage_limit,
        detector,
        eviction,
        dry_run,
    } = config;
    assert!(bands.is_empty() && negative_template.is_none() && eviction.is_none() && desired.is_empty());
    assert_eq!(limits(&template), UNTOUCHED);
    assert_eq!(policies(&template), "FirstCome RoundRobin");
    assert_eq!(global, GlobalLimits { requests: None, bytes: None });
    let minute = Duration::from_secs(60);
    assert_eq!(budgets, Budgets { saturation: minute, no_endpoint: minute });
    assert_eq!((when_full, max_flows_per_band), (WhenFull::Reject, 1000));
    assert_eq!(format!("{usage_limit:?} {detector:?}"), "Limit(0) Detector(0)");
    assert_eq!(dry_run, DryRun { ceilings: false, eviction: false });
}

#[test]
fn the_section_is_read_in_full() {
    let assembled = accept(
        "
featureGates: [flowControl]
plugins:
  - {name: cap, type: concurrency-detector, parameters: {number: 7}}
  - {name: reserve, type: static-usage-limit-policy, parameters: {number: 8}}
  - {name: deadline, type: edf-ordering-policy}
  - {name: turns, type: round-robin-fairness-policy}
flowControl:
  maxBytes: 6Gi
  maxRequests: 20k
  defaultRequestTTL: 25s
  noEndpointRequestTTL: 8m
  saturationDetector: {pluginRef: cap}
  usageLimitPolicyPluginRef: reserve
  enableEviction: false
  priorityBands:
    - {priority: 20, maxRequests: '4k', maxBytes: 3G, orderingPolicyRef: deadline, fairnessPolicyRef: turns}
    - {priority: -5, requestTTL: 5s, noEndpointRequestTTL: 0s}
    - {shed: true}
  defaultPriorityBand: {maxRequests: '400'}
  defaultNegativePriorityBand: {maxRequests: '64', maxBytes: 200M}
sluice:
  objectives: [{name: premium, priority: 20}, {name: batch, priority: -7}, {name: bulk, priority: -7}]
  dryRun: [ceilings]
  queue: {whenFull: displace, maxFlowsPerBand: 20}
",
    );
    assert_eq!(assembled.warnings, []);
    let FlowControl { config, desired } = assembled.flow_control.unwrap();
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let bands: BTreeMap<i32, _> = config.bands.iter().map(|(priority, band)| (priority.0, limits(band))).collect();
    let expected = [
        (20, (4000, 3_000_000_000, None, None, false)),
        (0, (5000, 1_000_000_000, None, None, true)),
        (-5, (5000, 1_000_000_000, seconds(5), seconds(0), false)),
    ];
    assert_eq!(bands, BTreeMap::from(expected));
    assert_eq!(policies(&config.bands[&Priority(20)]), "Deadline RoundRobin");
    assert_eq!(limits(&config.template), (400, 1_000_000_000, None, None, false));
    assert_eq!(limits(&config.negative_template.unwrap()), (64, 200_000_000, None, None, false));
    assert_eq!(config.global, GlobalLimits { requests: Some(20_000), bytes: Some(6 << 30) });
    let budgets = Budgets { saturation: Duration::from_secs(25), no_endpoint: Duration::from_secs(480) };
    assert_eq!(config.budgets, budgets);
    assert_eq!((config.when_full, config.max_flows_per_band), (WhenFull::Displace, 20));
    assert_eq!(format!("{:?} {:?}", config.usage_limit, config.detector), "Limit(8) Detector(7)");
    assert_eq!(config.dry_run, DryRun { ceilings: true, eviction: false });
    assert!(desired.iter().map(|priority| priority.0).eq([-7, 20]));
}

#[test]
fn bands_that_nothing_can_leave_are_warned_of() {
    let text = |dry_run| {
        format!(
            "
featureGates: [flowControl]
plugins:
  - {{type: concurrency-detector}}
  - {{name: reserve, type: static-usage-limit-policy, parameters: {{number: 5}}}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  usageLimitPolicyPluginRef: reserve
  priorityBands: [{{priority: -6}}, {{priority: -5}}]
sluice:
  objectives: [{{name: bulk, priority: -9}}]
  dryRun: [{dry_run}]
"
        )
    };
    assert_snapshot!(diagnose(&text("")), @r"
    c.yaml:8:30: warning: flowControl.usageLimitPolicyPluginRef: the ceilings of priorities -6, -9 are 0: their requests are never let in; a ceiling above 0 lets in at least one request
    ok
    ");
    assert_eq!(diagnose(&text("ceilings")), "ok");
}

#[test]
fn a_limit_of_zero_is_the_default() {
    let config =
        flow_control(&with("maxBytes: 0, maxRequests: '0', priorityBands: [{maxBytes: 0, maxRequests: 0}]")).config;
    assert_eq!(config.global, GlobalLimits::default());
    assert_eq!(limits(&config.bands[&Priority(0)]), UNTOUCHED);
    assert_snapshot!(diagnose(&with("priorityBands: [{maxBytes: 0, maxRequests: 0}]")), @r"
    c.yaml:5:97: warning: flowControl.priorityBands[0].maxBytes: 0 stands for the default here; write shed: true for a band in which nothing waits
    c.yaml:5:113: warning: flowControl.priorityBands[0].maxRequests: 0 stands for the default here; write shed: true for a band in which nothing waits
    ok
    ");
}

#[test]
fn the_budget_of_an_empty_pool_follows_the_other_one() {
    let budgets = |section: &str| {
        let Budgets { saturation, no_endpoint } = flow_control(&with(section)).config.budgets;
        (saturation.as_secs(), no_endpoint.as_secs())
    };
    assert_eq!(budgets("defaultRequestTTL: 5s"), (5, 5));
    assert_eq!(budgets("noEndpointRequestTTL: 5s"), (60, 5));
    assert_eq!(budgets("defaultRequestTTL: 0s"), (0, 0));
    assert_eq!(budgets("defaultRequestTTL: 5s, noEndpointRequestTTL: 0s"), (5, 0));
}

#[test]
fn the_default_policies_need_not_be_declared() {
    let text = with(
        "usageLimitPolicyPluginRef: static-usage-limit-policy, priorityBands: [{orderingPolicyRef: fcfs-ordering-policy, \
         fairnessPolicyRef: global-strict-fairness-policy}]",
    );
    let config = flow_control(&text).config;
    assert_eq!(policies(&config.bands[&Priority(0)]), "FirstCome GlobalStrict");
    // Bands share what they do not name, so that a reload can tell that it is still the same.
    let text = with("defaultPriorityBand: {}, priorityBands: [{}]");
    let config = flow_control(&text).config;
    assert!(std::sync::Arc::ptr_eq(&config.template.fairness, &config.bands[&Priority(0)].fairness));
}

#[test]
fn a_declared_plugin_with_the_name_of_a_default_is_the_default() {
    let text = with("").replace(
        "plugins:\n",
        "plugins:\n  - {type: static-usage-limit-policy, parameters: {number: 3}}\n  - {name: fcfs-ordering-policy, type: edf-ordering-policy}\n",
    );
    let config = flow_control(&text).config;
    assert_eq!(format!("{:?}", config.usage_limit), "Limit(3)");
    assert_eq!(policies(&config.template), "Deadline GlobalStrict");
}

#[test]
fn a_band_in_the_order_of_deadlines_has_no_turns_unless_they_are_asked_for() {
    let text = with(
        "defaultNegativePriorityBand: {orderingPolicyRef: edf-ordering-policy}, priorityBands: \
         [{orderingPolicyRef: edf-ordering-policy}, {priority: 1, orderingPolicyRef: edf-ordering-policy, \
         fairnessPolicyRef: round-robin-fairness-policy}]",
    )
    .replace("plugins:\n", "plugins:\n  - type: edf-ordering-policy\n");
    let config = flow_control(&text).config;
    assert_eq!(policies(&config.bands[&Priority(0)]), "Deadline GlobalStrict");
    assert_eq!(policies(&config.bands[&Priority(1)]), "Deadline RoundRobin");
    assert_eq!(policies(&config.negative_template.unwrap()), "Deadline GlobalStrict");
    assert_eq!(policies(&config.template), "FirstCome RoundRobin");
}

#[test]
fn a_detector_other_than_the_default_one_has_to_be_declared() {
    assert_snapshot!(diagnose("featureGates: [flowControl]"), @"ok");
    assert_snapshot!(diagnose("
featureGates: [flowControl]
flowControl:
  saturationDetector: {}
"), @"ok");
    assert_snapshot!(diagnose("
featureGates: [flowControl]
flowControl: {saturationDetector: {pluginRef: utilization-detector}}
"), @"ok");
    assert_snapshot!(diagnose("
featureGates: [flowControl]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
"), @r#"c.yaml:3:47: flowControl.saturationDetector.pluginRef: there is no plugin "concurrency-detector"; declare it under plugins"#);
    // What is wrong has been said: nothing is missing.
    assert_snapshot!(diagnose("
featureGates: [flowControl]
flowControl: {saturationDetector: concurrency-detector}
"), @r#"c.yaml:3:35: flowControl.saturationDetector: expected a mapping, found the string "concurrency-detector""#);
}

#[test]
fn the_default_detector_is_there_and_what_it_reads_is_scraped() {
    for section in ["", "flowControl: {saturationDetector: {}}", "flowControl: {enableEviction: true}"] {
        let assembled = accept(&format!("featureGates: [flowControl]\n{section}\n"));
        assert!(assembled.scraping.is_some());
        assert_eq!(format!("{:?}", assembled.flow_control.unwrap().config.detector), "DefaultDetector");
    }
    let declared =
        accept("featureGates: [flowControl]\nplugins: [{type: utilization-detector, parameters: {number: 7}}]\n");
    assert_eq!(
        declared.effective["plugins"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|plugin| plugin["type"] == "utilization-detector")
            .count(),
        1
    );
}

#[test]
fn references_of_flow_control_are_checked() {
    assert_snapshot!(diagnose("
featureGates: [flowControl]
plugins:
  - {name: gate, type: concurrency-detector}
  - {name: turns, type: round-robin-fairness-policy}
  - {name: unlucky, type: test-filter, parameters: {maxNumOfEndpoints: 13}}
  - {name: fcfs-ordering-policy, type: test-scorer}
flowControl:
  saturationDetector: {pluginRef: turns}
  usageLimitPolicyPluginRef: gate
  defaultPriorityBand: {orderingPolicyRef: turns, fairnessPolicyRef: gate}
  defaultNegativePriorityBand: {orderingPolicyRef: edf-ordering-policy, fairnessPolicyRef: trns}
  priorityBands:
    - {priority: 3, orderingPolicyRef: slo-deadline-ordering-policy, fairnessPolicyRef: round-robin-fairnes-policy}
    - {priority: 2, orderingPolicyRef: unlucky, fairnessPolicyRef: static-usage-limit-policy}
    - {priority: 1, fairnessPolicyRef: global-strict-fairness-policy}
"), @r#"
    c.yaml:6:72: plugins[2].parameters.maxNumOfEndpoints: 13 is an unlucky number
    c.yaml:7:5: plugins[3]: the plugin "fcfs-ordering-policy" of type "test-scorer" is not an ordering policy
    c.yaml:9:35: flowControl.saturationDetector.pluginRef: the plugin "turns" of type "round-robin-fairness-policy" is not a saturation detector
    c.yaml:10:30: flowControl.usageLimitPolicyPluginRef: the plugin "gate" of type "concurrency-detector" is not a usage limit policy
    c.yaml:11:44: flowControl.defaultPriorityBand.orderingPolicyRef: the plugin "turns" of type "round-robin-fairness-policy" is not an ordering policy
    c.yaml:11:70: flowControl.defaultPriorityBand.fairnessPolicyRef: the plugin "gate" of type "concurrency-detector" is not a fairness policy
    c.yaml:12:52: flowControl.defaultNegativePriorityBand.orderingPolicyRef: there is no plugin "edf-ordering-policy"; declare it under plugins
    c.yaml:12:92: flowControl.defaultNegativePriorityBand.fairnessPolicyRef: there is no plugin "trns", did you mean "turns"?
    c.yaml:14:40: flowControl.priorityBands[0].orderingPolicyRef: the plugin type "slo-deadline-ordering-policy" is known but not available in this version
    c.yaml:14:89: flowControl.priorityBands[0].fairnessPolicyRef: there is no plugin "round-robin-fairnes-policy", did you mean "round-robin-fairness-policy"?
    c.yaml:15:68: flowControl.priorityBands[1].fairnessPolicyRef: there is no plugin "static-usage-limit-policy"; declare it under plugins
    "#);
}

#[test]
fn a_default_that_is_none_is_reported_once() {
    let text = with("priorityBands: [{priority: 1}, {priority: 2}]")
        .replace("plugins:\n", "plugins:\n  - {name: fcfs-ordering-policy, type: test-scorer}\n");
    assert_snapshot!(diagnose(&text), @r#"c.yaml:4:5: plugins[0]: the plugin "fcfs-ordering-policy" of type "test-scorer" is not an ordering policy"#);
}

#[test]
fn mistakes_in_bands_are_found_together() {
    assert_snapshot!(diagnose(&with(
        "maxBytes: -1, maxRequests: many, defaultRequestTTL: -1s, noEndpointRequestTTL: 5, priorityBands: \
         [{priority: 1}, {}, {priority: 1}, {priority: 0}, {priority: high}, {priority: low, maxRequest: 5}, \
         {priority: 2, shed: 'yes', requestTTL: soon, fairnessPolicyRef: 5}], enableEviction: 'no'"
    )), @r#"
    c.yaml:5:80: flowControl.maxBytes: -1 is negative, it must be zero or more
    c.yaml:5:97: flowControl.maxRequests: invalid quantity "many": it has no digits
    c.yaml:5:122: flowControl.defaultRequestTTL: -1s is negative, it must be zero or more
    c.yaml:5:149: flowControl.noEndpointRequestTTL: expected a duration with a unit, such as 200ms or 30s, found the number 5
    c.yaml:5:198: flowControl.priorityBands[2].priority: there is a band for priority 1 already
    c.yaml:5:213: flowControl.priorityBands[3].priority: there is a band for priority 0 already
    c.yaml:5:228: flowControl.priorityBands[4].priority: expected a whole number from -2147483648 to 2147483647, found the string "high"
    c.yaml:5:246: flowControl.priorityBands[5].priority: expected a whole number from -2147483648 to 2147483647, found the string "low"
    c.yaml:5:251: flowControl.priorityBands[5].maxRequest: unknown field "maxRequest", did you mean "maxRequests"?
    c.yaml:5:287: flowControl.priorityBands[6].shed: expected true or false, found the string "yes"
    c.yaml:5:306: flowControl.priorityBands[6].requestTTL: invalid duration "soon": expected numbers with units, such as 30s or 1h2m
    c.yaml:5:331: flowControl.priorityBands[6].fairnessPolicyRef: expected a string, found the number 5; put it in quotes
    c.yaml:5:352: flowControl.enableEviction: expected true or false, found the string "no"
    "#);
}

/// Flow control with these lines in the section `sluice`.
fn with_sluice(flow_control: &str, sluice: &str) -> String {
    format!("{}sluice:\n  objectives: [{{name: batch, priority: -10}}]\n{sluice}", with(flow_control))
}

#[test]
fn eviction_is_planned_as_the_settings_say() {
    let assembled = accept(&with_sluice("enableEviction: true", ""));
    assert_eq!(assembled.warnings, []);
    assert_eq!(assembled.flow_control.unwrap().config.eviction, Some(EvictionConfig::default()));

    let settings = "  dryRun: [eviction]
  eviction: {midStream: reset, victimOrder: cheapest, maxInFlightRevocations: 3, confirmationTimeout: 200ms}
";
    let assembled = accept(&with_sluice("enableEviction: true", settings));
    assert_eq!(assembled.warnings, []);
    assert_eq!(assembled.settings.eviction.mid_stream, MidStream::Reset);
    let config = assembled.flow_control.unwrap().config;
    let expected = EvictionConfig {
        victim_order: VictimOrder::Cheapest,
        max_in_flight_revocations: Some(3),
        confirmation_timeout: Duration::from_millis(200),
    };
    assert_eq!((config.eviction, config.dry_run.eviction), (Some(expected), true));

    assert_eq!(flow_control(&with_sluice("enableEviction: false", "")).config.eviction, None);
}

#[test]
fn eviction_that_cannot_work_is_told() {
    let settings = "  dryRun: [eviction]\n  eviction: {victimOrder: cheapest}\n";
    assert_snapshot!(diagnose(&with_sluice("enableEviction: false", settings)), @"
    c.yaml:8:12: warning: sluice.dryRun[0]: has no effect without flowControl.enableEviction: true
    c.yaml:9:3: warning: sluice.eviction: has no effect without flowControl.enableEviction: true
    ok
    ");
    assert_snapshot!(diagnose(&with_sluice("enableEviction: true", "  eviction: {confirmationTimeout: 0s}\n")), @"c.yaml:8:35: sluice.eviction.confirmationTimeout: less than 100ms would take one victim after the other before the first could end; write a time such as 1s");
    assert_snapshot!(diagnose(&with_sluice("enableEviction: true", "  eviction: {confirmationTimeout: 99ms}\n")), @"c.yaml:8:35: sluice.eviction.confirmationTimeout: less than 100ms would take one victim after the other before the first could end; write a time such as 1s");
    let evicting = with("enableEviction: true");
    assert_snapshot!(diagnose(&evicting), @"ok");
    let discovery = "dataLayer: {discovery: {pluginRef: concurrency-detector}}\n";
    let messages = diagnose(&(evicting + discovery));
    assert!(
        messages.contains("flowControl.enableEviction: has no effect: no objective has a negative priority"),
        "{messages}"
    );
}

#[test]
fn settings_that_flow_control_cannot_use_are_named() {
    assert_snapshot!(diagnose("
featureGates: [flowControl]
plugins:
  - type: concurrency-detector
  - {name: other, type: concurrency-detector}
  - type: edf-ordering-policy
  - type: inflight-load-producer
  - {name: again, type: inflight-load-producer}
schedulingProfiles:
  - name: main
    plugins: [{pluginRef: concurrency-detector}, {pluginRef: edf-ordering-policy}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultPriorityBand: {priority: 0, maxRequests: 400}
  priorityBands:
    - shed: true
      maxRequests: 10
      maxBytes: 1Mi
      requestTTL: 5s
      noEndpointRequestTTL: 5s
      orderingPolicyRef: fcfs-ordering-policy
      fairnessPolicyRef: round-robin-fairness-policy
sluice:
  dryRun: [eviction, ceilings]
  queue: {whenFull: displace}
"), @r#"
    c.yaml:5:5: warning: plugins[1]: has no effect: nothing refers to the plugin "other"
    c.yaml:8:5: warning: plugins[4]: has no effect: tokens are estimated by "inflight-load-producer"
    c.yaml:11:15: warning: schedulingProfiles[0].plugins[0]: has no effect: "concurrency-detector" is neither filter, scorer nor picker
    c.yaml:11:50: warning: schedulingProfiles[0].plugins[1]: has no effect: "edf-ordering-policy" is neither filter, scorer nor picker
    c.yaml:14:25: warning: flowControl.defaultPriorityBand.priority: has no effect: a template is for every priority that has no band of its own
    c.yaml:17:7: warning: flowControl.priorityBands[0].maxRequests: has no effect: nothing waits in a band that sheds
    c.yaml:18:7: warning: flowControl.priorityBands[0].maxBytes: has no effect: nothing waits in a band that sheds
    c.yaml:19:7: warning: flowControl.priorityBands[0].requestTTL: has no effect: nothing waits in a band that sheds
    c.yaml:20:7: warning: flowControl.priorityBands[0].noEndpointRequestTTL: has no effect: nothing waits in a band that sheds
    c.yaml:21:7: warning: flowControl.priorityBands[0].orderingPolicyRef: has no effect: nothing waits in a band that sheds
    c.yaml:24:12: warning: sluice.dryRun[0]: has no effect without flowControl.enableEviction: true
    c.yaml:25:11: warning: sluice.queue.whenFull: has no effect: requests are displaced for the sake of global limits only; set flowControl.maxRequests or flowControl.maxBytes
    ok
    "#);
}

#[test]
fn without_the_gate_only_the_detector_counts() {
    assert_snapshot!(diagnose("
plugins:
  - {name: gate, type: concurrency-detector}
  - {name: other, type: concurrency-detector}
  - type: round-robin-fairness-policy
  - type: inflight-load-producer
flowControl:
  saturationDetector: {pluginRef: gate}
  maxBytes: 6Gi
  enableEviction: true
  usageLimitPolicyPluginRef: nobody
  priorityBands: [{priority: 1, fairnessPolicyRef: round-robin-fairness-policy}, {priority: 1}]
sluice:
  dryRun: [ceilings]
  queue: {whenFull: displace}
"), @r#"
    c.yaml:4:5: warning: plugins[1]: has no effect: nothing refers to the plugin "other"
    c.yaml:5:5: warning: plugins[2]: has no effect without the feature gate flowControl
    c.yaml:9:3: warning: flowControl.maxBytes: has no effect without the feature gate flowControl
    c.yaml:10:3: warning: flowControl.enableEviction: has no effect without the feature gate flowControl
    c.yaml:11:3: warning: flowControl.usageLimitPolicyPluginRef: has no effect without the feature gate flowControl
    c.yaml:12:3: warning: flowControl.priorityBands: has no effect without the feature gate flowControl
    c.yaml:14:3: warning: sluice.dryRun: has no effect without the feature gate flowControl
    c.yaml:15:11: warning: sluice.queue.whenFull: has no effect without the feature gate flowControl
    ok
    "#);
    let detector = |section: &str| {
        let text = format!("plugins: [{{type: concurrency-detector, parameters: {{number: 4}}}}]\n{section}");
        format!("{:?}", accept(&text).legacy_detector)
    };
    assert_eq!(detector("flowControl: {saturationDetector: {pluginRef: concurrency-detector}}"), "Some(Detector(4))");
    assert_eq!(detector("saturationDetector: {pluginRef: concurrency-detector}"), "Some(Detector(4))");
}

#[test]
fn without_the_gate_the_default_detector_sheds_where_endpoints_are_scraped_anyway() {
    let with = |plugins: &str, rest: &str| accept(&format!("plugins: [{{type: {plugins}}}]\n{rest}"));
    let detector = |plugins: &str, rest: &str| format!("{:?}", with(plugins, rest).legacy_detector);
    let source =
        "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]}";
    let scraped = "metrics-data-source}, {type: core-metrics-extractor";
    for section in ["", "flowControl: {saturationDetector: {}}", "flowControl: {saturationDetector: {pluginRef: ''}}"] {
        assert_eq!(detector("test-reader", section), "Some(DefaultDetector)", "{section}");
        assert_eq!(detector(scraped, &format!("{source}\n{section}")), "Some(DefaultDetector)", "{section}");
        assert_eq!(detector("utilization-detector", section), "Some(DefaultDetector)", "{section}");
        for unscraped in ["test-scorer", scraped, "concurrency-detector"] {
            assert_eq!(detector(unscraped, section), "None", "{unscraped}, {section}");
            assert!(with(unscraped, section).scraping.is_none(), "{unscraped}, {section}");
        }
        assert_eq!(detector("concurrency-detector, name: utilization-detector", section), "Some(Detector(0))");
    }
    let effective = with("test-reader", "").effective;
    assert_eq!(effective["flowControl"]["saturationDetector"]["pluginRef"], "utilization-detector");
    assert_eq!(accept(&effective.to_string()).effective, effective);
}

#[test]
fn without_the_gate_a_reference_to_the_detector_is_checked() {
    assert_snapshot!(diagnose("
plugins: [{name: spread, type: test-scorer}]
flowControl: {saturationDetector: {pluginRef: spread}}
"), @r#"c.yaml:3:47: flowControl.saturationDetector.pluginRef: the plugin "spread" of type "test-scorer" is not a saturation detector"#);
    assert_snapshot!(diagnose("flowControl: {saturationDetector: {pluginRef: concurrency-detektor}}"), @r#"c.yaml:1:47: flowControl.saturationDetector.pluginRef: there is no plugin "concurrency-detektor""#);
    let default = accept("flowControl: {saturationDetector: {pluginRef: utilization-detector}}");
    assert_eq!(format!("{:?}", default.legacy_detector), "Some(DefaultDetector)");
}

#[test]
fn nothing_reads_an_estimate_without_flow_control_and_detector() {
    let said = diagnose("plugins: [{type: inflight-load-producer}, {type: concurrency-detector}]");
    assert!(!said.contains("tokens"), "{said}");
    assert_snapshot!(diagnose("plugins: [{type: inflight-load-producer}]"), @"
    c.yaml:1:11: warning: plugins[0]: has no effect: without flow control or a saturation detector nothing counts tokens
    ok
    ");
}

#[test]
fn the_declared_estimate_counts() {
    let text =
        with("").replace("plugins:\n", "plugins:\n  - {type: inflight-load-producer, parameters: {number: 9}}\n");
    let assembled = accept(&text);
    assert_eq!(assembled.warnings, []);
    let output = OutputEstimate { ratio: 1.0, max: Some(9) };
    assert_eq!(assembled.token_estimate, TokenEstimate { output: Some(output) });
}
