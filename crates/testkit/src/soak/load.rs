use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{Protocol, SseEvents};

const CLIENTS: u64 = 24;
/// Names the endpoints that the request may use.
pub(super) const SUBSET: &str = "x-test-subset";

/// Clients that send one random request after the other until they are stopped.
#[derive(Debug)]
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    clients: JoinSet<BTreeMap<Ending, u64>>,
}

/// How a request ended, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// Served, or refused by the model server for a reason that lies in the request.
    Complete,
    /// Served by an endpoint of those that a gateway would allow.
    CompleteHinted,
    ModelError,
    /// The client left.
    Left,
    /// It did not get in within the time it allowed.
    Expired,
    /// The proxy's 502 or 503 for a connection that failed: its server had been killed.
    Unreachable,
    /// None of the above.
    Unexpected(String),
}

impl Ending {
    /// Whether the load alone explains it, or a server that was killed meanwhile.
    pub(super) fn is_explained(&self, killed: bool) -> bool {
        match self {
            Self::Unreachable => killed,
            Self::Unexpected(what) => killed && what.starts_with("broken off"),
            Self::Complete | Self::CompleteHinted | Self::ModelError | Self::Left | Self::Expired => true,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Complete => "complete",
            Self::CompleteHinted => "complete where it was hinted to",
            Self::Unreachable => "5xx because its server was gone",
            Self::ModelError => "refused by the model",
            Self::Left => "left",
            Self::Expired => "expired",
            Self::Unexpected(what) => what,
        })
    }
}

impl Load {
    /// `servers` are the addresses that hints may name.
    pub(super) fn start(url: &str, servers: &[SocketAddr], seed: u64) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let protocol = if number % 2 == 0 { Protocol::Http1 } else { Protocol::Http2 };
            let (client, url, stop) = (protocol.client()?, url.to_owned(), Arc::clone(&stop));
            let servers = servers.to_vec();
            let mut random = StdRng::seed_from_u64(seed.wrapping_add(number));
            clients.spawn(async move {
                let mut endings = BTreeMap::new();
                while !stop.load(Ordering::Relaxed) {
                    *endings.entry(one(&client, &url, &servers, &mut random).await).or_default() += 1;
                }
                endings
            });
        }
        Ok(Self { stop, clients })
    }

    /// Lets every request come to its end.
    pub(super) async fn stop(self) -> BTreeMap<Ending, u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for endings in self.clients.join_all().await {
            for (ending, count) in endings {
                *all.entry(ending).or_default() += count;
            }
        }
        all
    }
}

async fn one(client: &Client, url: &str, servers: &[SocketAddr], random: &mut StdRng) -> Ending {
    let objective = ["interactive", "standard", "batch", "nobody"][random.random_range(0..4)];
    let tenant = ["a", "b", "c"][random.random_range(0..3)];
    let request = client.post(url).header("content-type", "application/json");
    let request = request.header("x-llm-d-inference-objective", objective);
    let request = request.header("x-llm-d-inference-fairness-id", tenant);
    let tokens = random.random_range(1..30);
    let stream = random.random_bool(0.6);
    match random.random_range(0..12) {
        0..4 => answer(request, &chat(tokens, stream)).await,
        4..7 => {
            let patience = Duration::from_millis(random.random_range(0..200));
            let body = chat(tokens, stream);
            tokio::time::timeout(patience, answer(request, &body)).await.unwrap_or(Ending::Left)
        }
        7..9 => {
            let ttl = format!("{}ms", random.random_range(0..50));
            answer(request.header("x-llm-d-inference-ttl", ttl), &chat(tokens, stream)).await
        }
        9..11 => {
            // Two of them, as one may be out of the pool.
            let skipped = random.random_range(0..servers.len());
            let hint: Vec<_> = servers.iter().enumerate().filter(|(place, _)| *place != skipped).collect();
            let hint: Vec<_> = hint.iter().map(|(_, server)| server.to_string()).collect();
            match answer(request.header(SUBSET, hint.join(",")), &chat(tokens, stream)).await {
                Ending::Complete => Ending::CompleteHinted,
                other => other,
            }
        }
        // More than the model's length.
        _ => answer(request, &chat(10_000_000, stream)).await,
    }
}

async fn answer(request: RequestBuilder, body: &Value) -> Ending {
    let response = match request.body(body.to_string()).send().await {
        Ok(response) => response,
        Err(error) => return Ending::Unexpected(format!("no answer: {error}")),
    };
    let status = response.status().as_u16();
    match read(response).await {
        Err(error) => Ending::Unexpected(format!("broken off: {error}")),
        Ok(_) if status == 200 => Ending::Complete,
        Ok(text) if status == 400 && text.contains("maximum context length") => Ending::ModelError,
        Ok(text) if status == 429 && (text.contains("rejected-ttl-expired") || text.contains("rejected-saturated")) => {
            Ending::Expired
        }
        Ok(text) if [502, 503].contains(&status) && text.contains("upstream connect error") => Ending::Unreachable,
        Ok(text) => Ending::Unexpected(format!("{status}: {text}")),
    }
}

/// The whole answer; a stream without its end is an error.
async fn read(response: Response) -> Result<String> {
    let streamed = response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream");
    if !streamed {
        return Ok(response.text().await?);
    }
    let events = SseEvents::of(response).collect().await?;
    anyhow::ensure!(events.last().is_some_and(|event| event == "[DONE]"), "a stream without its end");
    Ok(String::new())
}

pub(super) fn chat(tokens: u32, stream: bool) -> Value {
    json!({
        "model": super::rig::MODEL,
        "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": tokens,
        "ignore_eos": true,
        "stream": stream,
    })
}
