//! How much of a core it takes to stream: 128 streams of 100 tokens per second for ten seconds, read over TCP
//! from the real binary.
//!
//! ```text
//! cargo bench -p model-server-sim
//! ```

#![expect(clippy::print_stdout, reason = "the report is what a bench is for")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sluice_core::{Clock, SystemClock, Time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const STREAMS: u32 = 128;
const TOKENS_PER_SECOND: u32 = 100;
const SECONDS: u32 = 10;
const TOKENS: u32 = TOKENS_PER_SECOND * SECONDS;

/// `USER_HZ`, in which Linux counts the time of processes.
const TICKS_PER_SECOND: f64 = 100.0;

fn main() -> Result<()> {
    // Test runners that build all targets start this too, without the flag.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> Result<()> {
    let server = Server::start()?;
    let clock = SystemClock::start();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        streams.spawn(read_stream(server.address, clock));
    }
    let mut arrivals = Vec::new();
    while let Some(stream) = streams.join_next().await {
        arrivals.push(stream??);
    }
    let elapsed = clock.now().saturating_since(Time::ZERO).as_secs_f64();
    let cpu = server.cpu_seconds()?;

    let events: usize = arrivals.iter().map(Vec::len).sum();
    let mut gaps: Vec<Duration> =
        arrivals.iter().flat_map(|times| times.windows(2).map(|pair| pair[1].saturating_since(pair[0]))).collect();
    gaps.sort_unstable();
    let gap = |per_mille: usize| gaps[(gaps.len() - 1) * per_mille / 1_000];
    println!("{STREAMS} streams, {events} events in {elapsed:.2} s");
    println!(
        "server: {cpu:.2} s of CPU, {:.0}% of a core, {:.1} us per event",
        100.0 * cpu / elapsed,
        1e6 * cpu / events as f64
    );
    println!("between events: p50 {:?}, p99 {:?}, longest {:?}", gap(500), gap(990), gap(1_000));

    // The end mark counts as an event and comes with the last token.
    ensure!(events == (STREAMS * (TOKENS + 1)) as usize, "events are missing");
    ensure!(elapsed < f64::from(SECONDS) * 1.05, "the streams are slower than they should be");
    Ok(())
}

/// When each event of one stream came.
async fn read_stream(address: SocketAddr, clock: SystemClock) -> Result<Vec<Time>> {
    let mut stream = TcpStream::connect(address).await?;
    let body = format!(r#"{{"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": {TOKENS}}}"#);
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\ncontent-length: {}", body.len());
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await?;
    let mut arrivals = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    let mut last = 0;
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(arrivals);
        }
        let now = clock.now();
        for &byte in &buffer[..read] {
            // Only an event ends in two of them; the lines of HTTP end in two bytes each.
            if (last, byte) == (b'\n', b'\n') {
                arrivals.push(now);
            }
            last = byte;
        }
    }
}

/// The binary, killed when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Result<Self> {
        let milliseconds = 1_000 / TOKENS_PER_SECOND;
        let child = Command::new(env!("CARGO_BIN_EXE_model-server-sim"))
            .args(["--port", "0", "--max-num-seqs", &STREAMS.to_string()])
            .args(["--time-per-output-token", &milliseconds.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        // Killed from here on, whatever goes wrong.
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let mut line = String::new();
        BufReader::new(server.child.stdout.take().context("no standard output")?).read_line(&mut line)?;
        server.address = line.trim_end().strip_prefix("listening on ").context("no address")?.parse()?;
        Ok(server)
    }

    /// CPU time in user and system mode since the start.
    fn cpu_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name, in parentheses, may hold spaces; the times are the 12th and 13th fields after it.
        let (_, fields) = stat.rsplit_once(") ").context("no name")?;
        let ticks: Vec<f64> = fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        Ok(ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
