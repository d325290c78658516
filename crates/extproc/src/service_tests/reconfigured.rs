//! Another configuration comes into force while streams are open.

use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use sluice_flow::{EvictionConfig, Signal};
use sluice_router::Gatekeeper;

use super::rig::{
    Picking, one_at_a_time, one_at_a_time_config, request_body, request_headers, request_piece, settings,
};
use crate::{MidStream, ServiceSettings};

const CHAT: &str = r#"{"model":"m"}"#;

#[tokio::test]
async fn a_stream_keeps_the_limits_that_it_began_with() {
    let picking = Picking::start().await;
    let body = |length: usize| format!("{{\"model\":\"m\"{}}}", " ".repeat(length)).into_bytes();
    let waiting = picking.open_waiting(vec![request_headers(), request_piece(body(1_000), false)]);
    let old = waiting.await;
    picking.reconfigure(ServiceSettings { max_request_body: 100, body_progress_timeout: Duration::ZERO, ..settings() });
    let mut new = picking.open(vec![request_headers(), request_piece(body(1_000), true)]).await.unwrap();
    assert_eq!(new.refusal().await.0, 413);
    assert!(!old.is_finished(), "it still waits for the rest");
    old.abort();

    let mut small = picking.open(vec![request_headers(), request_body(CHAT)]).await.unwrap();
    assert!(matches!(small.answer().await, Answer::RequestHeaders(_)));
    picking.reconfigure(settings());
    let mut large = picking.open(vec![request_headers(), request_piece(body(1_000), true)]).await.unwrap();
    assert!(matches!(large.answer().await, Answer::RequestHeaders(_)));
}

#[tokio::test]
async fn larger_messages_are_taken_from_then_on() {
    let picking = Picking::start().await;
    let body = format!("{{\"model\":\"m\"{}}}", " ".repeat(300 << 10));
    let chat = || picking.open(vec![request_headers(), request_body(&body)]);
    assert_eq!(chat().await.unwrap().refusal().await.0, 413);
    picking.reconfigure(ServiceSettings { max_message: 400 << 10, ..settings() });
    let mut proxy = chat().await.unwrap();
    assert!(matches!(proxy.answer().await, Answer::RequestHeaders(_)));
}

#[tokio::test]
async fn a_smaller_budget_takes_nothing_from_those_who_hold() {
    const SIZE: usize = 50 << 10;
    let picking = Picking::start().await;
    let hold = || picking.open_waiting(vec![request_headers(), request_piece(vec![b' '; SIZE], false)]);
    let holder = hold().await;
    picking.reconfigure(ServiceSettings { body_memory: SIZE as u64, ..settings() });
    let mut newcomer = picking.open(vec![request_headers(), request_body(CHAT)]).await.unwrap();
    assert_eq!(newcomer.refusal().await.0, 429);
    assert!(!holder.is_finished());
    holder.abort();
    picking.idle().await;
    let mut newcomer = picking.open(vec![request_headers(), request_body(CHAT)]).await.unwrap();
    assert!(matches!(newcomer.answer().await, Answer::RequestHeaders(_)));
}

/// What they are told by depends on what they began with; that they go does not.
#[tokio::test]
async fn streams_that_began_without_eviction_make_room_once_it_is_on() {
    let mut kept = None;
    let picking = Picking::start_with(settings(), |table| {
        let admission = one_at_a_time(table);
        kept = Some(admission.clone());
        Gatekeeper::FlowControl(admission)
    });
    let (picking, admission) = (picking.await, kept.unwrap());
    let mut batch = [picking.batch_chat().await.unwrap(), picking.batch_chat().await.unwrap()];
    for proxy in &mut batch {
        assert!(matches!(proxy.answer().await, Answer::RequestHeaders(_)));
        assert!(matches!(proxy.answer().await, Answer::RequestBody(_)));
    }
    let waiting = picking.open_waiting(vec![request_headers(), request_body(CHAT)]).await;
    assert_eq!(admission.stats().waiting.requests, 1);

    admission.observe(Signal::Reload {
        config: Box::new(one_at_a_time_config(Some(EvictionConfig::default()))),
        desired: None,
    });
    picking.reconfigure(ServiceSettings { eviction: Some(MidStream::default()), ..settings() });
    let [stays, mut goes] = batch;
    assert_eq!(goes.refusal().await.0, 429, "the newest");
    drop(goes);
    let mut urgent = waiting.await.unwrap().unwrap();
    assert!(matches!(urgent.answer().await, Answer::RequestHeaders(_)));
    drop((urgent, stays));
    picking.idle().await;
}
