//! What a namespace of many pods costs: the real `epp` as a process of its own, and an API server here.
//!
//! ```text
//! cargo bench -p sluice-testkit --bench kubernetes -- [--pods N] [--pool N] [--runs N]
//! ```
//!
//! The time is from the start of the process until it knows the pool and all of its pods; memory is read from the kernel
//! for the picker alone, a moment later. Nothing is scraped, and no request comes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::json;
use sluice_core::{Clock as _, SystemClock, Time};
use sluice_testkit::apiserver::{pod, pool};
use sluice_testkit::{ApiServer, Picker, Resource, workspace};

#[derive(Debug, Parser)]
struct Arguments {
    /// Pods in the namespace, those of the pool among them
    #[arg(long, default_value_t = 5_000)]
    pods: u32,
    /// Pods of the pool
    #[arg(long, default_value_t = 100)]
    pool: u32,
    /// How many pickers are started, one after the other; the slowest and the largest are shown
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Given by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

const POOL: &str = "chat";
const LIMIT: Duration = Duration::from_secs(120);
/// What is allocated for the first lists is given back, or not, by then.
const AFTERWARDS: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let Arguments { pods, pool, runs, bench: _ } = Arguments::parse();
    ensure!(pods >= pool && pool > 0 && runs > 0, "nothing to measure");
    let [program] = workspace::build_programs(["epp"])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(compare(&program, pods, pool, runs))
}

#[expect(clippy::print_stdout, reason = "the result is for whoever ran the command")]
async fn compare(program: &Path, pods: u32, pool: u32, runs: u32) -> Result<()> {
    println!("| pods in the namespace | of the pool | until all is known | memory, at most |");
    println!("|---|---|---|---|");
    for (pods, pool) in [(1, 1), (pool, pool), (pods, pool), (pods, pods)] {
        let server = populated(pods, pool)?;
        let (mut time, mut memory) = (Duration::ZERO, 0);
        for _ in 0..runs {
            let measured = measure(program, &server, pool).await?;
            (time, memory) = (time.max(measured.0), memory.max(measured.1));
        }
        println!("| {pods} | {pool} | {:.2} s | {} MiB |", time.as_secs_f64(), memory / 1_024);
    }
    Ok(())
}

/// A server with so many pods, each as large as a model server's is.
fn populated(pods: u32, own: u32) -> Result<ApiServer> {
    let server = ApiServer::start()?;
    for number in 0..pods {
        let app = if number < own { "vllm" } else { "other" };
        let [_, _, high, low] = number.to_be_bytes();
        let mut pod = pod(&format!("{app}-{number}"), &format!("10.1.{high}.{low}"), &json!({"app": app}));
        pod["metadata"]["annotations"] = json!({"text": "x".repeat(4_000)});
        server.apply(Resource::POD, pod);
    }
    server.apply(Resource::POOL, pool(POOL, &json!({"app": "vllm"}), &[8_000]));
    Ok(server)
}

/// How long it took, and kilobytes of memory.
async fn measure(program: &Path, server: &ApiServer, own: u32) -> Result<(Duration, u64)> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("picker.json");
    let config = json!({
        "plugins": [{"type": "active-request-scorer"}],
        "schedulingProfiles": [{"name": "main", "plugins": [{"pluginRef": "active-request-scorer"}]}],
    });
    std::fs::write(&file, config.to_string())?;
    let clock = SystemClock::start();
    let picker = Picker::start_in_cluster(program, &file, &server.kubeconfig(), &["--pool-name", POOL]).await?;
    let known = picker.process().find_in_output(LIMIT, |line| {
        line.contains("the pool is known").then(|| {
            [format!("\"endpoints\":{own},"), format!("endpoints={own} ")].iter().any(|text| line.contains(text))
        })
    });
    let is_whole = known.await?;
    let took = clock.now().saturating_since(Time::ZERO);
    ensure!(is_whole, "the pool was known before all of its pods were");
    tokio::time::sleep(AFTERWARDS).await;
    let memory = picker.process().peak_resident_kilobytes().context("the memory of the picker")?;
    Ok((took, memory))
}
