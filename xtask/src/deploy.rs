//! `cargo xtask deploy`: renders every kustomization in `deploy/` as `kubectl` does, and checks what comes out.
//!
//! Each one alone, and each that has pods together with all those that are made to go beside it. Kubernetes' own kinds
//! are compared with their schemas; that objects fit together (ports, labels, names, files) is checked here.

mod kubectl;
mod kustomization;
mod objects;
mod rules;
mod schemas;

#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod rules_tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use sluice_testkit::workspace;

use self::kubectl::Kubectl;
use self::objects::Rendering;
use crate::console::say;

const DIRECTORY: &str = "deploy";
/// The kinds of the project's own, as objects that define them.
const DEFINITIONS: &str = "deploy/crds";
/// Shows a kustomization that somebody would write.
const PAGE: &str = "docs/deploy.md";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Also print what each kustomization renders to
    #[arg(long)]
    show: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let root = workspace::root();
    if arguments.show {
        let kubectl = Kubectl::find()?;
        for directory in kustomization::directories(&root.join(DIRECTORY))? {
            say(format_args!("# {}\n{}", directory.display(), kubectl.render(&directory)?));
        }
    }
    say(format_args!("{}", check(&root)?));
    Ok(())
}

/// Renders and checks everything; returns how much that was.
pub(crate) fn check(root: &Path) -> Result<String> {
    let kubectl = Kubectl::find()?;
    let directories = kustomization::directories(&root.join(DIRECTORY))?;
    let mut findings = Vec::new();
    let mut renderings = Vec::new();
    for directory in &directories {
        let name = directory.strip_prefix(root).unwrap_or(directory).display().to_string();
        findings.extend(kustomization::findings(&name, directory)?);
        renderings.push(Rendering::parse(&name, &kubectl.render(directory)?)?);
    }
    ensure!(renderings.iter().any(Rendering::has_pods), "nothing in {DIRECTORY} renders to pods");
    let parts = || directories.iter().zip(&renderings);
    let mut installations = Vec::new();
    let mut used = BTreeSet::new();
    for (directory, alone) in parts().filter(|(_, alone)| alone.has_pods()) {
        let beside = parts().filter(|(_, addition)| !addition.has_pods() && goes_beside(addition, alone));
        let additions: Vec<&Path> = beside.map(|(directory, _)| &**directory).collect();
        used.extend(additions.iter().copied());
        let together = [&[&**directory], &*additions].concat();
        let name = format!("{} with what goes beside it", alone.name);
        installations.push(Rendering::parse(&name, &kubectl.render_together(&together)?)?);
    }
    let unused = parts().filter(|(directory, alone)| !alone.has_pods() && !used.contains(&***directory));
    findings.extend(unused.map(|(_, alone)| format!("{}: goes beside nothing", alone.name)));
    let page = fs::read_to_string(root.join(PAGE))?;
    let example = kustomization::example(&page).with_context(|| format!("{PAGE} shows no kustomization"))?;
    let example = kubectl.render_example(example, &root.join(DIRECTORY))?;
    installations.push(Rendering::parse(PAGE, &example)?);

    findings.extend(renderings.iter().filter(|alone| alone.has_pods()).flat_map(rules::needs_no_extension));
    findings.extend(installations.iter().flat_map(rules::findings));
    findings.extend(rules::unused_port_names(&installations));
    let definitions = definitions(&root.join(DEFINITIONS))?;
    findings.extend(schemas::findings(renderings.iter().chain(&installations).chain([&definitions]))?);
    for finding in &findings {
        say(format_args!("{finding}"));
    }
    if !findings.is_empty() {
        bail!("{} findings, see above", findings.len());
    }
    let objects: usize = renderings.iter().map(|rendering| rendering.objects.len()).sum();
    Ok(format!("{objects} objects of {} kustomizations, rendered by {kubectl}", renderings.len()))
}

/// Whether objects are made for an installation: pools only where a picker follows them.
fn goes_beside(addition: &Rendering, installation: &Rendering) -> bool {
    addition.of_kind("InferencePool").all(|pool| rules::follows_pool(installation, pool.name()))
}

fn definitions(directory: &Path) -> Result<Rendering> {
    let mut text = String::new();
    for entry in fs::read_dir(directory)? {
        text += &format!("\n---\n{}", fs::read_to_string(entry?.path())?);
    }
    Rendering::parse(DEFINITIONS, &text)
}
