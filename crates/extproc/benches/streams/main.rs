//! What the external processor costs without a proxy around it: the real `epp` as a process of its own, and clients
//! that speak to it as Envoy does.
//!
//! ```text
//! cargo bench -p sluice-extproc --bench streams -- [--runs N] [--picker PROGRAM] [PART OF A NAME]
//! ```
//!
//! Processor time is read from the kernel for the picker alone. Requests per second are those of both programs
//! together, on the same machine. What a message costs is for the most part what the machine takes to wake a process
//! and to read and write a socket, so each workload is also put, in turn, on an [echo] that does nothing else.

mod echo;
mod messages;
mod proxy;
mod workload;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::json;
use sluice_core::{Clock, SystemClock};
use sluice_testkit::{EndpointsFile, Picker, PickerConfig, Process, flow_config, unused_address, workspace};

use crate::proxy::Connections;
use crate::workload::{Measured, WORKLOADS, Workload};

#[derive(Debug, Parser)]
struct Arguments {
    /// Times that everything is measured; the medians are shown
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// A picker that was built before, to compare; the one of this tree is built otherwise
    #[arg(long)]
    picker: Option<PathBuf>,
    /// Be the echo that the picker is compared with
    #[arg(long, hide = true, exclusive = true)]
    echo: bool,
    /// Only workloads with this in their name
    filter: Option<String>,
    /// Given by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let Arguments { runs, picker, filter, echo, bench: _ } = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if echo {
        return runtime.block_on(echo::serve());
    }
    ensure!(runs > 0, "no runs: nothing to measure");
    let chosen = |workload: &&Workload| filter.as_ref().is_none_or(|filter| workload.name.contains(filter.as_str()));
    let workloads: Vec<_> = WORKLOADS.iter().filter(chosen).collect();
    ensure!(!workloads.is_empty(), "no workload has that in its name");
    let program = match picker {
        Some(program) => program,
        None => workspace::build_programs(["epp"]).map(|[program]| program)?,
    };
    runtime.block_on(compare(&program, &workloads, runs))
}

/// Prints the table, a line as soon as it is known.
#[expect(clippy::print_stdout, reason = "the result is for whoever ran the command")]
async fn compare(program: &Path, workloads: &[&Workload], runs: usize) -> Result<()> {
    println!("| what | picker, CPU | lowest to highest | echo, CPU | picker / echo | per second |");
    println!("|---|---|---|---|---|---|");
    for workload in workloads {
        let (mut picker, mut echo, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut per_second = Vec::new();
        for _ in 0..runs {
            let of_picker = measure_picker(program, workload).await.context(workload.name)?;
            let of_echo = measure_echo(workload).await.context(workload.name)?;
            ratios.push(of_picker.micros_each / of_echo.micros_each);
            per_second.push(of_picker.per_second);
            picker.push(of_picker.micros_each);
            echo.push(of_echo.micros_each);
        }
        let (name, each) = (workload.name, workload.each());
        let [(lowest, micros, highest), (_, echo, _), (least, ratio, most), (_, rate, _)] =
            [picker, echo, ratios, per_second].map(spread);
        println!(
            "| {name} | {micros:.1} µs per {each} | {lowest:.1}–{highest:.1} | {echo:.1} µs \
             | {ratio:.2} ({least:.2}–{most:.2}) | {rate:.0} |"
        );
    }
    Ok(())
}

/// The least, the median and the greatest. Not of an empty list.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

/// Runs a workload against a picker of its own.
async fn measure_picker(program: &Path, workload: &Workload) -> Result<Measured> {
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
    measure(picker.process(), picker.ext_proc(), workload).await
}

/// Runs a workload against the echo.
async fn measure_echo(workload: &Workload) -> Result<Measured> {
    let (process, address) = echo::start().await?;
    measure(&process, address, workload).await
}

async fn measure(process: &Process, address: SocketAddr, workload: &Workload) -> Result<Measured> {
    let connections = Connections::open(address, workload.connections).await?;
    let clock = SystemClock::start();
    workload.warm_up(&connections).await.context("warming up")?;
    let (cpu, began) = (process.cpu_time()?, clock.now());
    let count = workload.run(&connections).await?;
    let (cpu, took) = (process.cpu_time()?.saturating_sub(cpu), clock.now().saturating_since(began));
    let count = f64::from(count);
    Ok(Measured { micros_each: cpu.as_secs_f64() * 1e6 / count, per_second: count / took.as_secs_f64() })
}
