//! `cargo xtask templates`: makes the configurations of Envoy in `deploy/` from one source.
//!
//! Each of them stands alone and runs as it stands, yet they share most lines. A line `#? full-duplex ha` of the source
//! begins lines that only the files of these names have; the next such line ends them, and `#?` alone begins what is in
//! every file again.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use sluice_testkit::workspace;

use crate::console::say;

const SOURCE: &str = include_str!("templates/envoy.yaml");

/// The names that the source uses, and the files that they stand for.
const VARIANTS: [(&str, &str); 5] = [
    ("full-duplex", "deploy/envoy/full-duplex.yaml"),
    ("response-bypass", "deploy/envoy/response-bypass.yaml"),
    ("per-request", "deploy/envoy/per-request.yaml"),
    ("ha", "deploy/envoy/ha.yaml"),
    ("sidecar", "deploy/overlays/standalone/envoy.yaml"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Writes nothing, and fails if a file is not what the source makes
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let root = workspace::root();
    let stale = stale(&root)?;
    if arguments.check && !stale.is_empty() {
        let paths: Vec<&str> = stale.iter().map(|(path, _)| *path).collect();
        bail!("not what the source makes: {}; run cargo xtask templates", paths.join(", "));
    }
    for (path, text) in &stale {
        fs::write(root.join(path), text).with_context(|| format!("writing {path}"))?;
        say(format_args!("{path} written"));
    }
    if stale.is_empty() {
        say(format_args!("{} configurations are what the source makes", VARIANTS.len()));
    }
    Ok(())
}

/// Files that are not what the source makes, with what they should be.
fn stale(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let mut stale = Vec::new();
    for (variant, path) in VARIANTS {
        let text = make(SOURCE, variant)?;
        if fs::read_to_string(root.join(path)).ok().as_ref() != Some(&text) {
            stale.push((path, text));
        }
    }
    Ok(stale)
}

fn make(source: &str, variant: &str) -> Result<String> {
    let mut text = String::new();
    let mut included = true;
    for line in source.lines() {
        if let Some(names) = line.strip_prefix("#?") {
            let mut names = names.split_whitespace().peekable();
            included = names.peek().is_none();
            for name in names {
                ensure!(
                    VARIANTS.iter().any(|(variant, _)| *variant == name),
                    "the source names a file {name}, which is not made"
                );
                included |= name == variant;
            }
        } else if included {
            text.push_str(line);
            text.push('\n');
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_what_the_source_makes() {
        let stale = stale(&workspace::root()).unwrap();
        let paths: Vec<_> = stale.iter().map(|(path, _)| path).collect();
        assert!(paths.is_empty(), "run cargo xtask templates: {paths:?}");
    }

    #[test]
    fn lines_are_for_the_files_that_are_named_above_them() {
        let source = "all\n#? ha full-duplex\nboth\n#? ha\none\n#?\nall again\n";
        assert_eq!(make(source, "ha").unwrap(), "all\nboth\none\nall again\n");
        assert_eq!(make(source, "full-duplex").unwrap(), "all\nboth\nall again\n");
        assert_eq!(make(source, "per-request").unwrap(), "all\nall again\n");
        assert!(make("#? nonsense\n", "ha").is_err());
    }
}
