//! Clients that go away, and a server that does.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use model_server_sim::Settings;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{PATIENCE, TestServer, count, fast};

/// So long that what happens within a second happens within one step.
const STEP: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// One slot, and a first step that does not end while a test runs.
async fn stuck_server() -> TestServer {
    TestServer::start(Settings { max_num_seqs: count(1), time_per_output_token: STEP, ..Settings::default() }).await
}

#[tokio::test]
async fn a_stream_without_a_reader_frees_its_slot_within_the_step() {
    let server = stuck_server().await;
    let mut connection = server.connect().await;
    let response = connection.post("/v1/completions", json!({"prompt": "a", "stream": true})).await;
    assert_eq!(response.status(), 200, "the head comes before the first token");
    assert_eq!(server.stats().running, 1);
    drop((connection, response));
    assert!(server.until(SECOND, |stats| stats.running == 0 && stats.used_blocks == 0).await);
}

#[tokio::test]
async fn a_whole_answer_without_a_reader_frees_its_slot_within_the_step() {
    let server = stuck_server().await;
    let mut connection = server.connect().await;
    let answer = connection.post("/v1/completions", json!({"prompt": "a"}));
    assert!(timeout(Duration::from_millis(100), answer).await.is_err(), "an answer came");
    assert_eq!(server.stats().running, 1);
    drop(connection);
    assert!(server.until(SECOND, |stats| stats.running == 0).await);
}

#[tokio::test]
async fn a_waiting_request_without_a_reader_leaves_the_line() {
    let server = stuck_server().await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    let _running = first.post("/v1/completions", json!({"prompt": "a", "stream": true})).await;
    let waiting = second.post("/v1/completions", json!({"prompt": "a", "stream": true})).await;
    assert_eq!((server.stats().running, server.stats().waiting), (1, 1));
    drop((second, waiting));
    assert!(server.until(SECOND, |stats| stats.waiting == 0).await);
    assert_eq!(server.stats().running, 1);
}

#[tokio::test]
async fn a_reset_stream_of_http2_frees_its_slot_while_the_connection_lives() {
    let server = stuck_server().await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, driver) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(driver);
    for (body, whole) in [(json!({"prompt": "a", "stream": true}), false), (json!({"prompt": "a"}), true)] {
        let request = Request::post("http://test/v1/completions").body(Full::new(Bytes::from(body.to_string())));
        let response = timeout(Duration::from_millis(100), sender.send_request(request.unwrap())).await;
        assert_eq!(response.is_err(), whole, "only the head of a stream comes before the first token");
        // The second one waits for the end of the step that the first one was in.
        assert_eq!(server.stats().running + server.stats().waiting, 1);
        drop(response);
        assert!(server.until(SECOND, |stats| stats.running + stats.waiting == 0).await);
    }
    assert!(!sender.is_closed());
}

#[tokio::test]
async fn a_cut_in_mid_stream_leaves_nothing_behind() {
    let server = TestServer::start(Settings { time_per_output_token: Duration::from_millis(2), ..fast() }).await;
    let request = json!({"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": 10_000});
    for frames in 1..20 {
        let mut connection = server.connect().await;
        let mut response = connection.post("/v1/completions", request.clone()).await;
        for _ in 0..frames {
            timeout(PATIENCE, response.frame()).await.expect("a token").unwrap().unwrap();
        }
    }
    assert!(server.until(SECOND, |stats| stats.running == 0 && stats.used_blocks == 0).await);
}

#[tokio::test]
async fn a_server_that_is_dropped_cuts_its_streams() {
    let server = TestServer::start(Settings { time_per_output_token: Duration::from_millis(2), ..fast() }).await;
    let address = server.address;
    let mut connection = server.connect().await;
    let request = json!({"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": 10_000});
    let mut response = connection.post("/v1/completions", request).await;
    timeout(PATIENCE, response.frame()).await.expect("a token").unwrap().unwrap();
    server.stop().await;
    let end = timeout(PATIENCE, response.collect()).await.expect("an end");
    assert!(end.is_err(), "a cut stream must not look complete");
    assert!(TcpStream::connect(address).await.is_err());
}
