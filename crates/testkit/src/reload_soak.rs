//! A picker whose configuration changes again and again under load, and the question whether any request notices.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Client;
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock};
use tokio::task::JoinSet;

use crate::idle::{invariant_violations, wait_until_idle};
use crate::{EnvoyConfig, PickerConfig, Protocol, Simulator, SseEvents, Stack, Template, eventually, flow_config};

const MODEL: &str = "soak-model";
const SERVERS: usize = 2;
/// Of each server. More clients than slots, so that somebody always waits.
const SLOTS: u32 = 8;
const CLIENTS_PER_OBJECTIVE: u64 = 8;
/// Longer than a reload takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Closed-loop clients of three priorities, and a configuration that is replaced as soon as the last one was answered:
/// other orderings, turns, ceilings, limits, detectors and scorers, and texts that are no configuration.
#[derive(Clone, Copy, Debug)]
pub struct ReloadSoak<'a> {
    /// The programs `epp` and `model-server-sim`.
    pub picker: &'a Path,
    pub simulator: &'a Path,
    pub reloads: u64,
    /// Makes the random choices repeatable.
    pub seed: u64,
}

/// What a [`ReloadSoak`] went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadSoakReport {
    /// Configurations that were put in force.
    pub applied: u64,
    /// Texts that were refused.
    pub refused: u64,
    /// Requests, all of which were served whole.
    pub served: u64,
    /// From the change of the file until the picker said what became of it.
    pub longest_reload: Duration,
    /// From sending a request until the end of its answer.
    pub longest_request: Duration,
}

impl ReloadSoak<'_> {
    /// Fails if a request was not served whole, if a good configuration was refused or a bad one was not, if the picker has
    /// found that it contradicts itself, and if anything is still taken when all is over.
    pub async fn run(&self) -> Result<ReloadSoakReport> {
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            let slots = SLOTS.to_string();
            let arguments = ["--model", MODEL, "--max-num-seqs", &slots, "--time-per-output-token", "5"];
            servers.push(Simulator::start(self.simulator, &arguments).await?);
        }
        let addresses: Vec<_> = servers.iter().map(Simulator::address).collect();
        let config = |endpoints: &Path| PickerConfig::custom(&base(endpoints), endpoints);
        let envoy = EnvoyConfig::from_template(Template::FullDuplex)?;
        let stack = Stack::start_configured(self.picker, &[], config, envoy, &addresses).await?;

        let report = self.load(&stack).await.with_context(|| format!("seed {}", self.seed))?;
        wait_until_idle(&stack, &servers).await.context("after all clients have ended")?;
        let violations = invariant_violations(&stack).await?;
        ensure!(violations == 0, "the picker found {violations} violations of its invariants");
        let labels = [("envoy_http_conn_manager_prefix", "inference"), ("envoy_response_code_class", "5")];
        let server_errors = stack.envoy.stats().await?.count("envoy_http_downstream_rq_xx", &labels);
        ensure!(server_errors == Some(0), "Envoy has answered {server_errors:?} requests with 5xx");
        let page = stack.picker.metrics().await?;
        let dispatched = page.count("llm_d_epp_flow_control_requests_total", &[("outcome", "Dispatched")]);
        let dispatched = dispatched.and_then(|count| u64::try_from(count).ok());
        ensure!(dispatched == Some(report.served), "{} served, {dispatched:?} counted", report.served);
        Ok(report)
    }

    async fn load(&self, stack: &Stack) -> Result<ReloadSoakReport> {
        let (stop, clock) = (Arc::new(AtomicBool::new(false)), SystemClock::start());
        let mut clients = JoinSet::new();
        for (number, objective) in (0..).zip(["interactive", "standard", "batch"]) {
            for (client, tenant) in (0..CLIENTS_PER_OBJECTIVE).zip(["a", "b", "c"].into_iter().cycle()) {
                let protocol = if client % 2 == 0 { Protocol::Http1 } else { Protocol::Http2 };
                let looping = Looping {
                    client: protocol.client()?,
                    url: stack.envoy.url("/v1/chat/completions"),
                    objective,
                    tenant,
                    random: StdRng::seed_from_u64(self.seed.wrapping_mul(1_000).wrapping_add(number * 100 + client)),
                    clock,
                };
                clients.spawn(looping.run(Arc::clone(&stop)));
            }
        }
        let mut report = tokio::select! {
            biased;
            early = clients.join_next() => match early {
                Some(ended) => bail!("a client ended before it was told to: {:?}", ended?),
                None => bail!("there are no clients"),
            },
            report = self.reload(stack, clock) => report?,
        };
        stop.store(true, Ordering::Relaxed);
        while let Some(part) = clients.join_next().await {
            let (served, longest) = part??;
            report.served += served;
            report.longest_request = report.longest_request.max(longest);
        }
        Ok(report)
    }

    async fn reload(&self, stack: &Stack, clock: SystemClock) -> Result<ReloadSoakReport> {
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut report = ReloadSoakReport::default();
        for number in 0..self.reloads {
            let bad = random.random_bool(0.2);
            let config = another(stack.endpoints.path(), number, &mut random);
            let text = if bad { spoilt(config, number, &mut random) } else { config.to_string() };
            let changed = clock.now();
            stack.replace_picker_config(&text)?;
            if bad {
                report.refused += 1;
            } else {
                report.applied += 1;
            }
            let expected = [report.applied, report.refused];
            let mut seen = [0; 2];
            let answered = eventually(LIMIT, "the picker says what became of a configuration", async || {
                seen = attempts(stack).await?;
                Ok((seen.iter().sum::<u64>() == number + 1).then_some(()))
            });
            answered.await.with_context(|| format!("{seen:?} after {text}"))?;
            ensure!(
                seen == expected,
                "applied and refused: {seen:?} instead of {expected:?}, at the last after {text}"
            );
            report.longest_reload = report.longest_reload.max(clock.now().saturating_since(changed));
            tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
        }
        // Without ceilings, so that everybody gets to the end of the last request.
        stack.replace_picker_config(&base(stack.endpoints.path()).to_string())?;
        report.applied += 1;
        eventually(LIMIT, "the last configuration is in force", async || {
            Ok((attempts(stack).await? == [report.applied, report.refused]).then_some(()))
        })
        .await?;
        Ok(report)
    }
}

