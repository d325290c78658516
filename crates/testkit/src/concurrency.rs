//! Clients that each send the next request when the last one is over, as many as a model server has room for and more:
//! where those wait for whom there is no room.
//!
//! The figures are those of a published study on one GPU: a server of 128 slots, 32 to 200 clients, and a gate that closes
//! while more than four requests wait in the server. A [`Room`] shrinks them.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sluice_core::{Clock as _, SystemClock, Time};

use crate::{
    Arrivals, Class, EnvoyConfig, Exposition, Load, PickerConfig, Simulator, Stack, Tally, Template, flow_config,
};

const MODEL: &str = "campaign-model";
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The model server, its requests, and for how long they are watched.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Requests that it runs at once.
    pub slots: NonZeroU32,
    /// Of a text, on average. They differ by half of it either way, so that clients do not march in step.
    pub tokens: u32,
    /// From one token to the next.
    pub step: Duration,
    /// How long the server is watched, once every client has had time for two requests.
    pub watched: Duration,
}

impl Room {
    /// The server of the study, with so few tokens a second that a small machine keeps up.
    pub const FULL: Self = Self {
        slots: NonZeroU32::new(128).expect("not zero"),
        tokens: 100,
        step: Duration::from_millis(40),
        watched: Duration::from_secs(20),
    };
    /// An eighth of it for a few seconds.
    pub const SMALL: Self = Self {
        slots: NonZeroU32::new(16).expect("not zero"),
        tokens: 20,
        step: Duration::from_millis(50),
        watched: Duration::from_secs(8),
    };

    fn warm_up(self) -> Duration {
        self.step * self.tokens * 2
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyCampaign<'a> {
    /// The programs `epp` and `model-server-sim`.
    pub picker: &'a Path,
    pub simulator: &'a Path,
    pub room: Room,
    pub clients: usize,
    /// `queueDepthThreshold` of the gate; none: no flow control.
    pub threshold: Option<u32>,
    /// Makes the lengths of texts repeatable.
    pub seed: u64,
}

/// What was seen while the server was watched.
#[derive(Clone, Debug)]
pub struct ConcurrencyReport {
    /// Requests that waited in the model server, each time somebody looked, in order of size.
    waiting: Vec<u64>,
    /// Requests that the model server has completed.
    completed: u64,
    took: Duration,
    /// Every request, also those before and after.
    pub clients: Tally,
}

impl ConcurrencyReport {
    pub fn completed_per_second(&self) -> f64 {
        let completed = u32::try_from(self.completed).unwrap_or(u32::MAX);
        f64::from(completed) / self.took.as_secs_f64()
    }

    /// What the queue in the model server was not longer than in `percent` of the looks, by nearest rank.
    pub fn waiting_percentile(&self, percent: usize) -> u64 {
        let rank = (self.waiting.len() * percent).div_ceil(100).max(1);
        self.waiting.get(rank - 1).copied().unwrap_or_default()
    }
}

impl ConcurrencyCampaign<'_> {
    /// Works until every request has ended. Fails if one was not served.
    pub async fn run(&self) -> Result<ConcurrencyReport> {
        let Self { picker, simulator, room, clients, .. } = *self;
        let (slots, step) = (room.slots.to_string(), room.step.as_millis().to_string());
        let engine = ["--model", MODEL, "--max-num-seqs", &slots, "--time-per-output-token", &step];
        let server = Simulator::start(simulator, &engine).await?;
        let config = |endpoints: &Path| PickerConfig::custom(&self.config(), endpoints);
        let envoy = EnvoyConfig::from_template(Template::ResponseBypass)?;
        let stack = Stack::start_configured(picker, &[], config, envoy, &[server.address()]).await?;

        let tokens = room.tokens / 2..=room.tokens + room.tokens / 2;
        let arrivals = Arrivals::Closed { clients };
        let class = Class { name: "clients", headers: Vec::new(), arrivals, tokens };
        let url = stack.envoy.url("/v1/chat/completions");
        let duration = room.warm_up() + room.watched;
        let load = Load { url: &url, model: MODEL, classes: &[class], duration, seed: self.seed };
        let (tallies, seen) = tokio::join!(load.run(), watch(&server, room));
        let clients = tallies?.pop().context("what became of one class")?;
        ensure!(clients.served == clients.sent(), "not every request was served: {clients:?}");
        let Seen { waiting, completed, took } = seen?;
        Ok(ConcurrencyReport { waiting, completed, took, clients })
    }

    fn config(&self) -> Value {
        let mut config = flow_config(self.room.slots.get());
        if let Some(threshold) = self.threshold {
            let parameters = json!({"queueDepthThreshold": threshold, "kvCacheUtilThreshold": 0.8});
            config["plugins"][1] = json!({"name": "gate", "type": "utilization-detector", "parameters": parameters});
            config["flowControl"]["saturationDetector"]["pluginRef"] = "gate".into();
        } else if let Some(config) = config.as_object_mut() {
            config["plugins"].as_array_mut().map(|plugins| plugins.remove(1));
            config.remove("featureGates");
            config.remove("flowControl");
        }
        config
    }
}

struct Seen {
    waiting: Vec<u64>,
    completed: u64,
    took: Duration,
}

async fn watch(server: &Simulator, room: Room) -> Result<Seen> {
    let number = |page: &Exposition, series: &str| -> Result<u64> {
        let count = page.count(series, &[]).with_context(|| format!("no {series}"))?;
        Ok(u64::try_from(count)?)
    };
    let completed = |page: &Exposition| number(page, "vllm:request_success_total");
    tokio::time::sleep(room.warm_up()).await;
    let clock = SystemClock::start();
    let before = completed(&server.metrics().await?)?;
    let mut waiting = Vec::new();
    let (last, took) = loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let page = server.metrics().await?;
        waiting.push(number(&page, "vllm:num_requests_waiting")?);
        let took = clock.now().saturating_since(Time::ZERO);
        if took >= room.watched {
            break (page, took);
        }
    };
    waiting.sort_unstable();
    Ok(Seen { waiting, completed: completed(&last)? - before, took })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_only_what_was_watched() {
        let waiting = (1..=40).collect();
        let took = Duration::from_secs(4);
        let report = ConcurrencyReport { waiting, completed: 10, took, clients: Tally::default() };
        assert_eq!([0, 50, 95, 100].map(|percent| report.waiting_percentile(percent)), [1, 20, 38, 40]);
        assert!((report.completed_per_second() - 2.5).abs() < 1e-9);
    }
}
