use std::sync::Arc;

use insta::assert_snapshot;
use sluice_config::{Assembled, Options, Source, load, reload};
use sluice_flow::policy::EndpointFacts;
use sluice_flow::{EndpointKey, Stages};
use sluice_plugins::BUILTIN;

use crate::read;

/// What is said about one plugin with these parameters, and what becomes of it.
fn build(plugin_type: &str, parameters: &str) -> String {
    let text = format!("plugins: [{{type: {plugin_type}, parameters: {parameters}}}]\n");
    match read(&text) {
        Ok(assembled) => {
            let scheduler = format!("{:?}", assembled.scheduler);
            let profile = scheduler.split_once("profiles: [").unwrap().1.to_owned();
            assembled.warnings.iter().map(ToString::to_string).chain([profile]).collect::<Vec<_>>().join("\n")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_built_in_configuration_is_that_of_llm_d_router() {
    let assembled = load(&Source::built_in(), BUILTIN, &Options::default()).unwrap();
    let warnings: Vec<String> = assembled.warnings.iter().map(ToString::to_string).collect();
    assert_snapshot!(warnings.join("\n"), @"built-in configuration:5:11: warning: plugins[2].type: scores every endpoint 0: this version does not know what endpoints have cached");
    let plugins = assembled.effective["plugins"].as_array().unwrap().iter();
    let filled_in: Vec<&str> = plugins.skip(5).map(|plugin| plugin["type"].as_str().unwrap()).collect();
    let expected = [
        "anthropic-parser",
        "approx-prefix-cache-producer",
        "max-score-picker",
        "openai-parser",
        "passthrough-parser",
        "single-profile-handler",
        "utilization-detector",
        "vllmhttp-parser",
    ];
    assert_eq!(filled_in, expected);
    assert_eq!(assembled.discovery, None);
    assert!(assembled.scraping.is_some() && assembled.flow_control.is_none());
    assert_snapshot!(assembled.effective["schedulingProfiles"], @r#"[{"name":"default","plugins":[{"pluginRef":"queue-scorer","weight":2.0},{"pluginRef":"kv-cache-utilization-scorer","weight":2.0},{"pluginRef":"prefix-cache-scorer","weight":3.0},{"pluginRef":"max-score-picker"}]}]"#);
}

#[test]
fn active_request_scorer() {
    assert_snapshot!(build("active-request-scorer", "{idleThreshold: 3, maxBusyScore: 0.5}"), @r#"Profile { name: "default", filters: [], scorers: [WeightedScorer { scorer: ActiveRequestScorer { idle_threshold: 3, max_busy_score: 0.5 }, weight: 1.0 }], picker: MaxScorePicker { max_endpoints: 1 } }] }"#);
    assert_snapshot!(build("active-request-scorer", "{idleThreshold: -3, maxBusyScore: 1.5}"), @r#"
    c.yaml:1:69: warning: plugins[0].parameters.idleThreshold: -3 is negative, taken as 0
    c.yaml:1:87: warning: plugins[0].parameters.maxBusyScore: 1.5 is not between 0 and 1, taken as 1
    Profile { name: "default", filters: [], scorers: [WeightedScorer { scorer: ActiveRequestScorer { idle_threshold: 0, max_busy_score: 1.0 }, weight: 1.0 }], picker: MaxScorePicker { max_endpoints: 1 } }] }
    "#);
    assert_snapshot!(build("active-request-scorer", "{maxBusyScore: .nan}"), @r#"
    c.yaml:1:68: warning: plugins[0].parameters.maxBusyScore: NaN is not between 0 and 1, taken as 1
    Profile { name: "default", filters: [], scorers: [WeightedScorer { scorer: ActiveRequestScorer { idle_threshold: 0, max_busy_score: 1.0 }, weight: 1.0 }], picker: MaxScorePicker { max_endpoints: 1 } }] }
    "#);
    assert_snapshot!(build("active-request-scorer", "{requestTimeout: 2m, inFlightLoadProducerName: other}"), @r#"
    c.yaml:1:70: warning: plugins[0].parameters.requestTimeout: deprecated and without effect: a request counts until it ends
    c.yaml:1:100: warning: plugins[0].parameters.inFlightLoadProducerName: has no effect in this version, which counts requests in one place
    Profile { name: "default", filters: [], scorers: [WeightedScorer { scorer: ActiveRequestScorer { idle_threshold: 0, max_busy_score: 1.0 }, weight: 1.0 }], picker: MaxScorePicker { max_endpoints: 1 } }] }
    "#);
    assert_snapshot!(build("active-request-scorer", "{idleTreshold: 1, maxBusyScore: high}"), @r#"
    c.yaml:1:54: plugins[0].parameters.idleTreshold: unknown field "idleTreshold", did you mean "idleThreshold"?
    c.yaml:1:85: plugins[0].parameters.maxBusyScore: expected a number, found the string "high"
    "#);
}

#[test]
fn scorers_of_scraped_metrics() {
    for plugin_type in ["queue-scorer", "running-requests-size-scorer", "kv-cache-utilization-scorer"] {
        let text = format!("plugins: [{{type: {plugin_type}}}]\n");
        assert!(!read(&text).unwrap().warnings.iter().any(|warning| warning.path.contains("plugins")), "{plugin_type}");
    }
    assert_snapshot!(build("queue-scorer", "{threshold: 5}"), @r#"c.yaml:1:45: plugins[0].parameters.threshold: unknown field "threshold"; there are no fields here"#);
}

#[test]
fn prefix_cache_plugins_are_read_in_full() {
    assert_snapshot!(build("prefix-cache-scorer", "{prefixMatchInfoProducerName: p, matchLengthWeight: 0.5, matchLengthScaleTokens: 1}"), @r#"
    c.yaml:1:18: warning: plugins[0].type: scores every endpoint 0: this version does not know what endpoints have cached
    Profile { name: "default", filters: [], scorers: [WeightedScorer { scorer: PrefixCacheScorer, weight: 1.0 }], picker: MaxScorePicker { max_endpoints: 1 } }] }
    "#);
    assert_snapshot!(build("prefix-cache-scorer", "{matchLengthWeight: 1.5}"), @r#"c.yaml:1:71: plugins[0].parameters.matchLengthWeight: 1.5 is not between 0 and 1"#);
    assert_snapshot!(build("prefix-cache-scorer", "{matchLengthWeight: 0.1, matchLengthScaleTokens: 0}"), @r#"c.yaml:1:100: plugins[0].parameters.matchLengthScaleTokens: 0 is not above 0, which it has to be where matchLengthWeight is"#);
    assert_snapshot!(build("prefix-cache-scorer", "{matchLengthWeigth: .nan}"), @r#"c.yaml:1:52: plugins[0].parameters.matchLengthWeigth: unknown field "matchLengthWeigth", did you mean "matchLengthWeight"?"#);
    assert_snapshot!(build("approx-prefix-cache-producer", "{autoTune: false, blockSizeTokens: 64, maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 0, lruCapacityPerServer: 5}"), @r#"
    c.yaml:1:11: warning: plugins[0]: has no effect: no plugin asks for what "approx-prefix-cache-producer" brings
    Profile { name: "default", filters: [], scorers: [], picker: MaxScorePicker { max_endpoints: 1 } }] }
    "#);
    assert_snapshot!(build("approx-prefix-cache-producer", "{blockSize: 64}"), @r#"
    c.yaml:1:11: warning: plugins[0]: has no effect: no plugin asks for what "approx-prefix-cache-producer" brings
    c.yaml:1:72: warning: plugins[0].parameters.blockSize: deprecated: use blockSizeTokens
    Profile { name: "default", filters: [], scorers: [], picker: MaxScorePicker { max_endpoints: 1 } }] }
    "#);
    assert_snapshot!(build("approx-prefix-cache-producer", "{autoTune: false, blockSize: 0}"), @r#"c.yaml:1:89: plugins[0].parameters.blockSize: 0 is not above 0, which it has to be without autoTune"#);
    assert_snapshot!(build("approx-prefix-cache-producer", "{maxPrefixTokensToMatch: -1}"), @r#"c.yaml:1:85: plugins[0].parameters.maxPrefixTokensToMatch: -1 is negative; 0 stands for no limit"#);
    assert_snapshot!(build("approx-prefix-cache-producer", "{maxPrefixBlocksToMatch: -1}"), @r#"c.yaml:1:85: plugins[0].parameters.maxPrefixBlocksToMatch: -1 is negative; 0 stands for no limit"#);
}

#[test]
fn pickers() {
    assert_snapshot!(build("weighted-random-picker", "{maxNumOfEndpoints: 2}"), @r#"Profile { name: "default", filters: [], scorers: [], picker: WeightedRandomPicker { max_endpoints: 2 } }] }"#);
    assert_snapshot!(build("max-score-picker", "{maxNumOfEndpoints: 3}"), @r#"Profile { name: "default", filters: [], scorers: [], picker: MaxScorePicker { max_endpoints: 3 } }] }"#);
    assert_snapshot!(build("random-picker", "{maxNumOfEndpoints: 0}"), @r#"
    c.yaml:1:65: warning: plugins[0].parameters.maxNumOfEndpoints: 0 is less than 1, taken as 1
    Profile { name: "default", filters: [], scorers: [], picker: RandomPicker { max_endpoints: 1 } }] }
    "#);
    assert_snapshot!(build("random-picker", "{maxNumOfEndpoints: -1}"), @r#"
    c.yaml:1:65: warning: plugins[0].parameters.maxNumOfEndpoints: -1 is less than 1, taken as 1
    Profile { name: "default", filters: [], scorers: [], picker: RandomPicker { max_endpoints: 1 } }] }
    "#);
    assert_snapshot!(build("random-picker", "{maxNumOfEndpoints: many, weight: 1}"), @r#"
    c.yaml:1:65: plugins[0].parameters.maxNumOfEndpoints: expected a whole number, found the string "many"
    c.yaml:1:71: plugins[0].parameters.weight: unknown field "weight"; the only field is maxNumOfEndpoints
    "#);
}

#[test]
fn single_profile_handler_accepts_what_it_does_not_use() {
    assert_snapshot!(build("single-profile-handler", "{profile: main}"), @r#"
    c.yaml:1:64: warning: plugins[0].parameters.profile: has no effect: this plugin takes no parameters
    Profile { name: "default", filters: [], scorers: [], picker: MaxScorePicker { max_endpoints: 1 } }] }
    "#);
}

#[test]
fn file_discovery_needs_a_path() {
    assert_snapshot!(build("file-discovery", "{}"), @r#"c.yaml:1:46: plugins[0].parameters.path: the field "path" is missing"#);
    assert_snapshot!(build("file-discovery", "{path: '', watchFile: false}"), @"c.yaml:1:53: plugins[0].parameters.path: the path of the endpoint file is empty");
    assert_snapshot!(build("file-discovery", "{path: [a], watch: true, watchFile: 'yes'}"), @r#"
    c.yaml:1:53: plugins[0].parameters.path: expected a path, found a list
    c.yaml:1:58: plugins[0].parameters.watch: unknown field "watch"; the fields are path, watchFile
    c.yaml:1:82: plugins[0].parameters.watchFile: expected true or false, found the string "yes"
    "#);
}

#[test]
fn a_detector_in_a_profile_bounds_what_is_booked() {
    let detectors = "
featureGates: [flowControl]
plugins:
  - {name: gate, type: concurrency-detector, parameters: {maxConcurrency: 5}}
  - {name: lower, type: concurrency-detector, parameters: {maxConcurrency: 2}}
flowControl: {saturationDetector: {pluginRef: gate}}
schedulingProfiles: [{name: main, plugins: [";
    let limit = |listed: &str| {
        let assembled = read(&format!("{detectors}{listed}]}}]\n")).unwrap();
        let detector = assembled.flow_control.unwrap().config.detector.new_state();
        let partitions = Stages::DECODE.partitions();
        detector.booking_limit(&EndpointFacts { key: EndpointKey(0), partitions, max_concurrency: None }).requests
    };
    assert_eq!(limit("{pluginRef: gate}"), 5);
    assert_eq!(limit("{pluginRef: lower}"), 2);
    assert_eq!(limit("{pluginRef: gate}, {pluginRef: lower}"), 2);
}

#[test]
fn a_gate_that_filters_bound_goes_on_while_none_of_them_changes() {
    let text = "
featureGates: [flowControl]
plugins:
  - {name: gate, type: concurrency-detector, parameters: {maxConcurrency: 5}}
  - {name: lower, type: concurrency-detector, parameters: {maxConcurrency: 5, headroom: 1}}
flowControl: {saturationDetector: {pluginRef: gate}}
schedulingProfiles: [{name: main, plugins: [{pluginRef: lower}]}]
";
    let before = read(text).unwrap();
    let goes_on = |from: &str, to: &str| {
        let source = Source::new("c.yaml", text.replace(from, to));
        let after = reload(&source, BUILTIN, &Options::default(), &before.as_previous).unwrap();
        let detector = |assembled: &Assembled| Arc::clone(&assembled.flow_control.as_ref().unwrap().config.detector);
        Arc::ptr_eq(&detector(&before), &detector(&after))
    };
    assert!(goes_on("name: main", "name: other"));
    assert!(!goes_on("headroom: 1", "headroom: 2"));
    assert!(!goes_on("maxConcurrency: 5}", "maxConcurrency: 6}"));
    assert!(!goes_on("[{pluginRef: lower}]", "[]"));
}

#[test]
fn a_detector_that_fills_the_endpoints_before_the_gate_closes_is_warned_of() {
    let said = |gate: &str, filter: &str| {
        let text = format!(
            "
featureGates: [flowControl]
plugins:
  - {{name: gate, type: concurrency-detector, parameters: {gate}}}
  - {{name: filter, type: concurrency-detector, parameters: {filter}}}
flowControl: {{saturationDetector: {{pluginRef: gate}}}}
schedulingProfiles: [{{name: main, plugins: [{{pluginRef: gate}}, {{pluginRef: filter}}]}}]
"
        );
        let warnings = read(&text).unwrap().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!(said("{maxConcurrency: 100}", "{maxConcurrency: 8}"), @r#"c.yaml:7:64: warning: schedulingProfiles[0].plugins[1]: endpoints are full for "filter" before the gate, "gate", is closed: requests wait for an endpoint, past the ceilings of their bands and the turns of their tenants; give "filter" limits as high as those of "gate", or make it the gate"#);
    for (gate, filter, warned) in [
        ("{maxConcurrency: 8}", "{maxConcurrency: 8}", false),
        ("{maxConcurrency: 8, headroom: 0.5}", "{maxConcurrency: 10}", false),
        ("{maxConcurrency: 8}", "{maxConcurrency: 7, headroom: 0.2}", false),
        ("{maxConcurrency: 8}", "{maxConcurrency: 7, headroom: 0.1}", true),
        (
            "{concurrencyMode: tokens, maxTokenConcurrency: 9}",
            "{concurrencyMode: tokens, maxTokenConcurrency: 8}",
            true,
        ),
        // In other units it depends on the requests.
        ("{concurrencyMode: tokens}", "{maxConcurrency: 1}", false),
        ("{maxConcurrency: 100}", "{concurrencyMode: tokens, maxTokenConcurrency: 1}", false),
    ] {
        assert_eq!(said(gate, filter).contains("before the gate"), warned, "{gate} {filter}");
    }
}

#[test]
fn the_producer_that_a_scorer_needs_is_filled_in_once() {
    let producers = |text: &str| {
        let effective = read(text).unwrap().effective;
        let plugins = effective["plugins"].as_array().unwrap().iter();
        let producers = plugins.filter(|plugin| plugin["type"] == "approx-prefix-cache-producer");
        producers.map(|plugin| plugin["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(producers("plugins: [{type: queue-scorer}]"), [""; 0]);
    let scorers = "plugins: [{type: prefix-cache-scorer}, {name: other, type: prefix-cache-scorer}";
    assert_eq!(producers(&format!("{scorers}]")), ["approx-prefix-cache-producer"]);
    assert_eq!(producers(&format!("{scorers}, {{name: own, type: approx-prefix-cache-producer}}]")), ["own"]);
}
