//! `cargo xtask crds`: writes the definitions of the kinds of `llm-d.ai` into `deploy/crds/`, from the types that the
//! picker reads them with.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sluice_testkit::workspace;

use crate::console::say;

const DIRECTORY: &str = "deploy/crds";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Writes nothing, and fails if a file is not what the types make
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let directory = workspace::root().join(DIRECTORY);
    let stale = stale(&directory)?;
    if arguments.check && !stale.is_empty() {
        let names: Vec<&str> = stale.iter().map(|(name, _)| name.as_str()).collect();
        bail!("not what the types make: {}; run cargo xtask crds", names.join(", "));
    }
    fs::create_dir_all(&directory).with_context(|| format!("creating {DIRECTORY}"))?;
    for (name, text) in &stale {
        fs::write(directory.join(name), text).with_context(|| format!("writing {name}"))?;
        say(format_args!("{DIRECTORY}/{name} written"));
    }
    if stale.is_empty() {
        say(format_args!("{DIRECTORY} is what the types make"));
    }
    Ok(())
}

/// Files that are not what the types make, with what they should be.
fn stale(directory: &Path) -> Result<Vec<(String, String)>> {
    let mut stale = Vec::new();
    for crd in sluice_kube::crds() {
        let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        let yaml = serde_saphyr::to_string(&crd).with_context(|| format!("making {name}"))?;
        let text = format!("# Made by `cargo xtask crds` from crates/kube/src/crd.rs.\n{yaml}");
        if fs::read_to_string(directory.join(&name)).ok().as_ref() != Some(&text) {
            stale.push((name, text));
        }
    }
    Ok(stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_what_the_types_make() {
        let stale = stale(&workspace::root().join(DIRECTORY)).unwrap();
        let names: Vec<_> = stale.iter().map(|(name, _)| name).collect();
        assert!(names.is_empty(), "run cargo xtask crds: {names:?}");
    }
}
