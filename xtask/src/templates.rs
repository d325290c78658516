//! `cargo xtask templates`: makes the configurations in `deploy/envoy/` from one source.
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
const DIRECTORY: &str = "deploy/envoy";
const VARIANTS: [&str; 4] = ["full-duplex", "response-bypass", "per-request", "ha"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Writes nothing, and fails if a file is not what the source makes
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let directory = workspace::root().join(DIRECTORY);
    let stale = stale(&directory)?;
    if arguments.check && !stale.is_empty() {
        let names: Vec<&str> = stale.iter().map(|(name, _)| name.as_str()).collect();
        bail!("not what the source makes: {}; run cargo xtask templates", names.join(", "));
    }
    for (name, text) in &stale {
        fs::write(directory.join(name), text).with_context(|| format!("writing {name}"))?;
        say(format_args!("{DIRECTORY}/{name} written"));
    }
    Ok(())
}

/// Files that are not what the source makes, with what they should be.
fn stale(directory: &Path) -> Result<Vec<(String, String)>> {
    let mut stale = Vec::new();
    for variant in VARIANTS {
        let name = format!("{variant}.yaml");
        let text = make(SOURCE, variant)?;
        if fs::read_to_string(directory.join(&name)).ok().as_ref() != Some(&text) {
            stale.push((name, text));
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
                ensure!(VARIANTS.contains(&name), "the source names a file {name}, which is not made");
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
        let stale = stale(&workspace::root().join(DIRECTORY)).unwrap();
        let names: Vec<_> = stale.iter().map(|(name, _)| name).collect();
        assert!(names.is_empty(), "run cargo xtask templates: {names:?}");
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
