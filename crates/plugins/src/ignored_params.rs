//! What configurations in use say and what changes nothing here: it is taken, and warned of.

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

/// One such parameter of a plugin that has others.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct IgnoredParam(Option<IgnoredAny>);

impl IgnoredParam {
    /// Warns, if it is given, that it has no effect and why.
    #[track_caller]
    pub(crate) fn warn_if_given(&self, parameter: &str, message: &str, cx: &mut BuildContext<'_>) {
        if self.0.is_some() {
            cx.warn(parameter, message);
        }
    }
}

/// As if it had not been given.
impl Serialize for IgnoredParam {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_none()
    }
}

/// The name of the plugin that counts what is in flight, in plugins that act on it.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct LoadProducerName(IgnoredParam);

impl LoadProducerName {
    pub(crate) fn warn(&self, cx: &mut BuildContext<'_>) {
        let message = "has no effect in this version, which counts requests in one place";
        self.0.warn_if_given("inFlightLoadProducerName", message, cx);
    }
}
