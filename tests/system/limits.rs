//! The limits of the section `sluice.limits`, as clients meet them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use sluice_testkit::{Part, Protocol, eventually};
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

/// A request with a body of this size, whose length is announced or not.
async fn send_body(pool: &Counted, protocol: Protocol, length: usize, is_announced: bool) -> (u16, String) {
    let body = chat(&"x".repeat(length), 1, false).to_string();
    let request = post(&protocol.client().unwrap(), &pool.stack.envoy.url(CHAT), &json!({}));
    let request = if is_announced {
        request.body(body)
    } else {
        request.body(reqwest::Body::wrap_stream(stream::iter([Ok::<_, Infallible>(body)])))
    };
    let response = tokio::time::timeout(LIMIT, for_millis(request, 1).send()).await.unwrap().unwrap();
    assert!(response.status() != 413 || !response.headers().contains_key("retry-after"));
    (response.status().as_u16(), response.text().await.unwrap())
}

/// Trying again would be no use, so that it is not told to.
#[tokio::test]
async fn what_could_never_be_taken_is_a_413_that_names_the_limit_however_full_the_queue_is() {
    let limits = json!({"maxRequestBody": 300_000, "bodyMemory": 200_000});
    let flow = json!({"defaultPriorityBand": {"maxRequests": 1, "maxBytes": 100_000}});
    for mode in ["FULL_DUPLEX_STREAMED", "BUFFERED", "NONE"] {
        let config = config(1, &flow, &json!({ "limits": limits }));
        let mut pool = Counted::start_with(1, &config, &[], with_modes(mode, "NONE").unwrap()).await.unwrap();
        let is_held = mode != "NONE";
        for is_full in [false, true] {
            if is_full {
                for waiting in [0, 1] {
                    let request = pool.chat("before");
                    pool.send(request);
                    pool.wait_for(1, waiting).await.unwrap();
                }
            }
            for protocol in Protocol::ALL {
                for (length, named) in [(150_000, "maxBytes"), (250_000, "bodyMemory"), (350_000, "maxRequestBody")] {
                    let (status, body) = send_body(&pool, protocol, length, true).await;
                    let case = format!("{mode}, {protocol:?}, full: {is_full}, {named}: {status} {body}");
                    match (length, is_held) {
                        // Whatever is announced, the picker holds nothing of it.
                        (..=300_000, false) => assert_eq!(status, if is_full { 429 } else { 200 }, "{case}"),
                        (300_001.., true) => assert!(status == 413 && body.contains("bodyMemory"), "{case}"),
                        _ => assert!(status == 413 && body.contains(named), "{case}"),
                    }
                }
                let (status, body) = send_body(&pool, protocol, 1_000, true).await;
                assert_eq!(status, if is_full { 429 } else { 200 }, "{mode}, {protocol:?}: {body}");
                if is_held && !is_full {
                    let (status, body) = send_body(&pool, protocol, 150_000, false).await;
                    assert!(status == 413 && body.contains("larger than 100000 bytes (maxBytes)"), "{mode}: {body}");
                }
            }
        }
        pool.hang_up().await.unwrap();
        assert_nothing_is_left(&pool).await;
    }
}

#[tokio::test]
async fn more_lines_of_headers_than_a_thousand_are_a_431() {
    let mut proxy = envoy().unwrap();
    // Its own limit is 100.
    proxy.put(Part::ConnectionManager, "common_http_protocol_options", json!({"max_headers_count": 5_000})).unwrap();
    let pool = Counted::start_with(1, &config(1, &json!({}), &json!({})), &[], proxy).await.unwrap();
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        for (lines, expected) in [(90, 200), (1_100, 431)] {
            let request = post(&client, &pool.stack.envoy.url(CHAT), &chat("hello", 1, false));
            let request = (0..lines).fold(for_millis(request, 1), |request, _| request.header("x-many", "y"));
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), expected, "{protocol:?}, {lines}");
            let said = response.text().await.unwrap().contains("more than 1000 header lines");
            assert_eq!(said, expected == 431, "{protocol:?}: the model server has a limit of its own");
        }
    }
    assert_nothing_is_left(&pool).await;
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
        let said = "the request headers are larger than 4096 bytes (maxRequestHeaders)";
        assert_eq!(body["error"]["message"], said, "{protocol:?}");
        // Beyond its own limit the proxy answers alone, or ends the connection.
        let length = 80 << 10;
        let request = post(&client, &pool.stack.envoy.url(CHAT), &chat("hello", 1, false));
        let response = request.header("x-long", "y".repeat(length)).send().await;
        assert!(response.is_err() || response.is_ok_and(|response| response.status() == 431), "{protocol:?}");
    }
    assert_nothing_is_left(&pool).await;
}
