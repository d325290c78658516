use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::RngExt;
use rand::rngs::StdRng;
use reqwest::Client;
use serde_json::Value;
use tokio::task::JoinSet;

use super::load::{SUBSET, chat};
use crate::{
    EndpointsFile, EnvoyConfig, PickerConfig, Protocol, Simulator, SseEvents, Stack, Template, eventually, flow_config,
};

pub(super) const MODEL: &str = "soak-model";
const SERVERS: usize = 3;
const SLOTS: u32 = 4;
/// More would leave the load too little room.
const MOST_HELD: usize = 6;
/// How long the last ends may take to be noticed by all parts.
const SETTLING: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(20);

/// The pool, and the streams that are held open across quiet moments.
#[derive(Debug)]
pub(super) struct Rig {
    stack: Stack,
    simulator: PathBuf,
    servers: Vec<Server>,
    held: Vec<Held>,
    url: String,
    client: Client,
}

#[derive(Debug)]
struct Server {
    simulator: Simulator,
    /// How often a server was started in this place.
    process: u32,
    in_pool: bool,
}

/// A stream that is being received.
#[derive(Debug)]
struct Held {
    /// Lives as long as this; says in the end whether the stream was complete.
    reader: JoinSet<bool>,
    server: usize,
    process: u32,
}

