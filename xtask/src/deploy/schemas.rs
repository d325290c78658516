//! Whether objects are what Kubernetes' own schemas say.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::objects::Rendering;
use super::rules::EXTENSION_GROUPS;
use crate::tools::PythonTool;

const VALIDATOR: PythonTool = PythonTool { package: "kubernetes-validate", version: "1.37.0" };

/// The oldest Kubernetes that the manifests are for: the first one with sidecar containers that need no feature gate.
const KUBERNETES: &str = "1.29";

/// Compares each object with its schema, and lists where they differ. Kinds of extensions have no schema here.
pub(super) fn findings<'a>(renderings: impl IntoIterator<Item = &'a Rendering>) -> Result<Vec<String>> {
    let place = tempfile::tempdir()?;
    let mut command = Command::new(VALIDATOR.program()?);
    command.args(["--kubernetes-version", KUBERNETES, "--strict", "--quiet"]).current_dir(place.path());
    for (index, rendering) in renderings.into_iter().enumerate() {
        let own = rendering.objects.iter().filter(|object| !EXTENSION_GROUPS.contains(&object.group()));
        for object in own {
            let file = format!("{index}-{}-{}.json", object.kind(), object.name());
            fs::write(place.path().join(&file), object.0.to_string())?;
            command.arg(file);
        }
    }
    let output = command.stdin(Stdio::null()).output().context("starting kubernetes-validate")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let findings: Vec<String> = said.lines().map(str::to_owned).collect();
    if !output.status.success() && findings.is_empty() {
        bail!("kubernetes-validate: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(findings)
}
