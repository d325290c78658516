//! Batch work that is evicted again and again, at whatever moment of its requests, and the question whether anything is
//! lost, done twice or left behind.

mod clients;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock};
use tokio::task::JoinSet;

use self::clients::{Batch, Leaving, Urgent};
use crate::idle::{invariant_violations, wait_until_idle};
use crate::{EnvoyConfig, PickerConfig, Protocol, Simulator, Stack, Template, eventually, flow_config};

const MODEL: &str = "soak-model";
/// Of the simulated model.
const SEED: u64 = 0;
const SERVERS: usize = 2;
const SLOTS: u32 = 8;
const ORDERING: &str = "slo-deadline-ordering-policy";
/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
/// Longer than anything that is asked for stays away on a busy machine.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Clients of all kinds on a pool that batch work always fills.
///
/// ```text
/// batch clients   ──┐  texts of random lengths, taken up again where they were cut
/// leaving clients ──┼──> pool: every urgent request takes a slot from one of these two
/// urgent clients  ──┘  short, at random moments
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EvictionSoak<'a> {
    /// The programs `epp` and `model-server-sim`.
    pub picker: &'a Path,
    pub simulator: &'a Path,
    pub template: Template,
    /// `sluice.eviction.midStream`.
    pub mid_stream: &'a str,
    /// It goes on until it has seen as much of each: how often chance brings what depends on the machine.
    pub at_least: EvictionSoakReport,
    /// Makes the clients' random choices repeatable.
    pub seed: u64,
}

/// What an [`EvictionSoak`] went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionSoakReport {
    /// Requests that the picker chose to evict.
    pub evictions: u64,
    /// Items that ended, each with the right text.
    pub items: u64,
    pub attempts: u64,
    /// Evictions of which the batch clients were told.
    pub told: u64,
    /// Their streams that ended without a word.
    pub cuts: u64,
    /// Tokens that were read a second time.
    pub wasted_tokens: u64,
    /// Urgent requests that were served.
    pub urgent: u64,
    /// Requests that their clients left.
    pub left: u64,
}

