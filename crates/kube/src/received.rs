//! Objects as the server sends them. One that cannot be read spoils neither the list that it is in nor the watch that tells
//! of it.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object, or what is wrong with it. It is read out of whatever JSON there is.
#[derive(Clone, Debug)]
pub(crate) enum Received<O> {
    Read(O),
    Odd {
        /// Name, namespace, uid and version, each as far as it can be told.
        metadata: Box<ObjectMeta>,
        error: String,
    },
}

impl<'de, O: DeserializeOwned> Deserialize<'de> for Received<O> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(match serde_path_to_error::deserialize(&value) {
            Ok(object) => Self::Read(object),
            Err(error) => Self::Odd { metadata: Box::new(head(&value)), error: error.to_string() },
        })
    }
}

fn head(object: &Value) -> ObjectMeta {
    let text = |name: &str| object.get("metadata")?.get(name)?.as_str().map(str::to_owned);
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    }
}

impl<O: Resource> Resource for Received<O> {
    type DynamicType = O::DynamicType;
    type Scope = O::Scope;

    fn kind(of: &O::DynamicType) -> Cow<'_, str> {
        O::kind(of)
    }

    fn group(of: &O::DynamicType) -> Cow<'_, str> {
        O::group(of)
    }

    fn version(of: &O::DynamicType) -> Cow<'_, str> {
        O::version(of)
    }

    fn plural(of: &O::DynamicType) -> Cow<'_, str> {
        O::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Read(object) => object.meta(),
            Self::Odd { metadata, error: _ } => metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Read(object) => object.meta_mut(),
            Self::Odd { metadata, error: _ } => metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;
    use crate::pod::PodObject;

    /// What no list of pods has in it, each with the name that it can be told by.
    const ODD_PODS: [(&str, Option<&str>); 11] = [
        (r#"{"metadata": {"name": "a"}, "spec": {}, "status": "running"}"#, Some("a")),
        (r#"{"metadata": {"name": "a"}, "spec": {}, "status": {"podIP": 7}}"#, Some("a")),
        (r#"{"metadata": {"name": "a"}, "spec": {}, "status": {"conditions": [{"type": "Ready"}]}}"#, Some("a")),
        (r#"{"metadata": {"name": "a", "generation": 1e300}, "spec": {}}"#, Some("a")),
        (r#"{"metadata": {"name": "a", "creationTimestamp": "yesterday"}, "spec": {}}"#, Some("a")),
        (r#"{"metadata": {"name": "a", "labels": ["b"]}, "spec": {}}"#, Some("a")),
        (r#"{"metadata": {"name": ["a"]}, "spec": {}}"#, None),
        (r#"{"metadata": null, "spec": {}}"#, None),
        (r#"{"metadata": "a", "spec": {}}"#, None),
        (r#"["a"]"#, None),
        ("null", None),
    ];

    #[test]
    fn an_odd_object_is_told_by_its_name_and_spoils_no_list() {
        let good = r#"{"metadata": {"name": "good"}, "spec": {}, "status": {}}"#;
        for (odd, name) in ODD_PODS {
            let list = format!(r#"{{"metadata": {{"resourceVersion": "7"}}, "items": [{good}, {odd}, {good}]}}"#);
            let list: ObjectList<Received<PodObject>> = serde_json::from_str(&list).unwrap();
            assert_eq!(list.metadata.resource_version.as_deref(), Some("7"));
            let [before, it, after] = &list.items[..] else { panic!("{odd}: {list:?}") };
            assert!(matches!((before, after), (Received::Read(_), Received::Read(_))), "{odd}");
            assert!(matches!(it, Received::Odd { .. }), "{odd}");
            assert_eq!(it.meta().name.as_deref(), name, "{odd}");
        }
    }

    #[test]
    fn an_odd_object_in_a_watch_has_a_version_to_go_on_from() {
        for odd in ODD_PODS.map(|(odd, _)| odd.replace(r#""name""#, r#""resourceVersion": "8", "name""#)) {
            let (kind, object) = (r#""type": "MODIFIED""#, format!(r#""object": {odd}"#));
            for event in [format!("{{{kind}, {object}}}"), format!("{{{object}, {kind}}}")] {
                let WatchEvent::Modified(it) = serde_json::from_str::<WatchEvent<Received<PodObject>>>(&event).unwrap()
                else {
                    panic!("{event}")
                };
                assert_eq!(it.meta().resource_version.is_some(), odd.contains("Version"), "{event}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let odd = json!({"metadata": {"name": "a"}, "spec": {}, "status": {"conditions": [{"type": 5}]}}).to_string();
        let Received::Odd { error, .. } = serde_json::from_str::<Received<PodObject>>(&odd).unwrap() else {
            panic!("a type is a text")
        };
        assert!(error.starts_with("status.conditions[0].type: invalid type: integer `5`"), "{error}");
    }
}
