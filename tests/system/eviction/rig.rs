use std::collections::BTreeMap;

use anyhow::{Context, Result};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sluice_core::Time;
use sluice_testkit::{Envoy, EnvoyConfig, Protocol, STREAM_HEADER, TAG_HEADER, eventually};
use tokio::task::JoinSet;

use super::seen::Seen;
use crate::flow::support::{Counted, OBJECTIVE, config, envoy};
use crate::support::{CHAT, LIMIT, chat, post};

/// When the first token is wanted, in milliseconds from now: the deadline that orders victims by slack.
pub(super) const SLACK: &str = "x-llm-d-slo-ttft-ms";

/// Eviction with `slots` per model server and these objectives besides those of [`config`]; `eviction` is merged over
/// the defaults of `sluice.eviction`.
pub(super) fn evicting(slots: u32, eviction: &Value) -> Value {
    let objectives = json!([
        {"name": "premium", "priority": 200},
        {"name": "interactive", "priority": 100},
        {"name": "standard", "priority": 0},
        {"name": "sheddable", "priority": -1},
        {"name": "idle", "priority": -5},
        {"name": "batch", "priority": -10},
    ]);
    // Bands that exist before anybody asks for them.
    let bands = json!([{"priority": 200}, {"priority": 100}]);
    let flow_control = json!({"enableEviction": true, "priorityBands": bands});
    config(slots, &flow_control, &json!({"objectives": objectives, "eviction": eviction}))
}

/// The same with ceilings, each a priority and its share of the pool.
pub(super) fn with_ceilings(mut config: Value, ceilings: &[(i32, f64)]) -> Value {
    let listed = |(priority, ceiling): &(i32, f64)| json!({"priority": priority, "ceiling": ceiling});
    let ceilings: Vec<Value> = ceilings.iter().map(listed).collect();
    let policy = json!({"name": "reserve", "type": "priority-holdback-policy", "parameters": {"ceilings": ceilings}});
    config["plugins"].as_array_mut().unwrap().push(policy);
    config["flowControl"]["usageLimitPolicyPluginRef"] = "reserve".into();
    config
}

/// What the picker counts of requests that were told to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Revocations {
    pub(super) issued: i64,
    pub(super) timed_out: i64,
    pub(super) confirmed: i64,
}

/// A pool of counting model servers and its clients, which stream unless told otherwise.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) counted: Counted,
    client: Client,
    clients: JoinSet<(String, Seen)>,
    sent: usize,
}

impl Pool {
    pub(super) async fn start(config: &Value) -> Self {
        Self::start_with(1, config, envoy().unwrap()).await
    }

    pub(super) async fn start_with(servers: usize, config: &Value, envoy: EnvoyConfig) -> Self {
        let counted = Counted::start_with(servers, config, &[], envoy).await.unwrap();
        Self { counted, client: Protocol::Http2.client().unwrap(), clients: JoinSet::new(), sent: 0 }
    }

    /// A chat of which the answer begins at once and ends when the test says so.
    pub(super) fn stream(&self, objective: &str, tag: &str) -> RequestBuilder {
        self.whole(objective, tag).header(STREAM_HEADER, "1")
    }

    /// One of which nothing comes before that.
    pub(super) fn whole(&self, objective: &str, tag: &str) -> RequestBuilder {
        let url = self.counted.stack.envoy.url(CHAT);
        let request = post(&self.client, &url, &chat("hello", 1, true));
        request.header(OBJECTIVE, objective).header(TAG_HEADER, tag)
    }

    /// Sends a request whose client reads what comes.
    pub(super) fn send(&mut self, tag: &str, request: RequestBuilder) {
        let tag = tag.to_owned();
        self.clients.spawn(async move { (tag, Seen::all_of(request).await) });
        self.sent += 1;
    }

    /// Sends it and waits until one more runs.
    pub(super) async fn run(&mut self, tag: &str, request: RequestBuilder) {
        let open = self.counted.open() + 1;
        self.send(tag, request);
        self.wait_for(open, 0).await;
    }

    /// Streams that run, begun one after the other. Returns their tags, which begin with the objective.
    pub(super) async fn fill(&mut self, objective: &str, count: usize) -> Vec<String> {
        let mut tags = Vec::new();
        for _ in 0..count {
            let tag = self.tag(objective);
            let request = self.stream(objective, &tag);
            self.run(&tag, request).await;
            tags.push(tag);
        }
        tags
    }

    /// Streams that all arrive at about the same time.
    pub(super) fn burst(&mut self, objective: &str, count: usize) {
        for _ in 0..count {
            let tag = self.tag(objective);
            let request = self.stream(objective, &tag);
            self.send(&tag, request);
        }
    }

