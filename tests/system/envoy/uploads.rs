//! Requests that are answered while their bodies are still on the way.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use sluice_testkit::{EnvoyConfig, Part, PickerConfig, Protocol, RecordingUpstream, Reply, Stack, Template};

use crate::raw::RawClient;
use crate::support::{CHAT, LIMIT, WHOLE_REQUESTS, picker, recorded};

/// A picker that takes bodies of at most 64 KiB.
async fn strict(server: &RecordingUpstream, envoy: EnvoyConfig) -> Stack {
    let config = |endpoints: &std::path::Path| {
        let mut config = PickerConfig::standalone(endpoints)?;
        config.add("", "sluice", json!({"limits": {"maxRequestBody": "64Ki"}}))?;
        Ok(config)
    };
    Stack::start_configured(picker(), &[], config, envoy, &[server.address()]).await.unwrap()
}

/// A body without end.
fn endless(pause: Duration) -> reqwest::Body {
    let pieces = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 8_192])));
    reqwest::Body::wrap_stream(pieces.then(move |piece| async move {
        tokio::time::sleep(pause).await;
        piece
    }))
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_is_still_uploading() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for template in WHOLE_REQUESTS {
        let mut envoy = EnvoyConfig::from_template(template).unwrap();
        // The time in which an HTTP/1.1 client has to read its answer: the 100 ms of the templates are short for a machine
        // that runs many tests.
        envoy.put(Part::ConnectionManager, "delayed_close_timeout", "3s").unwrap();
        let stack = strict(&server, envoy).await;
        for pause in [Duration::ZERO, Duration::from_millis(5)] {
            let mut client = RawClient::connect(&stack.envoy).await;
            client.post(CHAT, "content-length: 16777216\r\n").await;
            for _ in 0..10 {
                client.send(vec![b' '; 8_192]).await;
                tokio::time::sleep(pause).await;
            }
            let (head, body) = client.response().await;
            assert!(head.starts_with("HTTP/1.1 413") && head.contains("connection: close"), "{template:?}: {head}");
            assert!(body.contains("larger than 65536 bytes"), "{template:?}: {body}");
            client.closed().await;

            let client = Protocol::Http2.client().unwrap();
            let upload = client.post(stack.envoy.url(CHAT)).body(endless(pause)).send();
            let response = tokio::time::timeout(LIMIT, upload).await.expect("an answer in time").unwrap();
            assert_eq!(response.status(), 413, "{template:?}");
            // Its connection can still be used.
            let next = client.post(stack.envoy.url("/raw")).body("small").send().await.unwrap();
            assert_eq!(next.text().await.unwrap(), "small", "{template:?}");
        }
        let stats = stack.envoy.stats().await.unwrap();
        let connections =
            stats.count("envoy_http_downstream_cx_http2_total", &[("envoy_http_conn_manager_prefix", "inference")]);
        assert_eq!(connections, Some(2), "{template:?}: one for each client");
    }
    assert!(server.requests().iter().all(|request| request.uri == "/raw"));
}

#[tokio::test]
async fn a_client_that_reads_late_gets_its_refusal_if_envoy_waits_for_it() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    let mut envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    envoy.put(Part::ConnectionManager, "delayed_close_timeout", "10s").unwrap();
    let stack = strict(&server, envoy).await;
    let mut client = RawClient::connect(&stack.envoy).await;
    client.post(CHAT, "content-length: 16777216\r\n").await;
    for _ in 0..40 {
        client.send(vec![b' '; 8_192]).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (head, _) = client.response().await;
    assert!(head.starts_with("HTTP/1.1 413"), "{head}");
}

#[tokio::test]
async fn a_refusal_after_the_body_leaves_the_connection_usable() {
    for template in WHOLE_REQUESTS {
        let stack = Stack::start(picker(), template, &[]).await.unwrap();
        let mut client = RawClient::connect(&stack.envoy).await;
        for _ in 0..3 {
            client.chat("").await;
            let (head, _) = client.response().await;
            assert!(head.starts_with("HTTP/1.1 503") && !head.contains("connection: close"), "{template:?}: {head}");
        }
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_is_asked_for_its_body_at_once() {
    let recorded = recorded().await.unwrap();
    let mut client = RawClient::connect(&recorded.stack.envoy).await;
    client.post("/expects", "content-length: 5\r\nexpect: 100-continue\r\n").await;
    let head = client.head().await;
    assert_eq!(head, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello").await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let arrived = recorded.server.find(LIMIT, |request| request.uri == "/expects").await.unwrap();
    assert!(!arrived.headers.contains_key("expect"));
    assert_eq!(arrived.body().unwrap(), "hello");
}
