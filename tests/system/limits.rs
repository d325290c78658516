//! The limits of the section `sluice.limits`, as clients meet them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use sluice_testkit::{Protocol, eventually};
use tokio::task::JoinSet;

use crate::envoy::modes::with_modes;
use crate::flow::support::{AT_ONCE, Counted, assert_refused, config, envoy, for_millis};
use crate::raw::RawClient;
use crate::support::{CHAT, LIMIT, chat, post};

/// A pool with one slot and these limits, behind an Envoy with this request mode.
async fn limited(mode: &str, limits: &Value) -> Counted {
    let config = config(1, &json!({}), &json!({ "limits": limits }));
    Counted::start_with(1, &config, &[], with_modes(mode, "NONE").unwrap()).await.unwrap()
}

/// The request of an objective with a body of about 30 kB.
fn small(pool: &Counted, objective: &str) -> RequestBuilder {
    let body = chat(&"hello ".repeat(5_000), 1, false);
    for_millis(pool.chat_for(objective, objective), 1).body(body.to_string())
}

async fn assert_nothing_is_left(pool: &Counted) {
    eventually(AT_ONCE, "nothing is left", async || {
        let page = pool.stack.picker.flow().await?;
        Ok((page["leases"]["started"] == 0 && page["waiting"]["requests"] == 0).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn where_the_memory_for_bodies_is_used_up_the_lowest_band_is_refused_first() {
    const BATCH: usize = 19;
    let limits = config(1, &json!({}), &json!({"limits": {"bodyMemory": BATCH * 30_600 + 10_000}}));
    let mut pool = Counted::start_with(1, &limits, &[], envoy().unwrap()).await.unwrap();
    let running = pool.chat("running");
    pool.send(running);
    pool.wait_for(1, 0).await.unwrap();

    let mut batch: JoinSet<_> = (0..BATCH).map(|_| small(&pool, "batch").send()).collect();
    pool.wait_for(1, 19).await.unwrap();
    let refused = small(&pool, "batch").send().await.unwrap();
    assert_refused(refused, 429, "rejected-saturated", "too many bytes of requests wait already").await;

    let mut urgent = JoinSet::from_iter([small(&pool, "interactive").send()]);
    let refused = tokio::time::timeout(LIMIT, batch.join_next()).await.expect("room is made").unwrap();
    let refused = refused.unwrap().unwrap();
    assert_refused(refused, 429, "rejected-saturated", "too many bytes of requests wait already").await;
    pool.wait_for(1, 19).await.unwrap();
    pool.servers[0].release(1);
    assert_eq!(urgent.join_next().await.unwrap().unwrap().unwrap().status(), 200);
    while let Some(response) = batch.join_next().await {
        assert_eq!(response.unwrap().unwrap().status(), 200, "no more than one had to go");
    }
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_a_408_that_leaves_nothing_behind() {
    for mode in ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"] {
        let pool = limited(mode, &json!({"bodyProgressTimeout": "300ms"})).await;
        let mut client = RawClient::connect(&pool.stack.envoy).await;
        client.post(CHAT, "content-length: 1000\r\n").await;
        client.send("{").await;
        let (head, body) = client.response().await;
        assert!(head.starts_with("HTTP/1.1 408"), "{mode}: {head}");
        assert!(body.contains("nothing of the request body arrived for 0.3s"), "{mode}: {body}");

        let pending = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{"))]);
        let body = reqwest::Body::wrap_stream(futures_util::StreamExt::chain(pending, stream::pending()));
        let client = Protocol::Http2.client().unwrap();
        let response = client.post(pool.stack.envoy.url(CHAT)).body(body).send();
        assert_eq!(tokio::time::timeout(LIMIT, response).await.unwrap().unwrap().status(), 408, "{mode}");
        assert_nothing_is_left(&pool).await;
    }
}

/// `bodyProgressTimeout` is for the client alone: a complete body may wait, and the model may take its time.
#[tokio::test]
async fn a_body_that_is_complete_is_waited_for_by_nobody() {
    for mode in ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED", "NONE"] {
        let pool = limited(mode, &json!({"bodyProgressTimeout": "300ms"})).await;
        let lengthless = [chat("hello", 1, false).to_string()].map(Ok::<_, Infallible>);
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            let request = for_millis(post(&client, &pool.stack.envoy.url(CHAT), &chat("hello", 1, false)), 900);
            let chunked =
                request.try_clone().unwrap().body(reqwest::Body::wrap_stream(stream::iter(lengthless.clone())));
            // Both at once: one of them has to wait for the other.
            let (first, second) = tokio::join!(request.send(), chunked.send());
            assert_eq!([first.unwrap().status(), second.unwrap().status()], [200, 200], "{mode}, {protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_body_without_end_is_a_413_that_leaves_nothing_behind() {
    for mode in ["FULL_DUPLEX_STREAMED", "STREAMED"] {
        let pool = limited(mode, &json!({"maxRequestBody": 100_000})).await;
        let mut client = RawClient::connect(&pool.stack.envoy).await;
        client.post(CHAT, "transfer-encoding: chunked\r\n").await;
        for _ in 0..13 {
            client.send(format!("2000\r\n{}\r\n", " ".repeat(8_192))).await;
        }
        let (head, body) = client.response().await;
        assert!(head.starts_with("HTTP/1.1 413"), "{mode}: {head}");
        assert!(body.contains("larger than 100000 bytes"), "{mode}: {body}");

        let endless = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 8_192])));
        let client = Protocol::Http2.client().unwrap();
        let response = client.post(pool.stack.envoy.url(CHAT)).body(reqwest::Body::wrap_stream(endless)).send();
        assert_eq!(tokio::time::timeout(LIMIT, response).await.unwrap().unwrap().status(), 413, "{mode}");
        assert_nothing_is_left(&pool).await;
    }
}

#[tokio::test]
async fn headers_that_are_too_large_are_a_431() {
    let limits = config(1, &json!({}), &json!({"limits": {"maxRequestHeaders": "4Ki"}}));
    let pool = Counted::start_with(1, &limits, &[], envoy().unwrap()).await.unwrap();
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let ask = async |length: usize| {
            let request = post(&client, &pool.stack.envoy.url(CHAT), &chat("hello", 1, false));
            for_millis(request, 1).header("x-long", "y".repeat(length)).send().await.unwrap()
        };
        assert_eq!(ask(2_000).await.status(), 200, "{protocol:?}");
        let response = ask(5_000).await;
        assert_eq!(response.status(), 431, "{protocol:?}");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["message"], "the request headers are larger than 4096 bytes", "{protocol:?}");
        // Beyond its own limit the proxy answers alone, or ends the connection.
        let length = 80 << 10;
        let request = post(&client, &pool.stack.envoy.url(CHAT), &chat("hello", 1, false));
        let response = request.header("x-long", "y".repeat(length)).send().await;
        assert!(response.is_err() || response.is_ok_and(|response| response.status() == 431), "{protocol:?}");
    }
    assert_nothing_is_left(&pool).await;
}
