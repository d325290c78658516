//! Connections that go on with another protocol, and errors of a model server in both templates.

use std::net::SocketAddr;
use std::time::Duration;

use sluice_testkit::{Stack, Template, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{CHAT, LIMIT, chat, picker, post};

/// Reads up to the empty line that ends a head.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(LIMIT, stream.read_u8()).await.expect("the head ends in time").expect("the head ends"));
    }
    String::from_utf8(head).expect("a head is text")
}

/// A model server that answers the head of each connection with `answer`, and then says back what it hears.
async fn server(answer: &'static str, servers: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a listener has an address");
    servers.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                head(&mut stream).await;
                stream.write_all(answer.as_bytes()).await.expect("the proxy listens");
                let (mut reader, mut writer) = stream.split();
                drop(tokio::io::copy(&mut reader, &mut writer).await);
            });
        }
    });
    address
}

#[tokio::test]
async fn a_websocket_reaches_the_model_server_and_back_without_a_body_to_wait_for() {
    let mut servers = JoinSet::new();
    let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let address = server(answer, &mut servers).await;
    for template in [Template::FullDuplex, Template::ResponseBypass] {
        let stack = Stack::start(picker(), template, &[address]).await.unwrap();
        let url = stack.envoy.url("/v1/realtime");
        let authority = url.trim_start_matches("http://").split('/').next().unwrap().to_owned();
        let mut client = TcpStream::connect(&authority).await.unwrap();
        let request = format!(
            "GET /v1/realtime HTTP/1.1\r\nhost: {authority}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: x3JJHMbDL1EzLkh9GBhXDw==\r\nsec-websocket-version: 13\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{template:?}: {head}");
        for word in ["ping", "pong"] {
            client.write_all(word.as_bytes()).await.unwrap();
            let mut heard = [0; 4];
            timeout(LIMIT, client.read_exact(&mut heard)).await.expect("an echo in time").unwrap();
            assert_eq!(heard, word.as_bytes(), "{template:?}");
        }
    }
}

#[tokio::test]
async fn errors_of_the_model_server_are_counted_in_both_templates() {
    let mut servers = JoinSet::new();
    let answer = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let address = server(answer, &mut servers).await;
    for template in [Template::FullDuplex, Template::ResponseBypass] {
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
