//! What the external processor costs without a proxy around it: the real `epp` as a process of its own, and clients
//! that speak to it as Envoy does.
//!
//! ```text
//! cargo bench -p sluice-extproc --bench streams -- [--runs N] [PART OF A NAME]
//! ```
//!
//! Processor time is read from the kernel for the picker alone. Requests per second are those of both programs
//! together, on the same machine.

mod cpu;
mod messages;
mod proxy;
mod workload;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::json;
use sluice_core::{Clock, SystemClock};
use sluice_testkit::{EndpointsFile, Picker, PickerConfig, flow_config, unused_address, workspace};

use crate::proxy::Connections;
use crate::workload::{Measured, WORKLOADS, Workload};

#[derive(Debug, Parser)]
struct Arguments {
    /// Times that everything is measured; the medians are shown
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only workloads with this in their name
    filter: Option<String>,
    /// Given by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[expect(clippy::print_stdout, reason = "the result is for whoever ran the command")]
fn main() -> Result<()> {
    let Arguments { runs, filter, bench: _ } = Arguments::parse();
    ensure!(runs > 0, "no runs: nothing to measure");
    let chosen = |workload: &&Workload| filter.as_ref().is_none_or(|filter| workload.name.contains(filter.as_str()));
    let workloads: Vec<_> = WORKLOADS.iter().filter(chosen).collect();
    ensure!(!workloads.is_empty(), "no workload has that in its name");

    let [program] = workspace::build_programs(["epp"])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("| what | picker, CPU | lowest to highest | per second |\n|---|---|---|---|");
    for workload in workloads {
        let mut measured = (0..runs).map(|_| runtime.block_on(measure(&program, workload))).collect::<Result<Vec<_>>>();
        let measured = measured.as_mut().map_err(|error| anyhow::anyhow!("{}: {error:#}", workload.name))?;
        measured.sort_unstable_by(|a, b| a.micros_each.total_cmp(&b.micros_each));
        let (lowest, highest) = (measured[0].micros_each, measured[runs - 1].micros_each);
        let Measured { micros_each, per_second } = measured[runs / 2];
        let (name, each) = (workload.name, workload.each());
        println!("| {name} | {micros_each:.1} µs per {each} | {lowest:.1}–{highest:.1} | {per_second:.0} |");
    }
    Ok(())
}

/// Runs a workload against a picker of its own.
async fn measure(program: &Path, workload: &Workload) -> Result<Measured> {
    let dir = tempfile::tempdir()?;
    let servers = [unused_address()?, unused_address()?];
    let endpoints = EndpointsFile::create(dir.path(), &servers)?;
    let config = if workload.flow_control {
        let mut config = flow_config(1_000);
        config["flowControl"]["maxRequests"] = json!("100000");
        PickerConfig::custom(&config, endpoints.path())?
    } else {
        PickerConfig::standalone(endpoints.path())?
    };
    let file = dir.path().join("picker.json");
    config.write(&file)?;
    let picker = Picker::start(program, &file, &["--secure-serving=false"]).await?;
    let connections = Connections::open(picker.ext_proc(), workload.connections).await?;

    let clock = SystemClock::start();
    workload.warm_up(&connections).await.context("warming up")?;
    let (cpu, began) = (cpu::time_of(picker.process().id())?, clock.now());
    let count = workload.run(&connections).await?;
    let (cpu, took) = (cpu::time_of(picker.process().id())?.saturating_sub(cpu), clock.now().saturating_since(began));
    let count = f64::from(count);
    Ok(Measured { micros_each: cpu.as_secs_f64() * 1e6 / count, per_second: count / took.as_secs_f64() })
}