/// How many configurations were put in force, and how many were refused.
async fn attempts(stack: &Stack) -> Result<[u64; 2]> {
    let page = stack.picker.metrics().await?;
    let count = |outcome| page.count("llm_d_epp_config_reload_total", &[("outcome", outcome)]);
    let unreadable = count("unreadable");
    ensure!(unreadable == Some(0), "the file could not be read {unreadable:?} times");
    let count = |outcome| u64::try_from(count(outcome).unwrap_or_default()).context("a count");
    Ok([count("applied")?, count("refused")?])
}

fn base(endpoints: &Path) -> Value {
    let mut config = flow_config(SLOTS);
    config["plugins"][0]["parameters"]["path"] = endpoints.display().to_string().into();
    config["flowControl"]["defaultRequestTTL"] = "10m".into();
    // There are victims, and nobody is evicted: that would be no fault of a reload.
    config["flowControl"]["enableEviction"] = true.into();
    config["sluice"]["dryRun"] = json!(["eviction"]);
    config
}

/// A good configuration that lets every client in, some sooner than others.
fn another(endpoints: &Path, number: u64, random: &mut StdRng) -> Value {
    let mut config = base(endpoints);
    let mut one_of = |choices: &[&str]| choices[random.random_range(0..choices.len())].to_owned();
    let orderings = ["fcfs-ordering-policy", "edf-ordering-policy", "slo-deadline-ordering-policy"];
    let fairness = ["round-robin-fairness-policy", "global-strict-fairness-policy", "weighted-fairness-policy"];
    let band = json!({"orderingPolicyRef": one_of(&orderings), "fairnessPolicyRef": one_of(&fairness)});
    let batch = json!({"orderingPolicyRef": one_of(&orderings), "fairnessPolicyRef": one_of(&fairness)});
    let (usage_limit, picker) = (
        one_of(&["static-usage-limit-policy", "priority-holdback-policy"]),
        one_of(&["max-score-picker", "random-picker"]),
    );
    if let Some(plugins) = config["plugins"].as_array_mut() {
        plugins.extend(orderings.iter().chain(&fairness[..2]).map(|name| json!({"type": name})));
        let weight = random.random_range(1..4);
        plugins.push(json!({"type": fairness[2], "parameters": {"weights": [{"tenant": "a", "weight": weight}]}}));
        plugins.extend(
            ["static-usage-limit-policy", "max-score-picker", "random-picker"].map(|name| json!({"type": name})),
        );
        let lowest = random.random_range(3..10);
        let ceilings = json!([{"priority": 0, "ceiling": 0.9}, {"priority": -10, "ceiling": f64::from(lowest) / 10.0}]);
        plugins.push(json!({"type": "priority-holdback-policy", "parameters": {"ceilings": ceilings}}));
        // Now and then below what runs.
        plugins[1]["parameters"]["maxConcurrency"] = random.random_range(2..=SLOTS).into();
    }
    let weight = random.random_range(1..5);
    let mut plugins =
        vec![json!({"pluginRef": "active-request-scorer", "weight": weight}), json!({"pluginRef": picker})];
    if random.random() {
        // As the automatic profile has it: the gate's detector is a filter, too.
        plugins.push(json!({"pluginRef": "in-flight"}));
    }
    config["schedulingProfiles"] = json!([{"name": "default", "plugins": plugins}]);
    let section = &mut config["flowControl"];
    section["usageLimitPolicyPluginRef"] = usage_limit.into();
    section["defaultPriorityBand"] = band;
    section["defaultNegativePriorityBand"] = batch;
    // As many as there are clients, or a few more.
    section["maxRequests"] = random.random_range(24..100).into();
    section["defaultRequestTTL"] = format!("{}m", random.random_range(5..20)).into();
    // So that no two are the same.
    config["sluice"]["limits"] = json!({"maxRequestHeaders": 50_000 + number, "bodyProgressTimeout": "70s"});
    config["sluice"]["metrics"] = json!({"maxTenants": random.random_range(1..10)});
    config
}

