//! The examples in `docs/proxies.md`: every block of YAML can be read, and what the EnvoyFilters say is accepted by a
//! real Envoy in the place they name.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use serde_json::{Map, Value};
use sluice_testkit::{Envoy, EnvoyConfig, Part, Template, workspace};

/// The blocks of YAML of the page.
fn examples() -> Vec<Value> {
    let page = std::fs::read_to_string(workspace::root().join("docs/proxies.md")).unwrap();
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(|block| serde_saphyr::from_str(block).unwrap()).collect()
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

/// Merges the fields of `typed_config` into a part.
fn merge(config: &mut EnvoyConfig, part: Part, fields: &Value) {
    for (key, value) in object(fields) {
        match key.as_str() {
            "processing_mode" => merge(config, Part::ProcessingMode, value),
            _ => config.put(part, key, value.clone()).unwrap(),
        }
    }
}

/// Does to a configuration of ours what Istio does with a patch to its own.
fn apply(config: &mut EnvoyConfig, patch: &Value) {
    let value = &patch["patch"]["value"];
    match (patch["applyTo"].as_str().unwrap(), patch["patch"]["operation"].as_str().unwrap()) {
        ("NETWORK_FILTER", "MERGE") => merge(config, Part::ConnectionManager, &value["typed_config"]),
        ("HTTP_ROUTE", "MERGE") => merge(config, Part::Route, &value["route"]),
        ("HTTP_FILTER", "MERGE") => {
            assert_eq!(value["name"], "envoy.filters.http.ext_proc");
            merge(config, Part::ExtProc, &value["typed_config"]);
        }
        ("HTTP_FILTER", "INSERT_FIRST") => config.insert_http_filter(value.clone()).unwrap(),
        ("CLUSTER", "MERGE") => merge(config, Part::Picker, value),
        other => panic!("the test cannot do {other:?}"),
    }
}

#[tokio::test]
async fn the_filters_for_istio_are_accepted_by_envoy() {
    let mut config = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    let filters: Vec<Value> = examples().into_iter().filter(|example| example["kind"] == "EnvoyFilter").collect();
    assert_eq!(filters.len(), 2);
    let mut patches = 0;
    for filter in &filters {
        for patch in filter["spec"]["configPatches"].as_array().unwrap() {
            apply(&mut config, patch);
            patches += 1;
        }
    }
    assert_eq!(patches, 6);
    // What is not a setting of Envoy, or not in its place, would end it here.
    Envoy::start(&config).await.unwrap();
}

#[test]
fn every_example_says_what_it_is() {
    let examples = examples();
    assert!(examples.len() >= 6);
    // One is a field of a cluster of Envoy.
    let (parts, objects): (Vec<_>, Vec<_>) =
        examples.into_iter().partition(|example| example["transport_socket"].is_object());
    assert_eq!(parts.len(), 1);
    for example in objects {
        assert!(example["apiVersion"].is_string() && example["kind"].is_string(), "{example}");
    }
}

#[test]
fn every_configuration_is_mentioned() {
    let page = std::fs::read_to_string(workspace::root().join("docs/proxies.md")).unwrap();
    for template in Template::ALL {
        let path = template.path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}
