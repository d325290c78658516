//! `cargo xtask bench`: what the product's parts cost, as written down in `docs/performance.md`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use sluice_testkit::workspace;

use crate::console::say;
use crate::tools::Tool;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What to measure; everything if it is left out
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The reader of metrics pages: time per page, then as `instructions`
    Exposition,
    /// The picker as a process, asked as Envoy does: processor time per request and per chunk of a response
    ExtProc,
    /// The picker as a process in a namespace of 5,000 pods: time until it knows its pool, and memory
    Kubernetes,
    /// The picker as a process that scrapes 100 endpoints, or need not: processor time and memory
    Scrape,
    /// The admission engine: time per operation, then as `instructions`
    Flow,
    /// The admission engine and the reader of metrics pages: instructions per operation and page, which must not be 3 % more
    /// than is written in the benchmarks
    Instructions,
}

const GUNGRAUN_RUNNER: Tool = Tool { name: "gungraun-runner", version: "0.20.0" };

/// Builds for speed and measures. Quiet machines give quiet figures; instructions are the same on any.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let chosen = |parts: &[Part]| arguments.part.is_none_or(|part| parts.contains(&part));
    if chosen(&[Part::ExtProc]) {
        measure("sluice-extproc", "streams", &mut command())?;
    }
    if chosen(&[Part::Scrape]) {
        measure("sluice-testkit", "scrape", &mut command())?;
    }
    if chosen(&[Part::Kubernetes]) {
        measure("sluice-testkit", "kubernetes", &mut command())?;
    }
    if chosen(&[Part::Flow]) {
        measure("sluice-flow", "engine", &mut command())?;
    }
    if chosen(&[Part::Exposition]) {
        measure("sluice-data", "exposition", &mut command())?;
    }
    let instructions = [("sluice-flow", Part::Flow), ("sluice-data", Part::Exposition)];
    let counted = || instructions.iter().filter(|(_, part)| chosen(&[*part, Part::Instructions]));
    if counted().next().is_some() {
        let valgrind = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
        if !valgrind.is_ok_and(|status| status.success()) {
            bail!("instructions are counted by valgrind, which is not in the PATH: the package of that name has it");
        }
        let runner = GUNGRAUN_RUNNER.program()?;
        for (package, _) in counted() {
            measure(package, "instructions", command().env("GUNGRAUN_RUNNER", &runner))?;
        }
    }
    Ok(())
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace::root());
    command
}

fn measure(package: &str, bench: &str, command: &mut Command) -> Result<()> {
    say(format_args!("\n==== {package}, {bench}"));
    command.args(["bench", "--locked", "--quiet", "--package", package, "--bench", bench]);
    let status = command.status().context("cargo does not start")?;
    if !status.success() {
        bail!("the benchmark {bench} of {package} ended with {status}");
    }
    Ok(())
}
