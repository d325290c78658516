//! The program that renders kustomizations.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::kustomization;

/// A `kubectl` in whatever version, from 1.20 on.
#[derive(Debug)]
pub(super) struct Kubectl {
    program: PathBuf,
    version: String,
}

impl Kubectl {
    /// `KUBECTL`, else the first one on the PATH.
    pub(super) fn find() -> Result<Self> {
        let program = std::env::var_os("KUBECTL").map_or_else(|| PathBuf::from("kubectl"), PathBuf::from);
        let mut command = Command::new(&program);
        command.args(["version", "--client", "--output=json"]);
        let advice = "install kubectl (Debian: apt-get install kubernetes-client), or set KUBECTL to one";
        let said = output(&mut command).context(advice)?;
        let said: Value = serde_json::from_str(&said).context("what kubectl says of its version")?;
        let version = said["clientVersion"]["gitVersion"].as_str().context("kubectl does not tell its version")?;
        Ok(Self { program, version: version.to_owned() })
    }

    /// What the kustomization in `directory` renders to: documents of YAML.
    pub(super) fn render(&self, directory: &Path) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.arg("kustomize").arg(directory);
        output(&mut command)
    }

    /// What a kustomization renders to that has those in `directories` as its bases.
    pub(super) fn render_together(&self, directories: &[&Path]) -> Result<String> {
        self.render_elsewhere(|up| {
            let bases = directories.iter().map(|directory| Ok(below(up, directory)?.display().to_string()));
            Ok(json!({ "bases": bases.collect::<Result<Vec<_>>>()? }).to_string())
        })
    }

    /// What somebody's kustomization renders to who has `deploy` where the text says `../sluice/deploy`.
    pub(super) fn render_example(&self, text: &str, deploy: &Path) -> Result<String> {
        self.render_elsewhere(|up| Ok(text.replace("../sluice/deploy", &below(up, deploy)?.display().to_string())))
    }

    /// Renders a kustomization in a directory of its own, beside an `epp.yaml`. Bases have to be relative paths: the text is
    /// made from the path that leads up to the root of the file system.
    fn render_elsewhere(&self, text: impl FnOnce(&Path) -> Result<String>) -> Result<String> {
        let directory = tempfile::tempdir()?;
        let place = directory.path().canonicalize()?;
        let mut up = PathBuf::new();
        up.extend(place.components().filter(|part| matches!(part, Component::Normal(_))).map(|_| ".."));
        fs::write(place.join(kustomization::FILE), text(&up)?)?;
        fs::write(place.join("epp.yaml"), "kind: EndpointPickerConfig\n")?;
        self.render(&place)
    }
}

fn below(up: &Path, directory: &Path) -> Result<PathBuf> {
    Ok(up.join(directory.canonicalize()?.strip_prefix("/")?))
}

impl fmt::Display for Kubectl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kubectl {}", self.version)
    }
}

/// The standard output of a command that succeeds.
fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("what kubectl prints is not UTF-8")
}
