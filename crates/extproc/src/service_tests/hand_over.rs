use sluice_data::EndpointTable;
use sluice_flow::Signal;
use sluice_router::Gatekeeper;
use sluice_router::admission::Admission;
use tonic::Code;

use super::rig::{Picking, Proxy, one_at_a_time, request_body, request_headers, request_piece, settings};
use crate::ServiceSettings;

/// A picker whose two endpoints take one request each.
async fn full_picking(hand_over: bool) -> (Picking, Admission, [Proxy; 2]) {
    let mut kept = None;
    let gatekeeper = |table: &EndpointTable| {
        let admission = one_at_a_time(table);
        kept = Some(admission.clone());
        Gatekeeper::FlowControl(admission)
    };
    let settings = ServiceSettings { hand_over, ..settings() };
    let picking = Picking::start_with(settings, gatekeeper).await;
    let running = [picking.chat("m").await.unwrap(), picking.chat("m").await.unwrap()];
    assert_eq!(picking.in_flight(), [1, 1]);
    (picking, kept.unwrap(), running)
}

#[tokio::test]
async fn what_waits_when_the_process_ends_is_left_to_another_picker() {
    let (picking, admission, running) = full_picking(true).await;
    let queued = picking.open_waiting(vec![request_headers(), request_body(r#"{"model":"m"}"#)]).await;
    let reading = picking.open_waiting(vec![request_headers(), request_piece(b"{".to_vec(), false)]).await;
    picking.service.stop_reading();
    admission.observe(Signal::Drain);
    for waiting in [queued, reading] {
        // Without response headers: that is what lets a proxy try again elsewhere.
        let status = waiting.await.unwrap().unwrap_err();
        assert_eq!((status.code(), status.metadata().get("content-type").is_some()), (Code::Unavailable, true));
        assert!(status.message().contains("handed over"), "{status:?}");
    }
    let status = picking.chat("m").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "nor does anything new stay");
    assert!(picking.errors("*").abs() < f64::EPSILON, "nobody has failed");

    assert_eq!(picking.in_flight(), [1, 1], "what runs goes on");
    drop(running);
    picking.idle().await;
}

#[tokio::test]
async fn what_waits_when_the_process_ends_is_refused_unless_configured_otherwise() {
    let (picking, admission, running) = full_picking(false).await;
    let queued = picking.open_waiting(vec![request_headers(), request_body(r#"{"model":"m"}"#)]).await;
    let reading = picking.open_waiting(vec![request_headers(), request_piece(b"{".to_vec(), false)]).await;
    picking.service.stop_reading();
    admission.observe(Signal::Drain);
    for waiting in [queued, reading] {
        let (status, body) = waiting.await.unwrap().unwrap().refusal().await;
        assert_eq!(status, 503);
        assert!(body.contains("rejected-shutting-down"), "{body}");
    }
    drop(running);
    picking.idle().await;
}

#[tokio::test]
async fn what_the_proxy_no_longer_has_whole_is_refused_rather_than_left_to_another_picker() {
    let (picking, admission, running) = full_picking(true).await;
    let long = |bytes: usize| format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(bytes));
    let queued = picking.open_waiting(vec![request_headers(), request_body(&long(70_000))]).await;
    let half_read = long(70_000).into_bytes();
    let reading = picking.open_waiting(vec![request_headers(), request_piece(half_read, false)]).await;
    let short = picking.open_waiting(vec![request_headers(), request_body(&long(40_000))]).await;
    picking.service.stop_reading();
    admission.observe(Signal::Drain);
    for waiting in [queued, reading] {
        let (status, body) = waiting.await.unwrap().unwrap().refusal().await;
        assert_eq!(status, 503);
        assert!(body.contains("rejected-shutting-down"), "{body}");
    }
    assert_eq!(short.await.unwrap().unwrap_err().code(), Code::Unavailable);
    drop(running);
    picking.idle().await;
}