/// What is no configuration any more, or none that may follow.
fn spoilt(mut config: Value, number: u64, random: &mut StdRng) -> String {
    match random.random_range(0..4) {
        0 => format!("{{ {number}"),
        1 => {
            config["flowControl"]["saturationDetector"]["pluginRef"] = "nobody".into();
            config.to_string()
        }
        2 => {
            config["plugins"][1]["parameters"]["maxConcurency"] = 1.into();
            config.to_string()
        }
        _ => {
            config["plugins"][0]["parameters"]["path"] = "/nowhere/endpoints.yaml".into();
            config.to_string()
        }
    }
}

/// Sends one streamed chat after the other, each of which has to be served whole.
struct Looping {
    client: Client,
    url: String,
    objective: &'static str,
    tenant: &'static str,
    random: StdRng,
    clock: SystemClock,
}

impl Looping {
    /// How many were served, and how long the longest took.
    async fn run(mut self, stop: Arc<AtomicBool>) -> Result<(u64, Duration)> {
        let (mut served, mut longest) = (0, Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            let sent = self.clock.now();
            self.one().await.with_context(|| format!("request {served} of objective {}", self.objective))?;
            longest = longest.max(self.clock.now().saturating_since(sent));
            served += 1;
        }
        Ok((served, longest))
    }

    async fn one(&mut self) -> Result<()> {
        let tokens: u16 = self.random.random_range(1..40);
        let body = json!({
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell me about sluices."}],
            "max_tokens": tokens,
            "ignore_eos": true,
            "stream": true,
        });
        let request = self.client.post(&self.url).header("content-type", "application/json");
        let request = request.header("x-llm-d-inference-objective", self.objective);
        let request = request.header("x-llm-d-inference-fairness-id", self.tenant);
        let response = request.body(body.to_string()).send().await?;
        let status = response.status();
        ensure!(status == 200, "{status}: {}", response.text().await.unwrap_or_default());
        let events = SseEvents::of(response).collect().await?;
        ensure!(events.last().is_some_and(|last| last == "[DONE]"), "it ended with {:?}", events.last());
        ensure!(events.len() > usize::from(tokens), "{} events for {tokens} tokens", events.len());
        Ok(())
    }
}

impl fmt::Display for ReloadSoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { applied, refused, served, longest_reload, longest_request } = self;
        write!(f, "{applied} configurations put in force and {refused} refused, each within {longest_reload:.0?}; ")?;
        write!(f, "{served} requests, all served whole, the longest in {longest_request:.1?}")
    }
}
