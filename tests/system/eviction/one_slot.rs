//! A pool of one slot: a batch request that holds it, and another request that needs it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sluice_testkit::{EnvoyConfig, PickerConfig, Protocol, Stack, Template, eventually};
use tokio::task::JoinSet;

use super::rig::evicting;
use super::seen::{End, Ending, Seen};
use crate::flow::support::OBJECTIVE;
use crate::support::{CHAT, LIMIT, chat, picker, post};

/// Envoy as `template` has it.
pub(super) async fn pool(template: Template, mid_stream: &str, server: SocketAddr) -> Stack {
    pool_behind(EnvoyConfig::from_template(template).unwrap(), mid_stream, server).await
}

pub(super) async fn pool_behind(envoy: EnvoyConfig, mid_stream: &str, server: SocketAddr) -> Stack {
    pool_of(&one_slot(mid_stream), envoy, server).await
}

/// The picker's configuration.
pub(super) fn one_slot(mid_stream: &str) -> Value {
    evicting(1, &json!({"midStream": mid_stream}))
}

pub(super) async fn pool_of(config: &Value, envoy: EnvoyConfig, server: SocketAddr) -> Stack {
    let config = |endpoints: &Path| PickerConfig::custom(config, endpoints);
    Stack::start_configured(picker(), &[], config, envoy, &[server]).await.unwrap()
}

/// A streamed chat that may be evicted.
pub(super) fn batch(stack: &Stack, client: &Client) -> RequestBuilder {
    post(client, &stack.envoy.url(CHAT), &chat("hello", 1, true)).header(OBJECTIVE, "batch")
}

/// A batch request that holds the slot.
#[derive(Debug)]
pub(super) struct Holder<'a> {
    stack: &'a Stack,
    client: &'a Client,
    answer: JoinSet<Seen>,
}

impl<'a> Holder<'a> {
    /// Sends `request` and waits until it has the slot.
    pub(super) async fn start(stack: &'a Stack, client: &'a Client, request: RequestBuilder) -> Self {
        let answer = JoinSet::from_iter([Seen::all_of(request)]);
        until_one_runs(stack).await;
        Self { stack, client, answer }
    }

    /// The same, and waits until the client has got `begun`.
    pub(super) async fn start_answered(
        stack: &'a Stack,
        client: &'a Client,
        request: RequestBuilder,
        begun: &[u8],
    ) -> Self {
        let mut response = request.send().await.unwrap();
        let mut body = Vec::new();
        while body.len() < begun.len() {
            body.extend_from_slice(&response.chunk().await.unwrap().expect("the begin of an answer"));
        }
        assert!(body.starts_with(begun), "{}", String::from_utf8_lossy(&body));
        until_one_runs(stack).await;
        Self { stack, client, answer: JoinSet::from_iter([Seen::rest_of(response, body)]) }
    }

    /// Another request needs the slot. What does the client of this one see?
    pub(super) async fn evict(mut self) -> Seen {
        let demand = self.demand();
        let seen = self.end().await;
        leave(self.stack, demand).await;
        seen
    }

    /// Sends a request that needs the slot. Its answer is nobody's concern.
    pub(super) fn demand(&self) -> JoinSet<()> {
        let request = post(self.client, &self.stack.envoy.url(CHAT), &chat("hello", 1, true));
        let request = request.header(OBJECTIVE, "interactive");
        JoinSet::from_iter([async move { drop(Seen::all_of(request).await) }])
    }

    /// The answer does not end for `duration`.
    pub(super) async fn assert_stays(&mut self, duration: Duration) {
        if let Ok(ended) = tokio::time::timeout(duration, self.answer.join_next()).await {
            panic!("it has ended: {ended:?}");
        }
    }

    /// What the client has seen, when the answer has ended.
    pub(super) async fn end(&mut self) -> Seen {
        tokio::time::timeout(LIMIT, self.answer.join_next()).await.expect("an end in time").unwrap().unwrap()
    }
}

async fn until_one_runs(stack: &Stack) {
    eventually(LIMIT, "one request runs and none waits", async || {
        let page = stack.picker.flow().await?;
        Ok((page["leases"]["started"] == 1 && page["waiting"]["requests"] == 0).then_some(()))
    })
    .await
    .unwrap();
}

/// Waits until the pool is idle without the request that made the other one go.
pub(super) async fn leave(stack: &Stack, mut demand: JoinSet<()>) {
    until_one_runs(stack).await;
    demand.shutdown().await;
    eventually(LIMIT, "the pool is idle", async || {
        let page = stack.picker.flow().await?;
        Ok((page["leases"]["started"] == 0).then_some(()))
    })
    .await
    .unwrap();
}

/// How many clients have learned of it in this way, says the picker.
pub(super) async fn evictions(stack: &Stack, delivery: &str) -> i64 {
    let page = stack.picker.metrics().await.unwrap();
    let labels = [("priority", "-10"), ("delivery", delivery)];
    page.count("llm_d_epp_flow_control_evictions_total", &labels).unwrap_or_default()
}

pub(super) fn assert_told_by_status(seen: &Seen, context: &str) {
    assert_eq!(seen.ending(), Ending::ToldByStatus, "{context}: {seen}");
    assert_eq!(seen.headers["content-type"], "application/json", "{context}: {seen}");
    let seconds: u32 = seen.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds), "{context}: {seen}");
    let body: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(body["error"]["code"], "evicted", "{context}: {seen}");
    assert!(body["error"]["message"].is_string(), "{context}: {seen}");
}

pub(super) fn assert_error_event(seen: &Seen, context: &str) {
    let error = seen.error_event().unwrap_or_else(|| panic!("{context}: no event in {seen}"));
    assert_eq!((&error["code"], &error["reason"]), (&json!(429), &json!("evicted")), "{context}: {seen}");
    let wait = error["retry_after_ms"].as_u64();
    assert!(wait.is_some_and(|millis| (1_000..=30_000).contains(&millis)), "{context}: {seen}");
    assert!(error["message"].is_string(), "{context}: {seen}");
}

/// The end is broken in the way of the protocol.
pub(super) fn assert_cut(seen: &Seen, protocol: Protocol, context: &str) {
    assert_eq!(seen.end, End::Cut, "{context}: {seen}");
    let is_reset = seen.broken.contains("INTERNAL_ERROR");
    assert_eq!(is_reset, protocol == Protocol::Http2, "{context}: {seen}");
}
