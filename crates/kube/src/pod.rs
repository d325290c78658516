use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Object;
use serde::Deserialize;
use sluice_core::Endpoint;

use crate::collection::{Key, Named};

/// Which of the target ports a pod serves on; the present name counts where both are there.
const ACTIVE_PORTS: [&str; 2] = ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];

/// A pod, as far as a picker needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub key: Key,
    /// Seconds since 1970. Of two pods that claim an address the later one has it.
    pub created: i64,
    /// None before it has one.
    pub ip: Option<IpAddr>,
    /// Ready, and not on its way out.
    pub routable: bool,
    /// The pod's labels, and [`Endpoint::MAX_CONCURRENCY`] also where it is an annotation.
    pub labels: BTreeMap<String, String>,
    /// None: all target ports.
    pub active_ports: Option<BTreeSet<u16>>,
}

impl Named for Pod {
    fn key(&self) -> &Key {
        &self.key
    }
}

/// The fields of a pod that are read: everything else is dropped while the answer is parsed.
pub(crate) type PodObject = Object<PodSpec, PodStatus>;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodSpec {}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodStatus {
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(default)]
    conditions: Vec<PodCondition>,
}

#[derive(Clone, Debug, Deserialize)]
struct PodCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Pod {
    /// Or what is wrong with it.
    pub(crate) fn new(key: Key, metadata: ObjectMeta, status: PodStatus) -> Result<Self, String> {
        let annotations = metadata.annotations.unwrap_or_default();
        let active_ports = ACTIVE_PORTS.iter().find_map(|name| annotations.get(*name)).map(|list| ports(list));
        let mut labels = metadata.labels.unwrap_or_default();
        if let Some(limit) = annotations.get(Endpoint::MAX_CONCURRENCY) {
            labels.entry(Endpoint::MAX_CONCURRENCY.to_owned()).or_insert_with(|| limit.clone());
        }
        let ready = status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True");
        let ip = status.pod_ip.filter(|ip| !ip.is_empty());
        let ip = ip.map(|ip| ip.parse().map_err(|error| format!("status.podIP: {ip:?}: {error}"))).transpose()?;
        Ok(Self {
            key,
            created: metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
            ip,
            routable: ready && metadata.deletion_timestamp.is_none(),
            labels,
            active_ports,
        })
    }

    pub(crate) fn serves_on(&self, port: u16) -> bool {
        self.active_ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}

/// What is not a port is left out.
fn ports(list: &str) -> BTreeSet<u16> {
    list.split(',').filter_map(|port| port.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(object: Value) -> Pod {
        try_read(object).unwrap()
    }

    fn try_read(object: Value) -> Result<Pod, String> {
        let object: PodObject = serde_json::from_value(object).unwrap();
        let key = Key { name: "a".into(), uid: "1".into() };
        Pod::new(key, object.metadata, object.status.unwrap_or_default())
    }

    fn with_annotations(annotations: &Value) -> Pod {
        read(json!({"metadata": {"name": "a", "annotations": annotations}, "spec": {"nodeName": "n"}}))
    }

    #[test]
    fn only_a_ready_pod_that_does_not_terminate_is_routable() {
        let pod = |conditions: Value, metadata: Value| {
            read(json!({"metadata": metadata, "spec": {}, "status": {"podIP": "10.0.0.1", "conditions": conditions}}))
        };
        let ready = json!([{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}]);
        let alive = json!({"name": "a", "creationTimestamp": "1970-01-01T00:01:00Z"});
        assert!(pod(ready.clone(), alive.clone()).routable);
        assert_eq!(pod(ready.clone(), alive.clone()).created, 60);
        assert_eq!(pod(ready.clone(), alive.clone()).ip, Some("10.0.0.1".parse().unwrap()));
        let terminating = json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert!(!pod(ready, terminating).routable);
        for status in ["False", "Unknown"] {
            assert!(!pod(json!([{"type": "Ready", "status": status}]), alive.clone()).routable, "{status}");
        }
        assert!(!pod(json!([]), alive.clone()).routable);
        assert!(!read(json!({"metadata": alive, "spec": {}})).routable, "it has no status yet");
    }

    #[test]
    fn an_address_that_is_none_is_named() {
        let pod = |ip: &str| try_read(json!({"metadata": {"name": "a"}, "spec": {}, "status": {"podIP": ip}}));
        assert_eq!(pod("fd00::1").unwrap().ip, Some("fd00::1".parse().unwrap()));
        assert_eq!(pod("").unwrap().ip, None, "it has none yet");
        for odd in ["10.0.0", "a.b", "10.0.0.1:8000", "10.0.0.01"] {
            assert!(pod(odd).unwrap_err().starts_with(&format!("status.podIP: {odd:?}: ")), "{odd}");
        }
    }

    #[test]
    fn active_ports_have_two_names_and_odd_entries_are_left_out() {
        let [present, older] = ACTIVE_PORTS;
        let ports = |annotations: Value| with_annotations(&annotations).active_ports.map(Vec::from_iter);
        assert_eq!(ports(json!({})), None);
        assert_eq!(ports(json!({older: "8001,8000"})), Some(vec![8000, 8001]));
        assert_eq!(ports(json!({present: "8000", older: "8001"})), Some(vec![8000]));
        assert_eq!(ports(json!({present: " 8000 , 8001abc, x, 70000,,-1"})), Some(vec![8000]));
        assert_eq!(ports(json!({present: ""})), Some(vec![]));
    }

    #[test]
    fn a_limit_may_be_a_label_or_an_annotation() {
        let limit = |pod: Pod| pod.labels.get(Endpoint::MAX_CONCURRENCY).cloned();
        assert_eq!(limit(with_annotations(&json!({Endpoint::MAX_CONCURRENCY: "7"}))).as_deref(), Some("7"));
        let both = json!({
            "metadata": {
                "name": "a",
                "labels": {Endpoint::MAX_CONCURRENCY: "8"},
                "annotations": {Endpoint::MAX_CONCURRENCY: "7"},
            },
            "spec": {},
        });
        assert_eq!(limit(read(both)).as_deref(), Some("8"));
    }
}
