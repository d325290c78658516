//! What a gRPC client is told when its request is not served.

use reqwest::Response;
use serde_json::json;
use sluice_testkit::{Protocol, Stack};

use crate::flow::support::{Counted, DROPPED_REASON, config};
use crate::support::{TEMPLATES, picker};

const METHOD: &str = "/vllm.grpc.engine.VllmEngine/Generate";

/// Calls a method with an empty message.
async fn call(url: String, content_type: &str) -> Response {
    let request = Protocol::Http2.client().unwrap().post(url).header("content-type", content_type);
    request.header("te", "trailers").body([0; 5].to_vec()).send().await.unwrap()
}

fn assert_told(response: &Response, grpc_status: &str, reason: &str) {
    assert_eq!(response.status(), 200);
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("content-type"), Some("application/grpc"));
    assert_eq!((header("grpc-status"), header(DROPPED_REASON)), (Some(grpc_status), Some(reason)));
    assert!(header("grpc-message").is_some_and(|message| !message.is_empty()), "{response:?}");
}

#[tokio::test]
async fn a_grpc_client_is_refused_with_a_grpc_status() {
    for template in TEMPLATES {
        let stack = Stack::start(picker(), template, &[]).await.unwrap();
        let response = call(stack.envoy.url(METHOD), "application/grpc").await;
        assert_told(&response, "14", "rejected-no-endpoints");
        // Not gRPC to Envoy: a plain status.
        let response = call(stack.envoy.url(METHOD), "application/grpc-web+proto").await;
        assert_eq!(response.status(), 503, "{template:?}");
        assert!(!response.headers().contains_key("grpc-status"), "{template:?}");
    }
}

#[tokio::test]
async fn a_grpc_client_that_finds_the_queue_full_is_told_that_resources_are_exhausted() {
    let band = json!({"maxRequests": 1});
    let mut pool = Counted::start(1, &config(1, &json!({"defaultPriorityBand": band}), &json!({}))).await.unwrap();
    for (open, waiting) in [(1, 0), (1, 1)] {
        let request = pool.chat("before");
        pool.send(request);
        pool.wait_for(open, waiting).await.unwrap();
    }
    let response = call(pool.stack.envoy.url(METHOD), "application/grpc").await;
    assert_told(&response, "8", "rejected-saturated");
    assert!(response.headers().contains_key("retry-after"));
}
