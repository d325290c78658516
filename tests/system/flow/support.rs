use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use sluice_testkit::{
    CountingUpstream, EnvoyConfig, HOLD_HEADER, PickerConfig, Protocol, STREAM_HEADER, Stack, TAG_HEADER, Template,
    eventually, flow_config,
};
use tokio::task::JoinSet;

use crate::support::{CHAT, LIMIT, chat, picker, post};

pub(crate) const OBJECTIVE: &str = "x-llm-d-inference-objective";
const TENANT: &str = "x-llm-d-inference-fairness-id";
pub(crate) const TTL: &str = "x-llm-d-inference-ttl";
pub(crate) const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";
/// Headers that a filter in front of the picker turns into its metadata, see [`vouching_envoy`].
pub(crate) const SUBSET: &str = "x-test-subset";
pub(crate) const VOUCHED_OBJECTIVE: &str = "x-test-objective";

/// Flow control with `slots` per model server and the objectives interactive (100), standard (0) and batch (-10).
/// `flow_control` and `sluice` are merged over what is there.
pub(crate) fn config(slots: u32, flow_control: &Value, sluice: &Value) -> Value {
    let mut config = flow_config(slots);
    merge(&mut config["flowControl"], flow_control);
    merge(&mut config["sluice"], sluice);
    config
}

fn merge(base: &mut Value, over: &Value) {
    for (key, value) in over.as_object().into_iter().flatten() {
        base[key] = value.clone();
    }
}

/// The full-duplex template.
pub(crate) fn envoy() -> Result<EnvoyConfig> {
    EnvoyConfig::from_template(Template::FullDuplex)
}

/// The same with a filter that turns the headers [`SUBSET`] and [`VOUCHED_OBJECTIVE`] into metadata for the picker, as
/// a filter that authenticates clients would.
pub(crate) fn vouching_envoy() -> Result<EnvoyConfig> {
    let mut config = envoy()?;
    config.metadata_from_headers(&[
        (SUBSET, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"),
        (VOUCHED_OBJECTIVE, "sluice", "objective"),
    ])?;
    Ok(config)
}

/// Model servers that count, behind Envoy and a picker with flow control.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) stack: Stack,
    pub(crate) servers: Vec<CountingUpstream>,
    client: Client,
    /// Requests that have been sent and not been looked at again.
    sent: JoinSet<()>,
}

impl Counted {
    pub(crate) async fn start(servers: usize, config: &Value) -> Result<Self> {
        Self::start_with(servers, config, &[], envoy()?).await
    }

    /// `arguments` are further ones for the picker.
    pub(crate) async fn start_with(
        servers: usize,
        config: &Value,
        arguments: &[&str],
        envoy: EnvoyConfig,
    ) -> Result<Self> {
        let servers: Vec<_> = (0..servers).map(|_| CountingUpstream::start()).collect::<Result<_>>()?;
        let addresses: Vec<_> = servers.iter().map(CountingUpstream::address).collect();
        let custom = |endpoints: &Path| PickerConfig::custom(config, endpoints);
        let stack = Stack::start_configured(picker(), arguments, custom, envoy, &addresses).await?;
        Ok(Self { stack, servers, client: Protocol::Http2.client()?, sent: JoinSet::new() })
    }

    /// A chat that a model server holds until the test lets it end.
    pub(crate) fn chat(&self, tag: &str) -> RequestBuilder {
        self.chat_from(&self.client, tag)
    }

    /// The same from another client, which has connections of its own: Envoy takes 1,024 streams on one.
    pub(crate) fn chat_from(&self, client: &Client, tag: &str) -> RequestBuilder {
        post(client, &self.stack.envoy.url(CHAT), &chat("hello", 1, false)).header(TAG_HEADER, tag)
    }

    /// The same for an objective.
    pub(crate) fn chat_for(&self, objective: &str, tag: &str) -> RequestBuilder {
        self.chat(tag).header(OBJECTIVE, objective)
    }

