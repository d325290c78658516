//! `cargo xtask fuzz`: random operations until something breaks.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use sluice_testkit::workspace;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What to run
    target: Target,
    /// Operations to run: of `session` each is up to three streams at the same time, of `exposition` a page
    #[arg(long, default_value_t = 1_000_000)]
    ops: u64,
    /// Where the random numbers begin; a failing run is repeated by its seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    /// Damaged configurations
    Config,
    /// The admission engine beside its oracle
    Flow,
    /// The reader of metrics pages beside a plain one, and on any bytes
    Exposition,
    /// The picker's side of streams on which anything may come
    Session,
}

/// Builds the fuzzer for speed and runs it. A failing run has printed a minimal list of operations.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { target, ops, seed } = arguments;
    match target {
        Target::Config => config(*ops, *seed),
        Target::Flow => flow(*ops, *seed),
        Target::Exposition => exposition(*ops, *seed),
        Target::Session => session(*ops, *seed),
    }
}

/// Runs the admission engine beside its oracle.
pub(crate) fn flow(ops: u64, seed: u64) -> Result<()> {
    run_cargo(
        Command::new(env!("CARGO"))
            .args(["run", "--release", "--quiet", "--package", "sluice-flow", "--example", "fuzz", "--"])
            .args(["--ops", &ops.to_string(), "--seed", &seed.to_string()]),
    )
}

/// Damages the configurations that tests have. A failing run has printed the least damage that fails, and keeps it beside
/// the test.
fn config(ops: u64, seed: u64) -> Result<()> {
    run_cargo(
        Command::new(env!("CARGO"))
            .args(["test", "--release", "--quiet", "--package", "sluice-plugins", "--test", "builtin", "--", "damaged"])
            .envs([("PROPTEST_CASES", ops.to_string()), ("PROPTEST_RNG_SEED", seed.to_string())]),
    )
}

/// Sends arbitrary messages to a picker, in arbitrary order. A failing run has printed the least messages that fail, and
/// keeps them beside the test.
pub(crate) fn session(ops: u64, seed: u64) -> Result<()> {
    run_cargo(
        Command::new(env!("CARGO"))
            .args(["test", "--quiet", "--package", "sluice-extproc", "--lib", "--", "service::tests::hostile"])
            .envs([("PROPTEST_CASES", ops.to_string()), ("PROPTEST_RNG_SEED", seed.to_string())]),
    )
}

/// Reads random pages. A failing run has printed the shortest page that fails.
fn exposition(ops: u64, seed: u64) -> Result<()> {
    run_cargo(
        Command::new(env!("CARGO"))
            .args([
                "test",
                "--release",
                "--quiet",
                "--package",
                "sluice-data",
                "--test",
                "exposition",
                "--",
                "agreement",
            ])
            .envs([("PROPTEST_CASES", ops.to_string()), ("PROPTEST_RNG_SEED", seed.to_string())]),
    )
}

fn run_cargo(command: &mut Command) -> Result<()> {
    let status = command.current_dir(workspace::root()).status().context("cargo does not start")?;
    if !status.success() {
        bail!("the fuzzer ended with {status}");
    }
    Ok(())
}
