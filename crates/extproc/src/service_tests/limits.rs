use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use sluice_router::Gatekeeper;

use super::rig::{Picking, request_headers, request_headers_with, request_piece, settings};
use crate::ServiceSettings;

#[tokio::test]
async fn a_message_over_the_limit_is_answered() {
    let picking = Picking::start().await;
    let mut proxy = picking.chat(&"m".repeat(300 << 10)).await.unwrap();
    let (status, body) = proxy.refusal().await;
    assert_eq!(status, 413);
    assert!(body.contains("--grpc-max-recv-msg-size"), "{body}");
    picking.idle().await;
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_answered() {
    let settings = ServiceSettings { body_progress_timeout: Duration::from_millis(50), ..settings() };
    let picking = Picking::start_with(settings, |_| Gatekeeper::Open).await;
    // It is waited for as the proxy says that it sends one.
    let mut proxy = picking.open(vec![request_headers(), request_piece(b"{".to_vec(), false)]).await.unwrap();
    assert_eq!(proxy.refusal().await.0, 408);
    assert!(proxy.replies.message().await.unwrap().is_none());
    picking.idle().await;
}

#[tokio::test]
async fn requests_that_wait_share_a_budget() {
    const HALF: usize = 60 << 10;
    let settings = ServiceSettings { body_memory: 2 * HALF as u64, ..settings() };
    let picking = Picking::start_with(settings, |_| Gatekeeper::Open).await;
    let holder = picking.open_waiting(vec![request_headers(), request_piece(vec![b' '; HALF], false)]).await;
    let mut newcomer = picking.open(vec![request_headers(), request_piece(vec![b' '; HALF], false)]).await.unwrap();
    let (status, body) = newcomer.refusal().await;
    assert_eq!(status, 429, "the headers count as well");
    assert!(body.contains("rejected-saturated"), "{body}");

    holder.abort();
    picking.idle().await;
    let body = format!("{{\"model\":\"m\"{}}}", " ".repeat(2 * HALF - 100)).into_bytes();
    let mut proxy = picking.open(vec![request_headers(), request_piece(body, true)]).await.unwrap();
    proxy.answer().await;
}

/// However small they are.
#[tokio::test]
async fn bodies_of_a_lower_band_are_given_up_for_a_higher_one() {
    for size in [100, 70 << 10] {
        let settings = ServiceSettings { body_memory: 2 * size as u64 + 100, ..settings() };
        let picking = Picking::start_with(settings, |_| Gatekeeper::Open).await;
        let batch = request_headers_with(&[("x-llm-d-inference-objective", "batch")]);
        let holder = picking.open_waiting(vec![batch, request_piece(vec![b' '; size], false)]).await;
        let body = format!("{{\"model\":\"m\"{}}}", " ".repeat(size)).into_bytes();
        let mut newcomer = picking.open(vec![request_headers(), request_piece(body, true)]).await.unwrap();
        assert!(matches!(newcomer.answer().await, Answer::RequestHeaders(_)));
        assert_eq!(holder.await.unwrap().unwrap().refusal().await.0, 429, "{size}");
    }
}