    /// One that no request had yet.
    fn tag(&self, objective: &str) -> String {
        format!("{objective}-{}", self.sent)
    }

    /// How many requests have come to the model servers.
    pub(super) fn arrived(&self) -> usize {
        self.counted.servers.iter().map(|server| server.visits().len()).sum()
    }

    /// Waits until so many have come there, and then for the numbers of those that run and wait.
    pub(super) async fn wait_for_arrivals(&self, arrived: usize, open: usize, waiting: u64) {
        eventually(LIMIT, "requests at the model servers", async || Ok((self.arrived() == arrived).then_some(())))
            .await
            .unwrap_or_else(|error| panic!("{error:#}: {} instead of {arrived}", self.arrived()));
        self.wait_for(open, waiting).await;
    }

    pub(super) async fn wait_for(&self, open: usize, waiting: u64) {
        let state = self.counted.wait_for(open, waiting).await;
        state.unwrap_or_else(|error| panic!("{error:#}\n{}", self.counted.stack.logs()));
    }

    /// The tags of requests that were aborted at the model servers, and when.
    pub(super) fn victims(&self) -> BTreeMap<String, Time> {
        let visits = self.counted.servers.iter().flat_map(|server| server.visits());
        let aborted = visits.filter_map(|visit| Some((visit.tag, visit.ended.filter(|end| end.aborted)?.at)));
        aborted.collect()
    }

    pub(super) fn victim_tags(&self) -> Vec<String> {
        self.victims().into_keys().collect()
    }

    /// How many were chosen to be evicted for a band, or for all.
    pub(super) async fn issued(&self, priority: Option<i32>) -> i64 {
        let page = self.counted.stack.picker.metrics().await.unwrap();
        let priority = priority.map(|priority| priority.to_string());
        let labels: Vec<_> = priority.iter().map(|priority| ("priority", priority.as_str())).collect();
        page.count("llm_d_epp_flow_control_revocations_issued_total", &labels).unwrap_or_default()
    }

    /// Freezes the Envoy of all requests so far and starts another one for the same picker: none of their streams ends
    /// until the first one is resumed.
    pub(super) async fn freeze_behind_another_envoy(&mut self) -> Envoy {
        let mut other = envoy().unwrap();
        other.set_pickers(&[self.counted.stack.picker.ext_proc()]).unwrap();
        let other = Envoy::start(&other).await.unwrap();
        self.counted.stack.envoy.process_mut().freeze().unwrap();
        other
    }

    /// A chat as [`Self::stream`] through another Envoy.
    pub(super) fn stream_through(&self, other: &Envoy, objective: &str, tag: &str) -> RequestBuilder {
        let request = post(&self.client, &other.url(CHAT), &chat("hello", 1, true)).header(STREAM_HEADER, "1");
        request.header(OBJECTIVE, objective).header(TAG_HEADER, tag)
    }

    pub(super) async fn revocations(&self) -> Result<Revocations> {
        let page = self.counted.stack.picker.metrics().await?;
        let count = |name: &str, labels: &[(&str, &str)]| page.count(name, labels).unwrap_or_default();
        let of = |outcome: &str| count("llm_d_epp_flow_control_revocations_total", &[("outcome", outcome)]);
        Ok(Revocations {
            issued: count("llm_d_epp_flow_control_revocations_issued_total", &[]),
            timed_out: of("timed_out"),
            confirmed: of("confirmed"),
        })
    }

    pub(super) async fn wait_for_revocations(&self, wanted: Revocations) {
        let mut seen = None;
        eventually(LIMIT, "revocations", async || {
            let now = *seen.insert(self.revocations().await?);
            Ok((now == wanted).then_some(()))
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}: {seen:?} instead of {wanted:?}"));
    }

    /// What the next client whose request ends has seen.
    pub(super) async fn next_end(&mut self) -> (String, Seen) {
        let ended = tokio::time::timeout(LIMIT, self.clients.join_next()).await.expect("an end in time");
        ended.expect("a client").unwrap()
    }

    /// All clients leave.
    pub(super) async fn hang_up(&mut self) {
        self.clients.shutdown().await;
        self.wait_for(0, 0).await;
    }

    /// Waits until nothing is revoked and not ended, and for as long again as an eviction would take.
    pub(super) async fn settle(&self) -> Result<()> {
        eventually(LIMIT, "revoked requests have ended", async || {
            let page = self.counted.stack.picker.flow().await?;
            Ok((page["leases"]["revoked"] == 0).then_some(()))
        })
        .await
        .context("a revocation hangs")?;
        tokio::time::sleep(crate::flow::support::AT_ONCE).await;
        Ok(())
    }
}