impl EvictionSoak<'_> {
    /// Fails if an item was given up or got another text than the model writes, if an urgent request was not served, if
    /// an evicted one did not end in time, if the picker has found that it contradicts itself, and if anything is still
    /// taken when all is over.
    pub async fn run(&self) -> Result<EvictionSoakReport> {
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            let slots = SLOTS.to_string();
            let arguments = ["--model", MODEL, "--max-num-seqs", &slots, "--time-per-output-token", "8"];
            servers.push(Simulator::start(self.simulator, &arguments).await?);
        }
        let addresses: Vec<_> = servers.iter().map(Simulator::address).collect();
        let config = |endpoints: &Path| PickerConfig::custom(&self.config(), endpoints);
        let envoy = EnvoyConfig::from_template(self.template)?;
        let stack = Stack::start_configured(self.picker, &[], config, envoy, &addresses).await?;
        let pool = Pool { stack, servers };
        let mut report = self.load(&pool).await?;
        wait_until_idle(&pool.stack, &pool.servers).await.context("after all clients have ended")?;
        let [issued, confirmed, timed_out] = pool.revocations().await?;
        ensure!(issued == confirmed && timed_out == 0, "{issued} revoked, {confirmed} ended, {timed_out} timed out");
        report.evictions = issued;
        pool.fill_every_slot().await?;
        wait_until_idle(&pool.stack, &pool.servers).await.context("after every slot was filled once more")?;
        let violations = invariant_violations(&pool.stack).await?;
        ensure!(violations == 0, "the picker found {violations} violations of its invariants");
        Ok(report)
    }

    async fn load(&self, pool: &Pool) -> Result<EvictionSoakReport> {
        let progress = Arc::new(Progress::default());
        let clock = SystemClock::start();
        let mut clients = JoinSet::new();
        for (number, protocol) in (0..).zip(Protocol::ALL) {
            let seed = self.seed.wrapping_mul(1_000).wrapping_add(number * 100);
            let batch = Batch { url: pool.stack.envoy.url("/v1/completions"), protocol, clock, seed };
            clients.spawn(batch.run(Arc::clone(&progress)));
            let url = pool.stack.envoy.url("/v1/chat/completions");
            for seed in seed..seed + 3 {
                let (client, url) = (protocol.client()?, url.clone());
                clients.spawn(Leaving { client, url, seed }.run(Arc::clone(&progress)));
            }
            for seed in seed + 50..seed + 54 {
                let (client, url) = (protocol.client()?, url.clone());
                clients.spawn(Urgent { client, url, seed }.run(Arc::clone(&progress)));
            }
        }
        tokio::select! {
            biased;
            early = clients.join_next() => match early {
                Some(ended) => bail!("a client ended before it was told to: {:?}", ended?),
                None => bail!("there are no clients"),
            },
            enough = self.enough(pool, &progress, clock) => enough?,
        }
        progress.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        Ok(progress.seen())
    }

    /// Waits until there was as much of everything as is asked for.
    async fn enough(&self, pool: &Pool, progress: &Progress, clock: SystemClock) -> Result<()> {
        let (mut last, mut changed_at) = (EvictionSoakReport::default(), clock.now());
        loop {
            let seen = EvictionSoakReport { evictions: pool.revocations().await?[0], ..progress.seen() };
            let lacking = self.at_least.lacking(&seen);
            if lacking == EvictionSoakReport::default() {
                return Ok(());
            }
            if lacking != last {
                (last, changed_at) = (lacking, clock.now());
            }
            let standstill = clock.now().saturating_since(changed_at);
            ensure!(
                standstill < STANDSTILL,
                "for {STANDSTILL:?} nothing of what is lacking came: {lacking:?} beyond {seen:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn config(&self) -> Value {
        let mut config = flow_config(SLOTS);
        // By deadlines that are drawn by lot, so that victims are.
        if let Some(plugins) = config["plugins"].as_array_mut() {
            plugins.push(json!({"type": ORDERING}));
        }
        config["flowControl"]["defaultNegativePriorityBand"] = json!({"orderingPolicyRef": ORDERING});
        config["flowControl"]["enableEviction"] = true.into();
        config["flowControl"]["defaultRequestTTL"] = "10m".into();
        config["sluice"]["eviction"] = json!({
            "midStream": self.mid_stream,
            "victimOrder": "most-slack",
            // What ends later on a busy machine would not have ended at all.
            "confirmationTimeout": "10s",
        });
        config
    }
}

impl EvictionSoakReport {
    fn add(&mut self, part: Self) {
        *self = self.with(&part, u64::saturating_add);
    }

    /// What would have to come on top of `seen`.
    fn lacking(&self, seen: &Self) -> Self {
        self.with(seen, u64::saturating_sub)
    }

    fn with(&self, other: &Self, combined: fn(u64, u64) -> u64) -> Self {
        let Self { evictions, items, attempts, told, cuts, wasted_tokens, urgent, left } = other;
        Self {
            evictions: combined(self.evictions, *evictions),
            items: combined(self.items, *items),
            attempts: combined(self.attempts, *attempts),
            told: combined(self.told, *told),
            cuts: combined(self.cuts, *cuts),
            wasted_tokens: combined(self.wasted_tokens, *wasted_tokens),
            urgent: combined(self.urgent, *urgent),
            left: combined(self.left, *left),
        }
    }
}

/// What all clients have seen so far, and whether they are to go on.
#[derive(Debug, Default)]
struct Progress {
    stop: AtomicBool,
    seen: Mutex<EvictionSoakReport>,
}

impl Progress {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn add(&self, part: EvictionSoakReport) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).add(part);
    }

    fn seen(&self) -> EvictionSoakReport {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for EvictionSoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { evictions, items, attempts, told, cuts, wasted_tokens, urgent, left } = self;
        write!(f, "{evictions} evictions, all ended in time; {items} items in {attempts} attempts, all right, ")?;
        write!(f, "{told} times told of an eviction, {cuts} times cut, {wasted_tokens} tokens read again; ")?;
        write!(f, "{urgent} urgent requests served, {left} requests left by their clients")
    }
}

#[derive(Debug)]
struct Pool {
    // Before the servers, so that nothing is sent to one that is gone.
    stack: Stack,
    servers: Vec<Simulator>,
}

impl Pool {
    /// Requests chosen to be evicted, those that ended in time, and those that did not.
    async fn revocations(&self) -> Result<[u64; 3]> {
        let page = self.stack.picker.metrics().await?;
        let count = |name: &str, labels: &[(&str, &str)]| {
            let count = page.count(&format!("llm_d_epp_flow_control_{name}"), labels);
            u64::try_from(count.unwrap_or_default()).context("a count")
        };
        Ok([
            count("revocations_issued_total", &[])?,
            count("revocations_total", &[("outcome", "confirmed")])?,
            count("revocations_total", &[("outcome", "timed_out")])?,
        ])
    }

    /// As many endless chats as there are slots: each must find its own.
    async fn fill_every_slot(&self) -> Result<()> {
        let client = Protocol::Http2.client()?;
        let url = self.stack.envoy.url("/v1/chat/completions");
        let mut chats = Vec::new();
        for _ in 0..SERVERS * usize::try_from(SLOTS)? {
            let request = clients::chat(&client, &url, "standard", 20_000);
            chats.push(request.send().await?.error_for_status()?);
        }
        let mut running = Vec::new();
        let full = eventually(LIMIT, "every slot of every engine is taken", async || {
            running.clear();
            for server in &self.servers {
                let page = server.metrics().await?;
                running.push(page.count("vllm:num_requests_running", &[]));
            }
            Ok(running.iter().all(|count| *count == Some(i64::from(SLOTS))).then_some(()))
        });
        full.await.with_context(|| format!("running: {running:?}"))
    }
}