impl Rig {
    pub(super) async fn start(picker: &Path, simulator: &Path) -> Result<Self> {
        let mut servers = Vec::new();
        for place in 0..SERVERS {
            servers.push(Server { simulator: start(simulator, place, 0).await?, process: 0, in_pool: true });
        }
        let addresses: Vec<_> = servers.iter().map(|server| server.simulator.address()).collect();
        let mut envoy = EnvoyConfig::from_template(Template::FullDuplex)?;
        let subset = (SUBSET, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
        envoy.metadata_from_headers(&[subset])?;
        let config = |endpoints: &Path| PickerConfig::custom(&flow_config(SLOTS), endpoints);
        let stack = Stack::start_configured(picker, &[], config, envoy, &addresses).await?;
        let url = stack.envoy.url("/v1/chat/completions");
        let simulator = simulator.to_owned();
        Ok(Self { stack, simulator, servers, held: Vec::new(), url, client: Protocol::Http2.client()? })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn servers(&self) -> usize {
        self.servers.len()
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.simulator.address()).collect()
    }

    /// Opens so many streams, if there is room, and waits for the first token of each. Not while the pool changes.
    pub(super) async fn hold(&mut self, streams: usize) -> Result<()> {
        for _ in 0..streams.min(MOST_HELD.saturating_sub(self.held.len())) {
            let request = self.client.post(&self.url).header("content-type", "application/json");
            let request = request.header("x-llm-d-inference-objective", "interactive");
            let response = request.body(chat(30_000, true).to_string()).send().await?.error_for_status()?;
            let name = response.headers().get("x-served-by").context("no x-served-by")?.to_str()?;
            let place = name.split_once('-').context("a strange name")?;
            let (server, process) = (place.0.parse::<usize>()?, place.1.parse()?);
            self.servers.get(server).context("a strange place")?;
            let mut events = SseEvents::of(response);
            events.next().await?.context("a stream without events")?;
            // What nobody reads would fill the window of the connection, and stop every other stream on it.
            let mut reader = JoinSet::new();
            reader.spawn(read_to_end(events));
            self.held.push(Held { reader, server, process });
        }
        Ok(())
    }

    /// Hangs up on about half of what is held.
    pub(super) fn let_go(&mut self, random: &mut StdRng) {
        self.held.retain(|_| random.random_bool(0.5));
    }

    pub(super) fn let_all_go(&mut self) {
        self.held.clear();
    }

    /// Takes an endpoint out of the pool. What runs there goes on.
    pub(super) fn remove(&mut self, server: usize) -> Result<()> {
        self.servers[server].in_pool = false;
        self.publish()
    }

    /// Puts an endpoint that was [removed](Self::remove) back, under the same name and address, and waits until the
    /// picker has taken it over.
    pub(super) async fn add_again(&mut self, server: usize) -> Result<()> {
        self.wait_for_pool(SERVERS - 1).await?;
        self.servers[server].in_pool = true;
        self.publish()?;
        self.wait_for_pool(SERVERS).await
    }

    /// Kills a server, and everything that runs there, and puts another one in its place.
    pub(super) async fn replace(&mut self, server: usize) -> Result<()> {
        let place = &mut self.servers[server];
        place.simulator.process_mut().kill()?;
        self.held.retain(|held| held.server != server);
        place.process += 1;
        place.simulator = start(&self.simulator, server, place.process).await?;
        // For a moment without it, so that one can wait for each step.
        self.remove(server)?;
        self.add_again(server).await
    }

    fn publish(&self) -> Result<()> {
        let listed = self.servers.iter().enumerate().filter(|(_, server)| server.in_pool);
        let entry = |(place, server): (usize, &Server)| EndpointsFile::entry(&name(place), server.simulator.address());
        self.stack.endpoints.replace_entries(&listed.map(entry).collect::<Vec<_>>())
    }

    async fn wait_for_pool(&self, endpoints: usize) -> Result<()> {
        eventually(LIMIT, "the picker has taken over the endpoints", async || {
            let page = self.stack.picker.flow().await?;
            Ok((entries(&page).filter(|entry| entry["inPool"] == true).count() == endpoints).then_some(()))
        })
        .await
    }

    /// Waits until the picker and the engines agree with each other and with what is held. Nothing else may be on its
    /// way.
    pub(super) async fn compare(&mut self) -> Result<()> {
        let mut difference = None;
        let agreed = eventually(SETTLING, "the ledger is what the engines say", async || {
            self.forget_complete()?;
            difference = self.difference().await.err();
            Ok(difference.is_none().then_some(()))
        })
        .await;
        match difference {
            Some(difference) => agreed.context(difference),
            None => agreed,
        }
    }

    /// Long as they are, some streams come to their end.
    fn forget_complete(&mut self) -> Result<()> {
        let mut broken = 0;
        self.held.retain_mut(|held| match held.reader.try_join_next() {
            None => true,
            Some(complete) => {
                broken += usize::from(!complete.unwrap_or(false));
                false
            }
        });
        ensure!(broken == 0, "{broken} streams that were held broke off");
        Ok(())
    }

    async fn difference(&self) -> Result<()> {
        let page = self.stack.picker.flow().await?;
        let picker = self.stack.picker.metrics().await?;
        for (place, server) in self.servers.iter().enumerate() {
            // What runs on an endpoint counts on it, in the pool or out of it, and after it has come back.
            let held: Vec<_> = self.held.iter().filter(|held| held.server == place).collect();
            let own = || entries(&page).filter(|entry| is_named(entry, place));
            let is_present = own().any(|entry| entry["inPool"] == true);
            ensure!(is_present == server.in_pool, "{} in the pool: {is_present}: {page}", name(place));
            let counted: u64 = own().map(in_flight).sum();
            ensure!(counted == held.len() as u64, "{} should have {} in flight: {page}", name(place), held.len());

            // A prompt is worked through with the first token, which every one of them has sent.
            let tokens: u64 = own().map(|entry| entry["inFlight"]["tokens"].as_u64().unwrap_or(u64::MAX)).sum();
            ensure!(tokens == 0, "{} has {tokens} tokens in flight: {page}", name(place));
            for (series, expected) in [("requests", held.len() as i64), ("tokens", 0)] {
                let count = picker.count(&format!("llm_d_epp_inflight_{series}"), &[("endpoint_name", &name(place))]);
                ensure!(count.unwrap_or(0) == expected, "inflight_{series} of {}: {count:?}", name(place));
            }

            let metrics = server.simulator.metrics().await?;
            for (series, expected) in [("running", held.len() as i64), ("waiting", 0)] {
                let count = metrics.count(&format!("vllm:num_requests_{series}"), &[]);
                ensure!(count == Some(expected), "{count:?} {series} on {} instead of {expected}", name(place));
            }
            ensure!(held.iter().all(|held| held.process == server.process), "a stream outlived its server");
        }
        let counts = [&page["waiting"]["requests"], &page["leases"]["granted"], &page["leases"]["revoked"]];
        ensure!(counts.iter().all(|count| **count == 0), "somebody still waits: {page}");
        ensure!(page["leases"]["started"] == self.held.len(), "{} leases expected: {page}", self.held.len());
        Ok(())
    }
}

/// Whether the stream was complete.
async fn read_to_end(mut events: SseEvents) -> bool {
    let mut complete = false;
    while let Ok(Some(event)) = events.next().await {
        complete = event == "[DONE]";
    }
    complete
}

fn name(place: usize) -> String {
    format!("server-{place}")
}

fn entries(page: &Value) -> impl Iterator<Item = &Value> {
    page["endpoints"].as_array().into_iter().flatten()
}

/// The picker writes `namespace/name`.
fn is_named(entry: &Value, place: usize) -> bool {
    entry["name"].as_str().is_some_and(|full| full.rsplit('/').next() == Some(&name(place)))
}

fn in_flight(entry: &Value) -> u64 {
    entry["inFlight"]["requests"].as_u64().unwrap_or(u64::MAX)
}

async fn start(program: &Path, place: usize, process: u32) -> Result<Simulator> {
    let name = format!("{place}-{process}");
    let arguments = ["--model", MODEL, "--name", &name, "--time-per-output-token", "5", "--max-num-seqs", "16"];
    Simulator::start(program, &arguments).await
}
