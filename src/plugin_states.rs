//! `GET /debug/plugins/state`: the plugins in force, and what they know. The page has the shape of that of llm-d-router's
//! EPP; what its plugins keep to themselves is kept here by the engine, which `GET /debug/flow` shows in full.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sluice_flow::Stats;

use crate::debug;

/// Of most plugins.
const NO_STATE: &str = "plugin does not support state collection";

/// The whole page, as it is at `timestamp`. `effective` is the configuration in force; `flow` is there where there is flow
/// control.
pub(crate) fn page(timestamp: &str, effective: &Value, flow: Option<&Stats>) -> Value {
    let detector = detector(effective);
    let declared = effective["plugins"].as_array().into_iter().flatten();
    let plugins: BTreeMap<&str, Value> = declared
        .filter_map(|plugin| {
            let name = plugin["name"].as_str()?;
            let mut entry =
                Map::from_iter([("name".to_owned(), json!(name)), ("type".to_owned(), plugin["type"].clone())]);
            match flow.filter(|_| detector == Some(name)) {
                Some(stats) => entry.insert("state".to_owned(), debug::saturation(stats)),
                None => entry.insert("message".to_owned(), json!(NO_STATE)),
            };
            Some((name, entry.into()))
        })
        .collect();
    json!({"timestamp": timestamp, "plugins": plugins})
}

/// The name of the plugin that tells how full the pool is, in a configuration that is in force; none if nobody does.
pub(crate) fn detector(effective: &Value) -> Option<&str> {
    effective["flowControl"]["saturationDetector"]["pluginRef"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plugin_is_named_with_its_type_and_why_it_shows_nothing() {
        let effective = json!({
            "plugins": [{"name": "best", "type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 1}}],
            "flowControl": {},
        });
        let expected = json!({"timestamp": "now", "plugins": {
            "best": {"name": "best", "type": "max-score-picker", "message": "plugin does not support state collection"},
        }});
        assert_eq!(page("now", &effective, None), expected);
        assert_eq!(page("now", &json!({}), None)["plugins"], json!({}));
    }
}
