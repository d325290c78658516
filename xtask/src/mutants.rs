//! `cargo xtask mutants`: does a test notice when one operator of the product is changed?

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use sluice_testkit::workspace;

use crate::console::say;
use crate::tools::Tool;

const CARGO_MUTANTS: Tool = Tool { name: "cargo-mutants", version: "27.1.0" };

/// The exit code of a run that some mutants survived.
const SURVIVORS: i32 = 2;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What to change
    target: Target,
    /// Passed on to cargo-mutants, for example `--file crates/flow/src/heap.rs` or `--in-diff FILE`
    #[arg(last = true)]
    more: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    /// The admission engine: hours
    Flow,
}

/// Changes one thing after the other and runs the tests each time. Those that no test notices are listed under
/// `target/mutants.out`, to be compared with docs/decisions/012-mutation-testing-of-the-engine.md.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { target: Target::Flow, more } = arguments;
    let status = Command::new(CARGO_MUTANTS.program()?)
        .args(["mutants", "--package", "sluice-flow", "--timeout", "120", "--output"])
        .arg(workspace::target_dir()?)
        .args(more)
        .args(["--", "--lib", "--test", "engine"])
        .current_dir(workspace::root())
        .status()
        .context("cargo-mutants does not start")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(SURVIVORS) => {
            say(format_args!("compare the survivors with docs/decisions/012-mutation-testing-of-the-engine.md"));
            Ok(())
        }
        _ => bail!("cargo-mutants ended with {status}"),
    }
}
