//! What a client sees, by how far the answer to it had come, and by how the proxy lets the picker see answers.

use std::net::SocketAddr;
use std::path::Path;

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sluice_testkit::{
    CountingUpstream, EnvoyConfig, PickerConfig, Protocol, STREAM_HEADER, Stack, Template, eventually,
};
use tokio::task::JoinSet;

use super::rig::evicting;
use super::seen::{End, Ending, Seen};
use crate::flow::support::{AT_ONCE, OBJECTIVE};
use crate::raw::{Then, server};
use crate::support::{CHAT, LIMIT, TEMPLATES, chat, picker, post};

/// One slot, and Envoy with `template`.
async fn pool(template: Template, mid_stream: &str, server: SocketAddr) -> Stack {
    let config = evicting(1, &json!({"midStream": mid_stream}));
    let config = |endpoints: &Path| PickerConfig::custom(&config, endpoints);
    let envoy = EnvoyConfig::from_template(template).unwrap();
    Stack::start_configured(picker(), &[], config, envoy, &[server]).await.unwrap()
}

fn batch(client: &Client, url: &str) -> RequestBuilder {
    post(client, url, &chat("hello", 1, true)).header(OBJECTIVE, "batch")
}

/// Sends a request that needs the only slot. Its answer is nobody's concern.
fn demand(client: &Client, stack: &Stack) -> JoinSet<()> {
    let request = post(client, &stack.envoy.url(CHAT), &chat("hello", 1, true)).header(OBJECTIVE, "interactive");
    JoinSet::from_iter([async move { drop(Seen::all_of(request).await) }])
}

async fn until_it_runs(stack: &Stack) {
    eventually(LIMIT, "the request runs", async || {
        let page = stack.picker.flow().await?;
        Ok((page["leases"]["started"] == 1 && page["waiting"]["requests"] == 0).then_some(()))
    })
    .await
    .unwrap();
}

/// What the client of `request` sees if it is evicted before its answer begins.
async fn evicted_before_its_answer(
    stack: &Stack,
    client: &Client,
    request: RequestBuilder,
    server: &CountingUpstream,
) -> Seen {
    let open = server.visits().len() + 1;
    let mut victim = JoinSet::from_iter([Seen::all_of(request)]);
    eventually(LIMIT, "the request is at the model server", async || Ok((server.visits().len() == open).then_some(())))
        .await
        .unwrap();
    until_it_runs(stack).await;
    let demand = demand(client, stack);
    let seen = tokio::time::timeout(LIMIT, victim.join_next()).await.expect("an end in time").unwrap().unwrap();
    let aborted = eventually(AT_ONCE, "the model server is told", async || {
        Ok(server.visits()[open - 1].ended.is_some_and(|end| end.aborted).then_some(()))
    });
    aborted.await.unwrap();
    leave(stack, demand).await;
    seen
}

/// The same once `begun` has come.
async fn evicted_after(stack: &Stack, client: &Client, request: RequestBuilder, begun: &[u8]) -> Seen {
    let mut response = request.send().await.unwrap();
    let mut body = Vec::new();
    while body.len() < begun.len() {
        body.extend_from_slice(&response.chunk().await.unwrap().expect("the begin of an answer"));
    }
    assert_eq!(body, begun);
    until_it_runs(stack).await;
    let demand = demand(client, stack);
    let seen = tokio::time::timeout(LIMIT, Seen::rest_of(response, body)).await.expect("an end in time");
    leave(stack, demand).await;
    seen
}

/// Waits until the pool is idle without the request that made the other one go.
async fn leave(stack: &Stack, mut demand: JoinSet<()>) {
    until_it_runs(stack).await;
    demand.shutdown().await;
    eventually(LIMIT, "the pool is idle", async || {
        let page = stack.picker.flow().await?;
        Ok((page["leases"]["started"] == 0).then_some(()))
    })
    .await
    .unwrap();
}

/// How many clients have learned of it in this way, says the picker.
async fn evictions(stack: &Stack, delivery: &str) -> i64 {
    let page = stack.picker.metrics().await.unwrap();
    let labels = [("priority", "-10"), ("delivery", delivery)];
    page.count("llm_d_epp_flow_control_evictions_total", &labels).unwrap_or_default()
}

fn assert_told_by_status(seen: &Seen, context: &str) {
    assert_eq!(seen.ending(), Ending::ToldByStatus, "{context}: {seen}");
    assert_eq!(seen.headers["content-type"], "application/json", "{context}: {seen}");
    let seconds: u32 = seen.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds), "{context}: {seen}");
    let body: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(body["error"]["code"], "evicted", "{context}: {seen}");
    assert!(body["error"]["message"].is_string(), "{context}: {seen}");
}

fn assert_error_event(seen: &Seen, context: &str) {
    let error = seen.error_event().unwrap_or_else(|| panic!("{context}: no event in {seen}"));
    assert_eq!((&error["code"], &error["reason"]), (&json!(429), &json!("evicted")), "{context}: {seen}");
    let wait = error["retry_after_ms"].as_u64();
    assert!(wait.is_some_and(|millis| (1_000..=30_000).contains(&millis)), "{context}: {seen}");
    assert!(error["message"].is_string(), "{context}: {seen}");
}

#[tokio::test]
async fn before_the_answer_begins_it_is_a_clean_429_whatever_the_proxy_shows_the_picker() {
    let server = CountingUpstream::start().unwrap();
    for template in TEMPLATES {
        let stack = pool(template, "event-then-reset", server.address()).await;
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            let request = batch(&client, &stack.envoy.url(CHAT));
            let seen = evicted_before_its_answer(&stack, &client, request, &server).await;
            assert_told_by_status(&seen, &format!("{template:?}, {protocol:?}"));
        }
        assert_eq!(evictions(&stack, "status").await, 2, "{template:?}");
    }
}

