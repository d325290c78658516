use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Client;
use tokio::task::JoinSet;

use crate::counting::{CountingUpstream, HOLD_HEADER, STREAM_HEADER};
use crate::{Protocol, Stack};

/// How long a server may need to notice that a client is gone: one step of an engine.
const STEP: Duration = Duration::from_millis(100);

/// Many clients, each with one request after the other, that a pool cannot serve all at once. Three in ten leave before
/// their answer is complete.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    pub clients: usize,
    /// How many all clients send together.
    pub requests: u64,
    pub seed: u64,
}

/// What became of a [`Burst`].
#[derive(Clone, Debug, Default)]
pub struct BurstReport {
    pub complete: u64,
    /// The client left.
    pub left: u64,
    /// Every status that came.
    pub statuses: BTreeMap<u16, u64>,
    /// Answers that broke off.
    pub broken: u64,
    pub servers: Vec<BurstServer>,
}

/// A model server's side of it.
#[derive(Clone, Copy, Debug)]
pub struct BurstServer {
    pub requests: usize,
    /// The most requests that were open at once.
    pub peak: usize,
    /// The same without requests whose client was gone, though the server had not noticed yet.
    pub peak_without_aborted: usize,
    /// Requests whose client was gone when the server noticed.
    pub aborted: usize,
}

impl Burst {
    /// Sends everything and waits for the answers.
    pub async fn run(&self, stack: &Stack, servers: &[CountingUpstream]) -> Result<BurstReport> {
        let Self { clients, requests, seed } = *self;
        let url = stack.envoy.url("/v1/chat/completions");
        let http = [Protocol::Http1.client()?, Protocol::Http2.client()?];
        let next = Arc::new(AtomicU64::new(0));
        let mut loops = JoinSet::new();
        for _ in 0..clients {
            let (next, http, url) = (Arc::clone(&next), http.clone(), url.clone());
            loops.spawn(async move {
                let mut report = BurstReport::default();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= requests {
                        return report;
                    }
                    let mut random = StdRng::seed_from_u64(seed.wrapping_mul(1_000_000_007).wrapping_add(number));
                    let client = &http[random.random_range(0..http.len())];
                    report.count(one(client, &url, &mut random).await);
                }
            });
        }
        let mut report = BurstReport::default();
        for part in loops.join_all().await {
            report.add(part);
        }
        report.servers = servers.iter().map(BurstServer::of).collect();
        Ok(report)
    }
}

#[derive(Clone, Copy)]
enum Answer {
    Complete(u16),
    Left,
    Broken,
}

/// A chat of random length, which its client may leave: at some time, or once its answer has begun.
async fn one(client: &Client, url: &str, random: &mut StdRng) -> Answer {
    let stays = random.random_bool(0.7);
    let streamed = random.random_bool(0.5);
    let leaves_while_served = streamed && !stays && random.random_bool(0.5);
    // Who leaves while being served must not be served first.
    let hold = if leaves_while_served { 1_000 } else { random.random_range(0..15_u32) };
    let mut request = client.post(url).header("content-type", "application/json");
    request = request.header(HOLD_HEADER, hold.to_string());
    if streamed {
        request = request.header(STREAM_HEADER, "1");
    }
    let request = request.body(r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#);
    let answer = async {
        let Ok(response) = request.send().await else { return Answer::Broken };
        let status = response.status().as_u16();
        if leaves_while_served && status == 200 {
            return Answer::Left;
        }
        if response.bytes().await.is_ok() { Answer::Complete(status) } else { Answer::Broken }
    };
    if stays || leaves_while_served {
        return answer.await;
    }
    let patience = Duration::from_millis(random.random_range(0..120));
    tokio::time::timeout(patience, answer).await.unwrap_or(Answer::Left)
}

impl BurstReport {
    fn count(&mut self, answer: Answer) {
        match answer {
            Answer::Complete(status) => {
                self.complete += 1;
                *self.statuses.entry(status).or_default() += 1;
            }
            Answer::Left => self.left += 1,
            Answer::Broken => self.broken += 1,
        }
    }

    fn add(&mut self, part: Self) {
        let Self { complete, left, statuses, broken, servers: _ } = part;
        self.complete += complete;
        self.left += left;
        self.broken += broken;
        for (status, count) in statuses {
            *self.statuses.entry(status).or_default() += count;
        }
    }
}

impl BurstServer {
    fn of(server: &CountingUpstream) -> Self {
        let visits = server.visits();
        let aborted = visits.iter().filter(|visit| visit.ended.is_some_and(|end| end.aborted)).count();
        let (peak, peak_without_aborted) = (server.peak(), server.peak_without_aborted(STEP));
        Self { requests: visits.len(), peak, peak_without_aborted, aborted }
    }
}

impl fmt::Display for BurstReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { complete, left, statuses, broken, servers } = self;
        write!(f, "{complete} complete {statuses:?}, {left} left by their clients, {broken} broken")?;
        for (index, server) in servers.iter().enumerate() {
            let BurstServer { requests, peak, peak_without_aborted, aborted } = server;
            write!(f, "; server-{index}: {requests} requests, at most {peak_without_aborted} at once, ")?;
            write!(f, "{peak} with those of the {aborted} aborted ones that it had yet to drop ({STEP:?} at most)")?;
        }
        Ok(())
    }
}
