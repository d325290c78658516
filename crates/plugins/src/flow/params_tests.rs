//! What the policies can be told.

use insta::assert_snapshot;
use sluice_config::{Options, Source, load};

use crate::BUILTIN;

/// What is said about these parameters.
fn build(plugin: &str, parameters: &str) -> String {
    let text = format!("plugins: [{{type: {plugin}, parameters: {parameters}}}]\n");
    match load(&Source::new("c.yaml", text), BUILTIN, &Options::default()) {
        Ok(assembled) => {
            let about = assembled.warnings.iter().filter(|warning| warning.path.contains("parameters"));
            about.map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn good_parameters_are_taken_without_a_word() {
    for (plugin, parameters) in [
        ("fcfs-ordering-policy", "{}"),
        ("edf-ordering-policy", "{}"),
        ("slo-deadline-ordering-policy", "{}"),
        ("round-robin-fairness-policy", "{}"),
        ("global-strict-fairness-policy", "{}"),
        ("static-usage-limit-policy", "{}"),
        ("static-usage-limit-policy", "{threshold: 0.5}"),
        ("priority-holdback-policy", "{minCeiling: 0.4}"),
        ("priority-holdback-policy", "{minCeiling: 0.55, maxCeiling: 0.98, domain: value, shape: linear}"),
        ("priority-holdback-policy", "{ceilings: [{priority: 100, ceiling: 0.9}, {priority: -10, ceiling: 0}]}"),
        ("weighted-fairness-policy", "{}"),
        (
            "weighted-fairness-policy",
            "{defaultWeight: 0.5, weights: [{tenant: a, weight: 4}, {prefix: team-, weight: 2}], maxInFlightPerFlow: 8}",
        ),
        ("concurrency-detector", "{}"),
        (
            "concurrency-detector",
            "{concurrencyMode: hybrid, maxConcurrency: 48, maxTokenConcurrency: 350000, headroom: 0.25, capEndpointTokens: true}",
        ),
        ("utilization-detector", "{}"),
        (
            "utilization-detector",
            "{queueDepthThreshold: 4, kvCacheUtilThreshold: 1, metricsStalenessThreshold: 1s, headroom: 0.5, stalenessPolicy: ignore, aggregation: min, runningLimit: 128}",
        ),
    ] {
        assert_eq!(build(plugin, parameters), "", "{plugin} {parameters}");
    }
}

#[test]
fn unknown_parameters_are_refused() {
    assert_snapshot!(build("fcfs-ordering-policy", "{order: newest}"), @r#"c.yaml:1:53: plugins[0].parameters.order: unknown field "order"; there are no fields here"#);
    assert_snapshot!(build("static-usage-limit-policy", "{treshold: 0.5}"), @r#"c.yaml:1:58: plugins[0].parameters.treshold: unknown field "treshold", did you mean "threshold"?"#);
}

#[test]
fn a_threshold_out_of_range_is_refused() {
    assert_snapshot!(build("static-usage-limit-policy", "{threshold: 0}"), @"c.yaml:1:69: plugins[0].parameters.threshold: 0 is not above 0 and up to 1");
    assert_snapshot!(build("static-usage-limit-policy", "{threshold: 1.5}"), @"c.yaml:1:69: plugins[0].parameters.threshold: 1.5 is not above 0 and up to 1");
}

#[test]
fn a_holdback_that_makes_no_sense_is_refused() {
    let build = |parameters| build("priority-holdback-policy", parameters);
    assert_snapshot!(build("{}"), @"c.yaml:1:11: plugins[0].parameters.minCeiling: is required, unless ceilings lists them");
    assert_snapshot!(build("{minCeiling: 1}"), @"c.yaml:1:69: plugins[0].parameters.minCeiling: is not from 0 to below maxCeiling");
    assert_snapshot!(build("{minCeiling: 0.5, maxCeiling: 0}"), @"c.yaml:1:86: plugins[0].parameters.maxCeiling: is not above 0 and up to 1");
    assert_snapshot!(build("{minCeiling: 0.5, shape: round}"), @r#"c.yaml:1:81: plugins[0].parameters.shape: unknown value "round"; the values are linear"#);
    assert_snapshot!(build("{minCeiling: 0.5, ceilings: []}"), @"c.yaml:1:69: plugins[0].parameters.minCeiling: ceilings are either listed or on a line, not both");
    assert_snapshot!(build("{domain: rank, ceilings: []}"), @"c.yaml:1:65: plugins[0].parameters.domain: says nothing about ceilings that are listed");
    assert_snapshot!(build("{ceilings: [{priority: 0, ceiling: 0.8}, {priority: -1, ceiling: 0.9}]}"), @"c.yaml:1:121: plugins[0].parameters.ceilings[1].ceiling: is above that of a higher priority: it would starve it");
    assert_snapshot!(build("{ceilings: [{priority: 0, ceiling: 0.8}, {priority: 0, ceiling: 0.7}]}"), @"c.yaml:1:108: plugins[0].parameters.ceilings[1].priority: is listed twice");
    assert_snapshot!(build("{ceilings: [{priority: 0, ceiling: 80}]}"), @"c.yaml:1:91: plugins[0].parameters.ceilings[0].ceiling: is not from 0 to 1");
}

#[test]
fn weights_that_make_no_sense_are_refused() {
    let build = |parameters| build("weighted-fairness-policy", parameters);
    assert_snapshot!(build("{defaultWeight: 0}"), @"c.yaml:1:72: plugins[0].parameters.defaultWeight: a weight is from 0.001 to 1000000, 0 is not");
    assert_snapshot!(build("{weights: [{tenant: a, weight: -1}]}"), @"c.yaml:1:87: plugins[0].parameters.weights[0].weight: a weight is from 0.001 to 1000000, -1 is not");
    assert_snapshot!(build("{weights: [{weight: 1}]}"), @"c.yaml:1:67: plugins[0].parameters.weights[0]: an entry has either a tenant or a prefix");
    assert_snapshot!(build("{weights: [{prefix: a, weight: 1}, {prefix: a, weight: 2}]}"), @r#"c.yaml:1:100: plugins[0].parameters.weights[1].prefix: "a" is listed twice"#);
    assert_snapshot!(build("{maxInFlightPerFlow: 0}"), @"c.yaml:1:77: plugins[0].parameters.maxInFlightPerFlow: 0 would let nobody in; leave it out for no limit");
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let build = |parameters| build("concurrency-detector", parameters);
    assert_snapshot!(build("{maxConcurrency: 0}"), @"c.yaml:1:69: plugins[0].parameters.maxConcurrency: 0 is not above zero");
    assert_snapshot!(build("{maxTokenConcurrency: 0}"), @"c.yaml:1:74: plugins[0].parameters.maxTokenConcurrency: 0 is not above zero");
    assert_snapshot!(build("{maxConcurrency: -1}"), @"c.yaml:1:69: plugins[0].parameters.maxConcurrency: expected a whole number from 0 up, found the number -1");
    assert_snapshot!(build("{headroom: -0.1}"), @"c.yaml:1:63: plugins[0].parameters.headroom: -0.1 is not a finite number from 0 up");
    assert_snapshot!(build("{headroom: 2}"), @"c.yaml:1:63: warning: plugins[0].parameters.headroom: 2 lets an endpoint be booked at more than twice its limit");
    assert_snapshot!(build("{concurrencyMode: bytes}"), @r#"c.yaml:1:70: plugins[0].parameters.concurrencyMode: unknown value "bytes"; the values are requests, tokens, hybrid"#);
    assert_snapshot!(build("{inFlightLoadProducerName: load}"), @"c.yaml:1:79: warning: plugins[0].parameters.inFlightLoadProducerName: has no effect in this version, which counts requests in one place");
}

#[test]
fn all_that_is_wrong_with_a_utilization_detector_is_said_at_once() {
    assert_snapshot!(build("utilization-detector", "{queueDepthThreshold: 0, kvCacheUtilThreshold: 1.1, metricsStalenessThreshold: 0s, headroom: -1, runningLimit: 0}"), @"
    c.yaml:1:74: plugins[0].parameters.queueDepthThreshold: 0 is not above zero and up to 1099511627776
    c.yaml:1:99: plugins[0].parameters.kvCacheUtilThreshold: 1.1 is not above 0 and up to 1
    c.yaml:1:131: plugins[0].parameters.metricsStalenessThreshold: 0s is not above zero
    c.yaml:1:145: plugins[0].parameters.headroom: -1 is not a finite number from 0 up
    c.yaml:1:163: plugins[0].parameters.runningLimit: 0 is not above zero and up to 1099511627776
    ");
    assert_snapshot!(build("utilization-detector", "{stalenessPolicy: wait}"), @r#"c.yaml:1:70: plugins[0].parameters.stalenessPolicy: unknown value "wait"; the values are saturated, ignore"#);
    assert_snapshot!(build("utilization-detector", "{aggregation: max}"), @r#"c.yaml:1:66: plugins[0].parameters.aggregation: unknown value "max"; the values are mean, min"#);
}

#[test]
fn a_utilization_detector_that_knows_nothing_most_of_the_time_is_warned_of() {
    assert_snapshot!(build("utilization-detector", "{metricsStalenessThreshold: 50ms}"), @"c.yaml:1:80: warning: plugins[0].parameters.metricsStalenessThreshold: 50ms is over before the next scrape, 50ms after the last one: most of the time nothing is known of any endpoint");
    assert_snapshot!(build("utilization-detector", "{headroom: 1.5}"), @"c.yaml:1:63: warning: plugins[0].parameters.headroom: 1.5 lets an endpoint be used at more than twice its thresholds");
}
