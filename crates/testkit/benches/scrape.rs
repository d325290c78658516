//! What it costs to scrape a pool: the real `epp` as a process of its own, and servers of a page as long as a real
//! vLLM's, here.
//!
//! ```text
//! cargo bench -p sluice-testkit --bench scrape -- [--endpoints N] [--seconds N]
//! ```
//!
//! Processor time and memory are read from the kernel for the picker alone, in which nothing else happens. The same pool
//! is then measured with a configuration in which no plugin reads what is scraped.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use model_server_sim::page::{EngineGauges, Page};
use serde_json::json;
use sluice_core::{Clock as _, SystemClock};
use sluice_testkit::{EndpointsFile, Picker, PickerConfig, workspace};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 100)]
    endpoints: usize,
    /// How long each configuration is measured; 600 shows whether memory grows
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Given by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// Connections, first scrapes and the first allocations are over by then.
const WARM_UP: Duration = Duration::from_secs(3);
/// How often memory is looked at while it is measured.
const LOOKS: u32 = 20;

fn main() -> Result<()> {
    let Arguments { endpoints, seconds, bench: _ } = Arguments::parse();
    ensure!(endpoints > 0 && seconds > 0, "nothing to measure");
    let [program] = workspace::build_programs(["epp"])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(compare(&program, endpoints, Duration::from_secs(seconds)))
}

#[expect(clippy::print_stdout, reason = "the result is for whoever ran the command")]
async fn compare(program: &Path, endpoints: usize, time: Duration) -> Result<()> {
    let pool = Pool::start(endpoints).await?;
    println!("{endpoints} endpoints, a page of {} bytes, every 50 ms, {} s each\n", pool.page_bytes, time.as_secs());
    println!("| configuration | scrapes per second | picker, cores | memory at first, at most, at last |");
    println!("|---|---|---|---|");
    for (name, scorer) in [("`queue-scorer`", "queue-scorer"), ("`active-request-scorer`", "active-request-scorer")] {
        let Measured { per_second, cores, memory } = measure(program, scorer, &pool, time).await.context(name)?;
        let [first, most, last] = memory.map(|kilobytes| kilobytes / 1_024);
        println!("| {name} | {per_second:.0} | {cores:.3} | {first}, {most}, {last} MiB |");
    }
    Ok(())
}

struct Measured {
    per_second: f64,
    cores: f64,
    /// Kilobytes at first, at most and at last.
    memory: [u64; 3],
}

async fn measure(program: &Path, scorer: &str, pool: &Pool, time: Duration) -> Result<Measured> {
    let dir = tempfile::tempdir()?;
    let endpoints = EndpointsFile::create(dir.path(), &pool.addresses)?;
    let config = json!({
        "plugins": [{"type": scorer}, {"name": "endpoints", "type": "file-discovery", "parameters": {"path": "-"}}],
        "schedulingProfiles": [{"name": "main", "plugins": [{"pluginRef": scorer}]}],
        "dataLayer": {"discovery": {"pluginRef": "endpoints"}},
    });
    let file = dir.path().join("picker.json");
    PickerConfig::custom(&config, endpoints.path())?.write(&file)?;
    let picker = Picker::start(program, &file, &["--secure-serving=false"]).await?;
    tokio::time::sleep(WARM_UP).await;

    let process = picker.process();
    let clock = SystemClock::start();
    let (cpu, served) = (process.cpu_time()?, pool.served());
    let first = process.resident_kilobytes()?;
    let mut most = first;
    for _ in 0..LOOKS {
        tokio::time::sleep(time / LOOKS).await;
        most = most.max(process.resident_kilobytes()?);
    }
    let (cpu, served) = (process.cpu_time()?.saturating_sub(cpu), pool.served() - served);
    let took = clock.now().saturating_since(sluice_core::Time::ZERO).as_secs_f64();
    let last = process.resident_kilobytes()?;
    let per_second = f64::from(u32::try_from(served)?) / took;
    Ok(Measured { per_second, cores: cpu.as_secs_f64() / took, memory: [first, most, last] })
}

/// Servers that answer every request with the same page.
struct Pool {
    addresses: Vec<SocketAddr>,
    page_bytes: usize,
    served: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

impl Pool {
    async fn start(endpoints: usize) -> Result<Self> {
        let page = Page::new([EngineGauges { running: 37, waiting: 4, kv_cache_usage: 0.62 }]).to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n", page.len());
        let answer: Arc<[u8]> = (head + &page).into_bytes().into();
        let served = Arc::new(AtomicU64::new(0));
        let (mut addresses, mut serving) = (Vec::new(), JoinSet::new());
        for _ in 0..endpoints {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addresses.push(listener.local_addr()?);
            let (answer, served) = (Arc::clone(&answer), Arc::clone(&served));
            serving.spawn(async move {
                // One client, which may come again.
                while let Ok((client, _)) = listener.accept().await {
                    serve(client, &answer, &served).await;
                }
            });
        }
        Ok(Self { addresses, page_bytes: page.len(), served, _serving: serving })
    }

    fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

/// Answers until the client is gone. A request comes in one piece: it is short, and no other follows before the answer.
async fn serve(mut client: TcpStream, answer: &[u8], served: &AtomicU64) {
    let mut request = [0; 4_096];
    while client.read(&mut request).await.is_ok_and(|length| length > 0) {
        if client.write_all(answer).await.is_err() {
            return;
        }
        served.fetch_add(1, Ordering::Relaxed);
    }
}
