//! Bodies arrive as they were sent, whatever their size and however they are cut.

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use sluice_testkit::{Protocol, Reply, RequestBody, ResponseEnd};

use crate::support::{CHAT, LIMIT, MODEL, Recorded, recorded};

/// Around the sizes at which the picker cuts a body into pieces (62,000 bytes) and Envoy into messages (64 KiB).
const SIZES: [usize; 9] = [1, 61_999, 62_000, 62_001, 124_000, 124_001, 131_072, 1 << 20, 16 << 20];

/// Bytes in which no part looks like another.
fn noise(length: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(length).collect()
}

/// A chat of exactly `length` bytes with letters in which no part looks like another; `None` if it cannot be so short.
pub(crate) fn chat_of(length: usize) -> Option<Bytes> {
    let head = format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":""#);
    let tail = r#""}]}"#;
    let letters = noise(length.checked_sub(head.len() + tail.len())?);
    let letters = letters.iter().map(|byte| b'a' + byte % 26);
    Some(head.bytes().chain(letters).chain(tail.bytes()).collect())
}

/// Sends `body`. Fails unless it was the same at the model server, and again when it came back.
async fn round_trip(recorded: &Recorded, protocol: Protocol, path: &str, body: Bytes) -> Result<()> {
    let request = protocol.client()?.post(recorded.stack.envoy.url(path));
    let response = request.header("content-type", "application/json").body(body.clone()).send().await?;
    let echo = response.error_for_status()?.bytes().await?;
    let arrived = recorded.server.find(LIMIT, |request| request.uri == *path && request.body().is_some()).await?;
    ensure!(arrived.body() == Some(&body), "{protocol:?} {path} changed on the way to the model server");
    ensure!(echo == body, "{protocol:?} {path} changed on the way back");
    Ok(())
}

#[tokio::test]
async fn raw_bytes_of_any_size_are_equal_at_both_ends() {
    let recorded = recorded().await.unwrap();
    for protocol in Protocol::ALL {
        for size in SIZES {
            let path = format!("/raw/{protocol:?}/{size}");
            round_trip(&recorded, protocol, &path, noise(size)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn chats_of_any_size_are_equal_at_both_ends() {
    let recorded = recorded().await.unwrap();
    for protocol in Protocol::ALL {
        for (size, body) in SIZES.into_iter().filter_map(|size| Some((size, chat_of(size)?))) {
            let path = format!("{CHAT}?{protocol:?}-{size}");
            round_trip(&recorded, protocol, &path, body).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_body_that_comes_in_pieces_is_put_together() {
    let recorded = recorded().await.unwrap();
    let body = noise(200_000);
    for protocol in Protocol::ALL {
        let path = format!("/pieces/{protocol:?}");
        let mut rest = body.clone();
        let mut pieces = Vec::new();
        for size in [1, 0, 61_999, 1, 70_000, 2] {
            pieces.push(Ok::<_, std::io::Error>(rest.split_to(size)));
        }
        pieces.push(Ok(rest));
        let paced = stream::unfold(pieces.into_iter(), |mut pieces| async {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            Some((pieces.next()?, pieces))
        });
        let request = protocol.client().unwrap().post(recorded.stack.envoy.url(&path));
        let response = request.body(reqwest::Body::wrap_stream(paced)).send().await.unwrap();
        assert!(response.bytes().await.unwrap() == body, "{protocol:?}");
    }
}

#[tokio::test]
async fn trailers_end_a_body_and_pass_in_both_directions() {
    let recorded = recorded().await.unwrap();
    for protocol in Protocol::ALL {
        let path = format!("/trailers/{protocol:?}");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-request-sum", "12".parse().unwrap());
        let frames = [Frame::data(Bytes::from_static(b"hello")), Frame::trailers(trailers.clone())];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, std::io::Error>)));

        let reply = Reply::Trailers { body: "bye".into(), name: "x-response-sum".into(), value: "34".into() };
        let (name, value) = reply.header().unwrap();
        let request = protocol.client().unwrap().post(recorded.stack.envoy.url(&path)).header(name, value);
        let request = request.header("te", "trailers").header("trailer", "x-request-sum");
        let response = request.body(reqwest::Body::wrap(body)).send().await.unwrap();

        let response = http::Response::<reqwest::Body>::from(response).into_body().collect().await.unwrap();
        assert_eq!(response.trailers().unwrap()["x-response-sum"], "34", "{protocol:?}");
        assert_eq!(response.to_bytes(), "bye");
        let arrived = recorded.server.find(LIMIT, |r| r.uri == *path && r.response == ResponseEnd::Complete);
        let arrived = arrived.await.unwrap();
        let expected = RequestBody::Complete { bytes: Bytes::from_static(b"hello"), trailers: Some(trailers) };
        assert_eq!(arrived.request_body, expected, "{protocol:?}");
    }
}

#[tokio::test]
async fn requests_without_a_body_keep_their_method() {
    let recorded = recorded().await.unwrap();
    for protocol in Protocol::ALL {
        for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
            let path = format!("/bodiless/{protocol:?}/{method}");
            let method = method.parse::<reqwest::Method>().unwrap();
            let client = protocol.client().unwrap();
            let response = client.request(method.clone(), recorded.stack.envoy.url(&path)).send().await.unwrap();
            assert_eq!(response.status(), 200, "{protocol:?} {method}");
            let arrived = recorded.server.find(LIMIT, |request| request.uri == *path).await.unwrap();
            assert_eq!(arrived.method, method);
        }
    }
}
