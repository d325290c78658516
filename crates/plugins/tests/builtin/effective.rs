//! The configuration in force shows what each plugin runs on.

use std::collections::BTreeSet;

use sluice_config::{Assembled, Options, Source, load};
use sluice_data::EngineConfig;
use sluice_plugins::BUILTIN;

use crate::documentation::{page, plugin_sections};
use crate::fixtures::{fixtures, read};

fn accept(text: &str) -> Assembled {
    let options = Options { allow_experimental_plugins: true, ..Options::default() };
    load(&Source::new("c.yaml", text), BUILTIN, &options).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A configuration with one plugin.
fn with(plugin_type: &str, parameters: &str) -> String {
    format!("plugins: [{{type: {plugin_type}, parameters: {parameters}}}]\n")
}

/// What has to be given, or without what other parameters have no default.
fn required(plugin_type: &str) -> &'static str {
    match plugin_type {
        "file-discovery" => "{path: endpoints.yaml}",
        "inflight-load-producer" => "{addEstimatedOutputTokens: true}",
        "priority-holdback-policy" => "{minCeiling: 0.5}",
        _ => "{}",
    }
}

#[test]
fn the_documented_defaults_are_shown() {
    let page = page("plugins.md");
    let mut defaults = 0;
    for (name, section) in plugin_sections(&page) {
        let effective = accept(&with(name, required(name))).effective;
        let shown = &effective["plugins"][0]["parameters"];
        for line in section.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let (parameter, default) = (cells[1].trim_matches('`'), cells[2]);
            if default.is_empty() || default.starts_with("required") || required(name).contains(parameter) {
                continue;
            }
            let shown = shown[parameter].to_string();
            assert_eq!(shown.trim_matches('"'), default.trim_matches('`'), "{name}: {parameter}");
            defaults += 1;
        }
    }
    assert!(defaults > 15, "{defaults}");
}

#[test]
fn what_is_shown_means_the_same_and_leaves_nothing_to_warn_of() {
    let given = [
        ("active-request-scorer", "{idleThreshold: -3, maxBusyScore: .inf, requestTimeout: 2m}"),
        ("random-picker", "{maxNumOfEndpoints: -2}"),
        ("inflight-load-producer", "{addEstimatedOutputTokens: true, maxEstimatedOutputTokens: 7}"),
        ("priority-holdback-policy", "{ceilings: [{priority: 3, ceiling: 0.1}]}"),
        ("weighted-fairness-policy", "{weights: [{prefix: a, weight: 0.1}], maxInFlightPerFlow: 2}"),
        ("concurrency-detector", "{concurrencyMode: hybrid, headroom: 0.3, inFlightLoadProducerName: x}"),
        ("utilization-detector", "{stalenessPolicy: ignore, aggregation: min, runningLimit: 7, headroom: 0.1}"),
        ("single-profile-handler", "{profile: main}"),
        ("agent-identity", "{additionalSessionHeaders: [X-A]}"),
    ];
    let defaults = BUILTIN.iter().map(|plugin_type| (plugin_type.name(), required(plugin_type.name())));
    for (plugin_type, parameters) in defaults.chain(given) {
        let first = accept(&with(plugin_type, parameters));
        let again = accept(&first.effective.to_string());
        assert_eq!(again.effective, first.effective, "{plugin_type} {parameters}");
        assert_eq!(format!("{:?}", again.scheduler), format!("{:?}", first.scheduler), "{plugin_type} {parameters}");
        assert_eq!(again.token_estimate, first.token_estimate, "{plugin_type} {parameters}");
        assert_eq!(again.tenant_headers, first.tenant_headers, "{plugin_type} {parameters}");
        let about_parameters = again.warnings.iter().find(|warning| warning.path.contains("parameters"));
        assert_eq!(about_parameters, None, "{plugin_type} {parameters}");
    }
}

/// The parameters of plugins that good configurations give: those that are shown with another value than by default, and
/// those that are warned of.
fn given() -> BTreeSet<(String, String)> {
    let mut given = BTreeSet::new();
    for assembled in fixtures("good").iter().filter_map(|path| read(path).ok()) {
        for (index, plugin) in assembled.effective["plugins"].as_array().unwrap().iter().enumerate() {
            let plugin_type = plugin["type"].as_str().unwrap();
            let default = &accept(&with(plugin_type, required(plugin_type))).effective["plugins"][0]["parameters"];
            let plugin_type = BUILTIN.iter().find(|known| known.name() == plugin_type).unwrap();
            for parameter in plugin_type.parameters() {
                let shown = &plugin["parameters"][parameter];
                let path = format!("plugins[{index}].parameters.{parameter}");
                if !shown.is_null() && *shown != default[parameter]
                    || assembled.warnings.iter().any(|warning| warning.path == path)
                {
                    given.insert((plugin_type.name().to_owned(), (*parameter).to_owned()));
                }
            }
        }
    }
    given
}

#[test]
fn every_parameter_is_in_a_good_configuration_with_another_value_than_its_default() {
    let given = given();
    // There is one word for it yet.
    let only_default = ["shape"];
    for plugin_type in BUILTIN {
        for parameter in plugin_type.parameters().iter().filter(|parameter| !only_default.contains(parameter)) {
            let of_plugin = (plugin_type.name().to_owned(), (*parameter).to_owned());
            assert!(given.contains(&of_plugin), "no good configuration gives {parameter} of {}", plugin_type.name());
        }
    }
}

#[test]
fn every_field_of_an_engine_is_in_a_good_configuration_with_another_value_than_its_default() {
    let default = serde_json::to_value(serde_json::from_str::<EngineConfig>(r#"{"name": ""}"#).unwrap()).unwrap();
    let good = fixtures("good");
    let shown: Vec<_> = good.iter().filter_map(|path| read(path).ok()).map(|assembled| assembled.effective).collect();
    let plugins = shown.iter().flat_map(|effective| effective["plugins"].as_array().unwrap());
    let engines: Vec<_> =
        plugins.filter_map(|plugin| plugin["parameters"]["engineConfigs"].as_array()).flatten().collect();
    for (field, default) in default.as_object().unwrap() {
        let is_given = engines.iter().any(|engine| !engine[field].is_null() && engine[field] != *default);
        assert!(is_given, "no good configuration gives {field} of an engine");
    }
}
