//! Pages for whoever wants to know what the process does.

use serde_json::{Value, json};

use crate::support::{Epp, arguments, configuration, directory, epp, ports};

#[test]
fn the_configuration_in_force_is_shown_with_what_was_left_out() {
    let epp = Epp::serving(epp(&arguments(&directory("debug-config"))));
    let page = epp.configuration();
    assert_eq!(page["source"], "--config-text");
    assert_eq!(page["followed"], false);
    let config = &page["config"];
    assert_eq!(config["dataLayer"]["discovery"]["pluginRef"], "file-discovery");
    assert_eq!(config["schedulingProfiles"][0]["plugins"][0]["pluginRef"], "max-score-picker");
    assert_eq!(config["sluice"]["unknownObjective"], "default");
}

/// In the shape in which llm-d-router's EPP shows its plugins.
#[test]
fn the_plugins_in_force_are_shown_with_the_state_of_those_that_have_one() {
    let directory = directory("debug-plugins");
    let text = format!("featureGates: [flowControl]\n{}", configuration(&directory));
    let arguments: Vec<String> = ports().into_iter().chain([format!("--config-text={text}")]).collect();
    let epp = Epp::serving(epp(&arguments));
    let page: Value = serde_json::from_str(&epp.page("/debug/plugins/state")).unwrap();
    assert!(page["timestamp"].as_str().unwrap().ends_with('Z'), "{page}");
    let picker = &page["plugins"]["max-score-picker"];
    assert_eq!((&picker["name"], &picker["type"]), (&json!("max-score-picker"), &json!("max-score-picker")));
    assert_eq!(picker["message"], "plugin does not support state collection");
    let detector = &page["plugins"]["utilization-detector"];
    assert!(detector["message"].is_null() && detector["state"]["byStage"].is_object(), "{page}");
}