/// What a stream of events ends with, by template and setting.
#[tokio::test]
async fn in_the_middle_of_a_stream_the_client_is_told_in_the_stream_where_the_picker_sees_it() {
    const BEGUN: &[u8] = b"data: 0\n\n";
    let server = CountingUpstream::start().unwrap();
    for (template, mid_stream, ending) in [
        (Template::FullDuplex, "event-then-reset", Ending::ToldThenCut),
        (Template::FullDuplex, "event-then-end", Ending::ToldThenEnd),
        (Template::FullDuplex, "reset", Ending::Cut),
        (Template::PerRequest, "event-then-reset", Ending::ToldThenCut),
        (Template::PerRequest, "event-then-end", Ending::ToldThenEnd),
        (Template::PerRequest, "reset", Ending::Cut),
        (Template::ResponseBypass, "event-then-reset", Ending::Cut),
        (Template::ResponseBypass, "event-then-end", Ending::Cut),
    ] {
        let stack = pool(template, mid_stream, server.address()).await;
        for protocol in Protocol::ALL {
            let context = format!("{template:?}, {mid_stream}, {protocol:?}");
            let client = protocol.client().unwrap();
            let request = batch(&client, &stack.envoy.url(CHAT)).header(STREAM_HEADER, "1");
            let seen = evicted_after(&stack, &client, request, BEGUN).await;
            assert_eq!(seen.ending(), ending, "{context}: {seen}");
            assert!(seen.body.starts_with(BEGUN), "{context}: {seen}");
            if ending == Ending::Cut {
                assert_eq!(seen.body, BEGUN, "{context}: {seen}");
            } else {
                assert_error_event(&seen, &context);
            }
        }
        let delivery = if ending == Ending::Cut { "reset" } else { "event" };
        assert_eq!(evictions(&stack, delivery).await, 2, "{template:?}, {mid_stream}");
        eventually(LIMIT, "the model server has noticed all ends", async || Ok((server.open() == 0).then_some(())))
            .await
            .unwrap();
        let visits = server.visits();
        assert!(visits.iter().all(|visit| visit.ended.is_some_and(|end| end.aborted)), "{template:?}, {mid_stream}");
    }
}

/// An event that was cut in the middle, text in an unknown code, an answer that is one JSON value: nothing may be added
/// to them.
#[tokio::test]
async fn an_answer_to_which_no_event_can_be_added_is_cut() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n";
    let partial: (&'static str, &'static [u8]) = (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n\
         10\r\ndata: 0\n\ndata: 1\r\n",
        b"data: 0\n\ndata: 1",
    );
    let encoded: (&'static str, &'static [u8]) = (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\ncontent-encoding: br\r\n\
         \r\n9\r\ndata: 0\n\n\r\n",
        b"data: 0\n\n",
    );
    let json: (&'static str, &'static [u8]) = (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\n8\r\n{\"half\":\r\n",
        b"{\"half\":",
    );
    for (name, (answer, begun)) in [("half an event", partial), ("encoded", encoded), ("no stream of events", json)] {
        assert!(answer.starts_with(HEAD));
        let mut servers = JoinSet::new();
        let address = server("127.0.0.1", answer, Then::Close(LIMIT * 2), &mut servers).await;
        for template in TEMPLATES {
            let stack = pool(template, "event-then-reset", address).await;
            for protocol in Protocol::ALL {
                let client = protocol.client().unwrap();
                let request = batch(&client, &stack.envoy.url(CHAT));
                let seen = evicted_after(&stack, &client, request, begun).await;
                assert_eq!((seen.end, seen.body.as_slice()), (End::Cut, begun), "{name}, {template:?}, {protocol:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_event_has_the_shape_of_the_api_that_was_called() {
    let server = CountingUpstream::start().unwrap();
    let stack = pool(Template::FullDuplex, "event-then-reset", server.address()).await;
    let client = Protocol::Http2.client().unwrap();
    for (path, begin, kind) in
        [("/v1/completions", "data: {", Value::Null), ("/v1/messages", "event: error\ndata: {", json!("error"))]
    {
        let mut body = chat("hello", 1, true);
        body["prompt"] = "hello".into();
        let request = post(&client, &stack.envoy.url(path), &body).header(OBJECTIVE, "batch");
        let seen = evicted_after(&stack, &client, request.header(STREAM_HEADER, "1"), b"data: 0\n\n").await;
        assert_error_event(&seen, path);
        let text = seen.text();
        let event = text.strip_prefix("data: 0\n\n").unwrap();
        assert!(event.starts_with(begin), "{path}: {seen}");
        let data: Value = serde_json::from_str(event.rsplit("data: ").next().unwrap()).unwrap();
        assert_eq!(data["type"], kind, "{path}: {seen}");
    }
}

#[tokio::test]
async fn a_grpc_call_whose_answer_has_not_begun_ends_with_a_grpc_status() {
    let server = CountingUpstream::start().unwrap();
    let stack = pool(Template::FullDuplex, "event-then-reset", server.address()).await;
    let client = Protocol::Http2.client().unwrap();
    let request = client.post(stack.envoy.url("/vllm.grpc.engine.VllmEngine/Generate")).body([0; 5].to_vec());
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let seen = evicted_before_its_answer(&stack, &client, request.header(OBJECTIVE, "batch"), &server).await;
    let header = |name: &str| seen.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!((seen.status, seen.end), (200, End::InOrder), "{seen}");
    assert_eq!((header("grpc-status"), header(crate::flow::support::DROPPED_REASON)), (Some("8"), Some("evicted")));
}
