//! A configuration in force, as YAML for people.

use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};
use serde_json::Value;

use crate::Assembled;

/// What a reader looks for first; other keys follow by the alphabet.
const FIRST: &[&str] = &[
    "apiVersion",
    "kind",
    "featureGates",
    "name",
    "type",
    "priority",
    "pluginRef",
    "plugins",
    "schedulingProfiles",
    "requestHandler",
    "dataLayer",
    "flowControl",
    "sluice",
];

impl Assembled {
    /// [`Assembled::effective`] as YAML.
    pub fn effective_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(&Ordered(&self.effective))
    }
}

struct Ordered<'a>(&'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(entries) => {
                let mut entries: Vec<_> = entries.iter().filter(|(_, value)| !value.is_null()).collect();
                let place = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
                entries.sort_by_key(|(key, _)| place(key));
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, &Ordered(value))?;
                }
                map.end()
            }
            Value::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(&Ordered(item))?;
                }
                list.end()
            }
            scalar => scalar.serialize(serializer),
        }
    }
}
