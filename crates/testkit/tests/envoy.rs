//! The launcher and the templates with a real Envoy, and the recording upstream behind it.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::json;
use sluice_testkit::{Envoy, EnvoyConfig, Protocol, RecordingUpstream, Reply, ResponseEnd, SseEvents, Template};
use sluice_testkit::{eventually, unused_address};

const LIMIT: Duration = Duration::from_secs(10);
const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Envoy without a picker: the client names the destination.
async fn envoy_alone() -> Result<Envoy> {
    let mut config = EnvoyConfig::from_template(Template::FullDuplex)?;
    config.without_picker()?;
    Envoy::start(&config).await
}

#[test]
fn envoy_accepts_the_templates_as_they_stand() {
    for template in Template::ALL {
        Envoy::validate(&template.path()).unwrap();
    }
}

#[test]
fn envoy_refuses_a_broken_file_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broken.yaml");
    std::fs::write(&path, "static_resources: {listeners: [{name: x}]}").unwrap();
    let message = Envoy::validate(&path).unwrap_err().to_string();
    assert!(message.contains("broken.yaml"), "{message}");
}

#[tokio::test]
async fn requests_reach_the_upstream_unchanged_and_are_recorded() {
    let envoy = envoy_alone().await.unwrap();
    let upstream = RecordingUpstream::start(Reply::Echo).unwrap();
    for protocol in Protocol::ALL {
        let path = format!("/raw?by={protocol:?}");
        let body = Bytes::from(vec![7_u8; 200_000]);
        let request = protocol.client().unwrap().post(envoy.url(&path));
        let request = request.header(DESTINATION, upstream.address().to_string()).body(body.clone());
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.bytes().await.unwrap(), body);
        let recorded =
            upstream.find(LIMIT, |request| request.response == ResponseEnd::Complete && request.uri == *path);
        assert_eq!(recorded.await.unwrap().body(), Some(&body));
    }
}

#[tokio::test]
async fn a_reply_can_be_chosen_per_request() {
    let envoy = envoy_alone().await.unwrap();
    let upstream = RecordingUpstream::start(Reply::Echo).unwrap();
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let send = async |reply: Reply| {
            let (name, value) = reply.header().unwrap();
            let request = client.post(envoy.url("/")).header(name, value).header("te", "trailers");
            request.header(DESTINATION, upstream.address().to_string()).body("hello").send().await.unwrap()
        };

        let refused = send(Reply::Status(418, json!({"error": "teapot"}))).await;
        assert_eq!(refused.status(), 418);
        assert_eq!(refused.text().await.unwrap(), r#"{"error":"teapot"}"#);

        let events = SseEvents::of(send(Reply::Events { count: 2, pause_ms: 5 }).await);
        assert_eq!(events.collect().await.unwrap(), [r#"{"event": 0}"#, r#"{"event": 1}"#, "[DONE]"]);

        let mut cut = SseEvents::of(send(Reply::CutEvents { count: 1, pause_ms: 20 }).await);
        assert_eq!(cut.next().await.unwrap().as_deref(), Some(r#"{"event": 0}"#));
        assert!(cut.next().await.is_err(), "{protocol:?}: a cut looks like an end");

        let trailers = Reply::Trailers { body: "b".into(), name: "x-sum".into(), value: "1".into() };
        let response = http::Response::<reqwest::Body>::from(send(trailers).await);
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["x-sum"], "1", "{protocol:?}");
        assert_eq!(body.to_bytes(), "b");
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_at_the_upstream() {
    let envoy = envoy_alone().await.unwrap();
    let upstream = RecordingUpstream::start(Reply::Events { count: 1000, pause_ms: 20 }).unwrap();
    for protocol in Protocol::ALL {
        let path = format!("/{protocol:?}");
        let request = protocol.client().unwrap().get(envoy.url(&path));
        let response = request.header(DESTINATION, upstream.address().to_string()).send().await.unwrap();
        let mut events = SseEvents::of(response);
        events.next().await.unwrap();
        drop(events);
        upstream.find(LIMIT, |r| r.uri.path() == path && r.response == ResponseEnd::Aborted).await.unwrap();
    }
}

#[tokio::test]
async fn an_upstream_that_is_down_is_a_503_and_envoy_counts_it() {
    let envoy = envoy_alone().await.unwrap();
    let request = Protocol::Http1.client().unwrap().get(envoy.url("/"));
    let response = request.header(DESTINATION, unused_address().unwrap().to_string()).send().await.unwrap();
    assert_eq!(response.status(), 503);
    eventually(LIMIT, "Envoy counts the failed connection", async || {
        let labels = [("envoy_cluster_name", "model_servers")];
        let failed = envoy.stats().await?.sum("envoy_cluster_upstream_cx_connect_fail", &labels);
        Ok(failed.filter(|failed| *failed >= 1.0))
    })
    .await
    .unwrap();
}
