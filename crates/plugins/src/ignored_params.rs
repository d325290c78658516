use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::ser::{SerializeMap as _, Serializer};
use serde::{Deserialize, Serialize};
use sluice_config::BuildContext;

/// Parameters of a plugin to which there is nothing to tell, while configurations that try are in use.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct IgnoredParams(BTreeMap<String, IgnoredAny>);

impl IgnoredParams {
    pub(crate) fn warn(&self, cx: &mut BuildContext<'_>) {
        for name in self.0.keys() {
            cx.warn(name, "has no effect: this plugin takes no parameters");
        }
    }
}

/// What has no effect is not there.
impl Serialize for IgnoredParams {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_map(Some(0))?.end()
    }
}
