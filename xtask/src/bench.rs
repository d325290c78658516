//! `cargo xtask bench`: what the product's parts cost, as written down in `docs/performance.md`.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use sluice_testkit::workspace;

use crate::console::say;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What to measure; everything if it is left out
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The picker as a process, asked as Envoy does: processor time per request and per chunk of a response
    ExtProc,
    /// The admission engine: time per operation
    Flow,
}

/// Builds for speed and measures. Quiet machines give quiet figures.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    for (part, package, bench) in [(Part::ExtProc, "sluice-extproc", "streams"), (Part::Flow, "sluice-flow", "engine")]
    {
        if arguments.part.is_none_or(|chosen| chosen == part) {
            say(format_args!("\n==== {package}"));
            measure(package, bench)?;
        }
    }
    Ok(())
}

fn measure(package: &str, bench: &str) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["bench", "--locked", "--quiet", "--package", package, "--bench", bench])
        .current_dir(workspace::root())
        .status()
        .context("cargo does not start")?;
    if !status.success() {
        bail!("the benchmark {bench} of {package} ended with {status}");
    }
    Ok(())
}
