//! Where kustomizations lie, and what may stand in them: what the oldest `kubectl` renders that is still installed by
//! distributions, 1.20 with kustomize 2.0.3. A newer one takes all of it, and would not notice more.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

pub(super) const FILE: &str = "kustomization.yaml";

/// What kustomize 2.0.3 knows and later ones have not taken back.
const FIELDS: [&str; 14] = [
    "apiVersion",
    "bases",
    "commonAnnotations",
    "commonLabels",
    "configMapGenerator",
    "generatorOptions",
    "images",
    "kind",
    "namePrefix",
    "nameSuffix",
    "namespace",
    "patchesJson6902",
    "patchesStrategicMerge",
    "resources",
];

/// The directories under `root` that hold a kustomization, in order.
pub(super) fn directories(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            } else if entry.file_name() == FILE {
                found.push(directory.clone());
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// What an old `kubectl` would not understand.
pub(super) fn findings(name: &str, directory: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(directory.join(FILE))?;
    let kustomization: Value = serde_saphyr::from_str(&text).with_context(|| format!("reading {name}/{FILE}"))?;
    let fields = kustomization.as_object().into_iter().flatten();
    let unknown = fields.map(|(field, _)| field).filter(|field| !FIELDS.contains(&field.as_str()));
    let mut findings: Vec<String> =
        unknown.map(|field| format!("{name}: kubectl 1.20 does not know `{field}` in a kustomization")).collect();
    let resources = kustomization["resources"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let directories = resources.filter(|resource| !directory.join(resource).is_file());
    findings
        .extend(directories.map(|resource| format!("{name}: kubectl 1.20 takes no directory as resource: {resource}")));
    Ok(findings)
}

/// The first kustomization that stands on a page in a block of YAML.
pub(super) fn example(page: &str) -> Option<&str> {
    let blocks = page.split("\n```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.into_iter().find(|block| block.contains("\nkind: Kustomization\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_old_kubectl_does_not_know_is_found() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("base")).unwrap();
        let text = "kind: Kustomization\ncomponents: [c]\nresources: [base]\nbases: [base]\n";
        fs::write(directory.path().join(FILE), text).unwrap();
        let findings = findings("here", directory.path()).unwrap();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("`components`") && findings[1].ends_with(": base"), "{findings:?}");
        assert_eq!(directories(directory.path()).unwrap(), [directory.path()]);
    }

    #[test]
    fn the_kustomization_on_a_page_is_found_among_other_blocks() {
        let page = "\n```console\nkind: Kustomization\n```\n```yaml\na: 1\n```\n\n\
                    ```yaml\nx: 1\nkind: Kustomization\ny: 2\n```\n";
        assert_eq!(example(page), Some("x: 1\nkind: Kustomization\ny: 2"));
        assert_eq!(example("kind: Kustomization"), None);
    }
}
