//! Rendered objects, as trees, and the parts of them that the rules look at.

use std::fmt;

use anyhow::{Context, Result};
use serde_json::Value;

/// What one kustomization renders to.
#[derive(Clone, Debug)]
pub(super) struct Rendering {
    /// For messages: where the kustomization lies.
    pub(super) name: String,
    pub(super) objects: Vec<Object>,
}

impl Rendering {
    pub(super) fn parse(name: &str, yaml: &str) -> Result<Self> {
        let documents = yaml.split("\n---\n").filter(|document| !document.trim().is_empty());
        let objects = documents.map(|document| serde_saphyr::from_str(document).map(Object));
        let objects = objects.collect::<Result<_, _>>().with_context(|| format!("reading what {name} renders to"))?;
        Ok(Self { name: name.to_owned(), objects })
    }

    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Object> {
        self.objects.iter().filter(move |object| object.kind() == kind)
    }

    pub(super) fn find(&self, kind: &str, name: &str) -> Option<&Object> {
        self.of_kind(kind).find(|object| object.name() == name)
    }

    pub(super) fn has_pods(&self) -> bool {
        self.of_kind("Deployment").next().is_some()
    }
}

/// One object. A field that is not there reads as null.
#[derive(Clone, Debug)]
pub(super) struct Object(pub(super) Value);

impl Object {
    pub(super) fn kind(&self) -> &str {
        text(&self.0["kind"])
    }

    pub(super) fn name(&self) -> &str {
        text(&self.0["metadata"]["name"])
    }

    /// The API group; empty for the first one, which has no name.
    pub(super) fn group(&self) -> &str {
        text(&self.0["apiVersion"]).split_once('/').map_or("", |(group, _)| group)
    }

    pub(super) fn spec(&self) -> &Value {
        &self.0["spec"]
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

/// The containers of a pod, sidecars first.
pub(super) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    items(&pod["initContainers"]).chain(items(&pod["containers"]))
}

/// The entries of a list; none where there is no list.
pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Empty where there is no text.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether every label that is asked for is there, and at least one is asked for.
pub(super) fn selects(wanted: &Value, labels: &Value) -> bool {
    let Some(wanted) = wanted.as_object() else { return false };
    !wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}