    /// Sends a request and leaves it alone; it is given up with the whole stack.
    pub(crate) fn send(&mut self, request: RequestBuilder) {
        self.sent.spawn(async move { drop(request.send().await) });
    }

    /// Gives up everything that was [sent](Self::send), and waits until the picker and the servers have noticed.
    pub(crate) async fn hang_up(&mut self) -> Result<()> {
        self.sent.shutdown().await;
        self.wait_for(0, 0).await
    }

    /// Waits until so many requests are open at the servers, as the picker also says, and so many wait in the picker.
    pub(crate) async fn wait_for(&self, open: usize, waiting: u64) -> Result<()> {
        let mut seen = (0, Value::Null);
        eventually(LIMIT, "the expected numbers of requests", async || {
            seen = (self.open(), self.stack.picker.flow().await?);
            let (now_open, page) = &seen;
            let leases = &page["leases"];
            let settled = *now_open == open && leases["started"] == open && leases["granted"] == 0;
            Ok((settled && page["waiting"]["requests"] == waiting).then_some(()))
        })
        .await
        .with_context(|| format!("want {open} open and {waiting} waiting, have {} open and {}", seen.0, seen.1))
    }

    /// Waits until the picker has taken over a pool of so many endpoints.
    pub(crate) async fn wait_for_endpoints(&self, count: usize) -> Result<()> {
        eventually(LIMIT, "the picker has taken over the endpoints", async || {
            let page = self.stack.picker.flow().await?;
            let endpoints = page["endpoints"].as_array().into_iter().flatten();
            Ok((endpoints.filter(|endpoint| endpoint["inPool"] == true).count() == count).then_some(()))
        })
        .await
    }

    pub(crate) fn open(&self) -> usize {
        self.servers.iter().map(CountingUpstream::open).sum()
    }

    /// How many requests wait in the picker.
    pub(crate) async fn waiting(&self) -> Result<u64> {
        let page = self.stack.picker.flow().await?;
        page["waiting"]["requests"].as_u64().context("a count of waiting requests")
    }

    /// The entry of a band on the page `/debug/flow`.
    pub(crate) async fn band(&self, priority: i64) -> Result<Value> {
        let page = self.stack.picker.flow().await?;
        let mut bands = page["bands"].as_array().into_iter().flatten();
        bands.find(|band| band["priority"] == priority).cloned().with_context(|| format!("no band {priority}: {page}"))
    }

    /// How many requests have left the queues with this outcome.
    pub(crate) async fn ended_with(&self, outcome: &str) -> Result<i64> {
        let page = self.stack.picker.metrics().await?;
        let labels = [("outcome", outcome)];
        Ok(page.count("llm_d_epp_flow_control_requests_total", &labels).unwrap_or_default())
    }
}

/// Asks the server to work for this time instead of until it is told.
pub(crate) fn for_millis(request: RequestBuilder, millis: u64) -> RequestBuilder {
    request.header(HOLD_HEADER, millis.to_string())
}

/// Asks for an answer that begins at once.
pub(crate) fn streamed(request: RequestBuilder) -> RequestBuilder {
    request.header(STREAM_HEADER, "1")
}

/// Names the tenant.
pub(crate) fn of_tenant(request: RequestBuilder, tenant: &str) -> RequestBuilder {
    request.header(TENANT, tenant)
}

/// How long something takes that is not to wait for anything, on a busy machine.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(500);

/// A refusal that may be tried again: its status, its reason, how its message begins, and when to come back.
pub(crate) async fn assert_refused(response: Response, status: u16, reason: &str, message: &str) {
    assert_eq!((response.status().as_u16(), response.headers()[DROPPED_REASON].to_str().unwrap()), (status, reason));
    let retry_after: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=30).contains(&retry_after), "{retry_after}");
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], reason, "{body}");
    assert!(body["error"]["message"].as_str().unwrap().starts_with(message), "{body}");
}
