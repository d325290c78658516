//! What a client is told when its request is not served.

use reqwest::Response;
use serde_json::Value;
use sluice_testkit::{Protocol, RecordingUpstream, Reply, Stack, Template, eventually};

use crate::support::{CHAT, LIMIT, chat, picker, post, recorded};

const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";

fn assert_no_endpoints(response: &Response, context: &str) {
    assert_eq!(response.status(), 503, "{context}");
    assert_eq!(response.headers()[DROPPED_REASON], "rejected-no-endpoints", "{context}");
}

#[tokio::test]
async fn an_empty_pool_is_a_503_with_the_reason_until_it_fills() {
    let stack = Stack::start(picker(), Template::FullDuplex, &[]).await.unwrap();
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let context = format!("{protocol:?}");

        let response = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, true)).send().await.unwrap();
        assert_no_endpoints(&response, &context);
        assert_eq!(response.headers()["content-type"], "application/json");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], "rejected-no-endpoints", "{context}: {body}");
        assert!(body["error"]["message"].is_string(), "{context}: {body}");

        let raw = client.post(stack.envoy.url("/raw")).body("hello").send().await.unwrap();
        assert_no_endpoints(&raw, &context);
        assert_eq!(
            raw.headers()["content-type"],
            "application/json",
            "{context}: also where nothing is known of the API"
        );
        let bodiless = client.get(stack.envoy.url("/v1/models")).send().await.unwrap();
        assert_no_endpoints(&bodiless, &context);
        let large = client.post(stack.envoy.url("/raw")).body(vec![1; 1 << 20]).send().await.unwrap();
        assert_no_endpoints(&large, &context);
    }

    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    stack.endpoints.replace(&[server.address()]).unwrap();
    let client = Protocol::Http1.client().unwrap();
    eventually(LIMIT, "the new endpoint serves", async || {
        let response = client.post(stack.envoy.url("/raw")).body("hello").send().await?;
        Ok((response.status() == 200).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_chat_that_cannot_be_read_is_a_400_that_says_where() {
    let recorded = recorded().await.unwrap();
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let path = format!("{CHAT}?unreadable-{protocol:?}");
        for body in [r#"{"model": "m", "secret-key": ]"#, r#"{"messages": []}"#, ""] {
            let request = client.post(recorded.stack.envoy.url(&path)).header("content-type", "application/json");
            let response = request.body(body).send().await.unwrap();
            assert_eq!(response.status(), 400, "{protocol:?} {body:?}");
            let text = response.text().await.unwrap();
            assert!(text.contains("error") && !text.contains("secret-key"), "{protocol:?} {body:?}: {text}");
        }
        assert!(!recorded.server.requests().iter().any(|request| request.uri == *path));
    }
}
