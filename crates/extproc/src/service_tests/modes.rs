use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::HeaderValueOption;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::{BodySendMode, HeaderSendMode};
use envoy_types::pb::envoy::service::ext_proc::v3::CommonResponse;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;

use super::rig::{Picking, request_body, request_headers, request_piece, response_headers, settings, telling};
use crate::{Bodies, ServiceSettings};

const CHAT: &str = r#"{"model":"m"}"#;
const NONE: BodySendMode = BodySendMode::None;

/// The value that a reply sets for a header.
fn set(response: Option<CommonResponse>, name: &str) -> Option<String> {
    let lines = response?.header_mutation?.set_headers;
    let line = lines.into_iter().filter_map(|HeaderValueOption { header, .. }| header).find(|line| line.key == name)?;
    Some(String::from_utf8(line.raw_value).unwrap())
}

#[tokio::test]
async fn buffered_headers_are_answered_before_the_body_is_there() {
    let picking = Picking::start().await;
    let mut proxy = picking.open(vec![telling([BodySendMode::Buffered, NONE], request_headers())]).await.unwrap();
    let Answer::RequestHeaders(answer) = proxy.answer().await else { panic!() };
    assert_eq!(answer.response, None, "neither a destination nor a body mutation");
    proxy.send(request_body(CHAT)).await;
    let reply = proxy.reply().await;
    assert!(reply.dynamic_metadata.is_some());
    let Some(Answer::RequestBody(answer)) = reply.response else { panic!() };
    assert_eq!(answer.response.as_ref().unwrap().body_mutation, None);
    assert_eq!(set(answer.response, "x-gateway-destination-endpoint").as_deref(), Some("10.0.0.1:80"));
}

#[tokio::test]
async fn a_streamed_request_is_placed_before_its_body_comes() {
    let picking = Picking::start().await;
    let mut proxy = picking.open(vec![telling([BodySendMode::Streamed, NONE], request_headers())]).await.unwrap();
    let Answer::RequestHeaders(answer) = proxy.answer().await else { panic!() };
    assert_eq!(set(answer.response, "x-gateway-destination-endpoint").as_deref(), Some("10.0.0.1:80"));
    for end_of_stream in [false, true] {
        proxy.send(request_piece(b"x".to_vec(), end_of_stream)).await;
        let Answer::RequestBody(answer) = proxy.answer().await else { panic!() };
        assert_eq!(answer.response, None);
    }
}

#[tokio::test]
async fn the_picker_asks_for_bodies_where_the_proxy_announces_that_it_may() {
    let settings = ServiceSettings { bodies: Bodies::Full, ..settings() };
    let picking = Picking::start_with(settings, |_| sluice_router::Gatekeeper::Open).await;
    let first = telling([NONE, NONE], request_headers());
    let mut proxy = picking.open_announcing(vec![first.clone()], true).await.unwrap();
    let reply = proxy.reply().await;
    assert_eq!(reply.response, None, "it answers nothing");
    let mode = reply.mode_override.unwrap();
    assert_eq!(mode.request_body_mode, i32::from(BodySendMode::FullDuplexStreamed));
    assert_eq!(mode.response_body_mode, i32::from(NONE));
    assert_eq!(mode.request_trailer_mode, i32::from(HeaderSendMode::Send));
    assert_eq!(mode.response_trailer_mode, i32::from(HeaderSendMode::Send));
    proxy.send(request_body(CHAT)).await;
    assert!(matches!(proxy.answer().await, Answer::RequestHeaders(_)));
    let Answer::RequestBody(answer) = proxy.answer().await else { panic!() };
    let Some(Mutation::StreamedResponse(piece)) = answer.response.unwrap().body_mutation.unwrap().mutation else {
        panic!()
    };
    assert_eq!((&piece.body[..], piece.end_of_stream), (CHAT.as_bytes(), true));
    proxy.send(response_headers(&[])).await;
    let reply = proxy.reply().await;
    assert!(matches!(reply.response, Some(Answer::ResponseHeaders(_))));
    let mode = reply.mode_override.unwrap();
    assert_eq!(mode.response_body_mode, i32::from(BodySendMode::Streamed));

    let mut proxy = picking.open(vec![first]).await.unwrap();
    assert_eq!(proxy.reply().await.mode_override, None, "not announced");
}

#[tokio::test]
async fn without_a_body_and_a_word_about_it_a_request_is_placed_all_the_same() {
    let picking = Picking::start().await;
    #[expect(clippy::disallowed_methods, reason = "measures the picker from outside")]
    let began = Instant::now();
    let mut proxy = picking.open(vec![request_headers()]).await.unwrap();
    assert!(matches!(proxy.answer().await, Answer::RequestHeaders(_)));
    assert!(began.elapsed() >= Duration::from_millis(150));
    proxy.send(response_headers(&[])).await;
    assert!(matches!(proxy.answer().await, Answer::ResponseHeaders(_)));
}
