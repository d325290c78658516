//! What the manifests in `deploy/` let the picker do, which is all that an [`ApiServer`](super::ApiServer) lets anybody
//! do.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::workspace;

/// Whom the picker's pods run as.
const SERVICE_ACCOUNT: &str = "sluice-epp";

/// Every right that is bound to the picker, in its namespace or in the cluster, in the words of
/// [`ApiServer::requests`](super::ApiServer::requests).
pub fn granted() -> Result<BTreeSet<String>> {
    let objects = objects(&workspace::root().join("deploy"))?;
    let bindings = objects.iter().filter(|object| is_binding_of_picker(object));
    let mut granted = BTreeSet::new();
    for binding in bindings {
        let role = &binding["roleRef"];
        let is_meant = |object: &&Value| object["kind"] == role["kind"] && object["metadata"]["name"] == role["name"];
        let role = objects.iter().find(is_meant).with_context(|| format!("there is no {role}"))?;
        let scope = if binding["kind"] == "ClusterRoleBinding" { " cluster-wide" } else { "" };
        for rule in role["rules"].as_array().into_iter().flatten() {
            let [groups, resources, verbs] = ["apiGroups", "resources", "verbs"].map(|key| texts(&rule[key]));
            for (verb, group) in verbs.iter().flat_map(|verb| groups.iter().map(move |group| (verb, group))) {
                granted.extend(resources.iter().map(|resource| format!("{verb} {group}/{resource}{scope}")));
            }
        }
    }
    ensure!(!granted.is_empty(), "the manifests bind nothing to {SERVICE_ACCOUNT}");
    Ok(granted)
}

fn is_binding_of_picker(object: &Value) -> bool {
    let subjects = object["subjects"].as_array();
    subjects.into_iter().flatten().any(|subject| subject["name"] == SERVICE_ACCOUNT)
}

/// The documents of all files of YAML below a directory that have to do with rights.
fn objects(directory: &Path) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            objects.extend(self::objects(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path)?;
            let is_right = |document: &&str| document.lines().any(|line| line.starts_with("apiVersion: rbac."));
            let documents = text.split("\n---\n").filter(is_right);
            for document in documents {
                let object = serde_saphyr::from_str(document);
                objects.push(object.with_context(|| path.display().to_string())?);
            }
        }
    }
    Ok(objects)
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_in_the_namespace_and_in_the_cluster_are_told_apart_and_those_of_others_left_out() {
        let granted = granted().unwrap();
        let has = |right: &str| granted.contains(right);
        assert!(has("watch /pods") && has("list inference.networking.k8s.io/inferencepools"), "{granted:?}");
        assert!(has("create authentication.k8s.io/tokenreviews cluster-wide"), "{granted:?}");
        assert!(!granted.iter().any(|right| right.contains("secrets") || right.starts_with("get /")), "{granted:?}");
    }
}
