//! Connections that go on with another protocol, and errors of a model server in both templates.

use std::time::Duration;

use sluice_testkit::{Stack, eventually};
use tokio::task::JoinSet;

use crate::raw::{RawClient, Then, server};
use crate::support::{CHAT, TEMPLATES, chat, picker, post};

#[tokio::test]
async fn a_websocket_reaches_the_model_server_and_back_without_a_body_to_wait_for() {
    let mut servers = JoinSet::new();
    let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let address = server("127.0.0.1", answer, Then::Echo, &mut servers).await;
    for template in TEMPLATES {
        let stack = Stack::start(picker(), template, &[address]).await.unwrap();
        let mut client = RawClient::connect(&stack.envoy).await;
        let request = "GET /v1/realtime HTTP/1.1\r\nhost: gateway\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: x3JJHMbDL1EzLkh9GBhXDw==\r\nsec-websocket-version: 13\r\n\r\n";
        client.send(request).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 101"), "{template:?}: {head}");
        for word in ["ping", "pong"] {
            client.send(word).await;
            let heard = client.exactly(4).await;
            assert_eq!(heard, word.as_bytes(), "{template:?}");
        }
    }
}

#[tokio::test]
async fn errors_of_the_model_server_are_counted_in_both_templates() {
    let mut servers = JoinSet::new();
    let answer = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let address = server("127.0.0.1", answer, Then::Echo, &mut servers).await;
    for template in TEMPLATES {
        let stack = Stack::start(picker(), template, &[address]).await.unwrap();
        let client = sluice_testkit::Protocol::Http1.client().unwrap();
        for _ in 0..5 {
            let response = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false)).send().await.unwrap();
            assert_eq!(response.status(), 500, "{template:?}");
        }
        eventually(Duration::from_secs(5), "five errors of the model server are counted", async || {
            let page = stack.picker.metrics().await?;
            let counted = page.count("llm_d_epp_request_error_total", &[("error_code", "ModelServerError")]);
            Ok((counted == Some(5)).then_some(()))
        })
        .await
        .unwrap();
    }
}
