//! Rules about the shape of the workspace that no compiler checks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::pages;

/// Crates whose logic is called without a runtime, and what they must therefore not list.
const PURE: [&str; 6] =
    ["sluice-config", "sluice-core", "sluice-flow", "sluice-payload", "sluice-plugins", "sluice-schedule"];
const IMPURE: [&str; 4] = ["kube", "reqwest", "tokio", "tracing-subscriber"];

/// Crates that serve development; nothing in the product depends on them.
const DEVELOPMENT: [&str; 4] = ["model-server-sim", "sluice-lab", "sluice-testkit", "xtask"];

/// A longer source file is to be split.
const MAX_LINES: usize = 600;

/// Paths that exist on one machine only. In two parts, so that this file does not break its own rule.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/tmp/ta", "rget"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Files and directories of the workspace that hold text written here.
const WRITTEN_HERE: [&str; 18] = [
    ".cargo",
    ".ci",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "Dockerfile",
    "README.md",
    "benches",
    "clippy.toml",
    "config",
    "crates",
    "deny.toml",
    "deploy",
    "docs",
    "proto",
    "src",
    "tests",
    "xtask",
];

/// What is wrong with the workspace at `root`, one line per finding.
pub(crate) fn findings(root: &Path) -> Result<Vec<String>> {
    let packages = packages(root)?;
    let mut findings = dependency_findings(&packages);
    for package in &packages {
        let manifest = fs::read_to_string(&package.manifest)?;
        if !inherits_lints(&manifest) {
            findings.push(format!("{} does not inherit the workspace's lints", package.name));
        }
    }
    let mut pages = BTreeMap::new();
    for path in written_files(root)? {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(root).unwrap_or(&path);
        findings.extend(text_findings(&name.display().to_string(), &text));
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.insert(name.to_path_buf(), text);
        }
    }
    findings.extend(pages::findings(&pages, |path| root.join(path).exists()));
    Ok(findings)
}

struct Package {
    name: String,
    manifest: PathBuf,
    /// Names of the dependencies that are not for tests only.
    dependencies: Vec<String>,
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("starting cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("the output of cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    packages.iter().map(|package| Package::read(package).context("a package in cargo metadata")).collect()
}

impl Package {
    fn read(package: &Value) -> Option<Self> {
        let dependencies = package["dependencies"].as_array()?.iter();
        let dependencies = dependencies.filter(|dependency| dependency["kind"] != "dev");
        Some(Self {
            name: package["name"].as_str()?.to_owned(),
            manifest: package["manifest_path"].as_str()?.into(),
            dependencies: dependencies.filter_map(|dependency| Some(dependency["name"].as_str()?.to_owned())).collect(),
        })
    }
}

fn dependency_findings(packages: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    for Package { name, dependencies, .. } in packages {
        let pure = PURE.contains(&name.as_str());
        let product = !DEVELOPMENT.contains(&name.as_str());
        for dependency in dependencies {
            if pure && IMPURE.contains(&dependency.as_str()) {
                findings.push(format!("{name} is a pure crate and must not depend on {dependency}"));
            }
            if product && DEVELOPMENT.contains(&dependency.as_str()) {
                findings.push(format!("{name} is part of the product and must not depend on {dependency}"));
            }
        }
    }
    findings
}

/// Whether a manifest has `workspace = true` under `[lints]`, without which a crate would escape `unsafe_code = "forbid"`.
fn inherits_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim);
    lines.any(|line| line == "[lints]")
        && lines.take_while(|line| !line.starts_with('[')).any(|line| line == "workspace = true")
}

fn text_findings(name: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if name.ends_with(".rs") && lines > MAX_LINES {
        findings.push(format!("{name} has {lines} lines; split what is longer than {MAX_LINES}"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(path) = MACHINE_PATHS.iter().find(|path| line.contains(**path)) {
            findings.push(format!("{name}:{number} mentions {path}, a path of one machine"));
        }
    }
    findings
}

fn written_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pending: Vec<PathBuf> =
        WRITTEN_HERE.iter().map(|name| root.join(name)).filter(|path| path.exists()).collect();
    let mut files = BTreeMap::new();
    while let Some(path) = pending.pop() {
        if !path.is_dir() {
            files.insert(path, ());
            continue;
        }
        for entry in fs::read_dir(&path).with_context(|| format!("reading {}", path.display()))? {
            let entry = entry?;
            if entry.file_name() != "target" {
                pending.push(entry.path());
            }
        }
    }
    Ok(files.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies.iter().map(|&name| name.to_owned()).collect();
        Package { name: name.to_owned(), manifest: PathBuf::new(), dependencies }
    }

    #[test]
    fn a_pure_crate_with_a_runtime_is_found() {
        let packages = [package("sluice-flow", &["smallvec", "tokio"]), package("sluice-extproc", &["tokio"])];
        assert_eq!(dependency_findings(&packages), ["sluice-flow is a pure crate and must not depend on tokio"]);
    }

    #[test]
    fn a_product_crate_on_top_of_the_test_kit_is_found() {
        let packages = [package("epp", &["sluice-testkit"]), package("xtask", &["sluice-testkit"])];
        let expected = "epp is part of the product and must not depend on sluice-testkit";
        assert_eq!(dependency_findings(&packages), [expected]);
    }

    #[test]
    fn dependencies_for_tests_do_not_count() {
        let read = Package::read(&serde_json::json!({
            "name": "sluice-flow", "manifest_path": "Cargo.toml",
            "dependencies": [{"name": "tokio", "kind": "dev"}, {"name": "slotmap", "kind": null}],
        }));
        assert_eq!(read.unwrap().dependencies, ["slotmap"]);
    }

    #[test]
    fn lints_must_be_inherited_in_their_own_section() {
        assert!(inherits_lints("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"));
        assert!(!inherits_lints("[lints]\n\n[dependencies]\nworkspace = true\n"));
        assert!(!inherits_lints("[package]\nworkspace = true\n"));
    }

    #[test]
    fn long_files_and_paths_of_a_machine_are_found() {
        let long = "//\n".repeat(MAX_LINES + 1);
        assert_eq!(text_findings("a.rs", &long).len(), 1);
        assert!(text_findings("a.md", &long).is_empty());
        assert!(text_findings("a.rs", &"//\n".repeat(MAX_LINES)).is_empty());
        let text = format!("fine\nsee {}x\n", MACHINE_PATHS[0]);
        assert!(text_findings("a.md", &text)[0].starts_with("a.md:2 "));
    }

    #[test]
    fn this_workspace_keeps_the_rules() {
        let findings = findings(&sluice_testkit::workspace::root()).unwrap();
        assert!(findings.is_empty(), "{findings:#?}");
    }
}
