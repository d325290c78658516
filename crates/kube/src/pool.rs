use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use serde::Deserialize;

use crate::collection::{Key, Named};

/// An InferencePool, as far as a picker needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub key: Key,
    /// The labels that make a pod a member.
    pub labels: BTreeMap<String, String>,
    pub ports: TargetPorts,
    /// It is on its way out, and is not a pool any more.
    pub terminating: bool,
}

impl Named for Pool {
    fn key(&self) -> &Key {
        &self.key
    }
}

/// The ports of each pod, one endpoint each. The place of a port is the rank of its endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetPorts(Vec<u16>);

impl TargetPorts {
    /// A port that is named again has the rank of its first place.
    pub fn new(ports: impl IntoIterator<Item = u16>) -> Self {
        let mut seen = BTreeSet::new();
        Self(ports.into_iter().filter(|port| seen.insert(*port)).collect())
    }

    pub const fn count(&self) -> usize {
        self.0.len()
    }

    /// Each port with its rank.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (usize, u16)> {
        self.0.iter().copied().enumerate()
    }
}

/// The `spec` of an InferencePool, `inference.networking.k8s.io/v1`. The kind belongs to the Gateway API: it is read
/// here, never written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InferencePoolSpec {
    selector: LabelSelector,
    target_ports: Vec<Port>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LabelSelector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Port {
    number: NonZeroU16,
}

impl Pool {
    pub(crate) fn new(key: Key, terminating: bool, spec: InferencePoolSpec) -> Self {
        let InferencePoolSpec { selector, target_ports } = spec;
        let ports = TargetPorts::new(target_ports.into_iter().map(|port| port.number.get()));
        Self { key, labels: selector.match_labels, ports, terminating }
    }

    /// In the form the API server takes. It has no need of quotes: the server refuses labels with a comma.
    pub(crate) fn selector(&self) -> String {
        let terms: Vec<String> = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        terms.join(",")
    }
}
