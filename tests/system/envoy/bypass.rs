//! Responses whose bodies pass the picker by: how it knows when they end.

use std::time::Duration;

use sluice_testkit::{EnvoyConfig, Part, PickerConfig, Protocol, RecordingUpstream, Reply, SseEvents, Stack, Template};
use tokio::task::JoinSet;

use crate::raw::{Then, server};
use crate::support::{CHAT, chat, picker, post};

/// More streams than the picker wants to see before it is sure.
const STREAMS: usize = 150;
const NOTICE: &str = "set response_trailer_mode to SEND";

/// Lets streamed chats run one after the other and returns how often the picker has complained in its log.
async fn complaints(envoy: EnvoyConfig, reply: Reply) -> usize {
    let server = RecordingUpstream::start(reply).unwrap();
    let servers = [server.address()];
    let stack = Stack::start_configured(picker(), &[], PickerConfig::standalone, envoy, &servers).await.unwrap();
    let client = Protocol::Http2.client().unwrap();
    for _ in 0..STREAMS {
        let response = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, true)).send().await.unwrap();
        let events = SseEvents::of(response).collect().await.unwrap();
        assert_eq!(events.last().unwrap(), "[DONE]");
    }
    // Its last words may be on the way.
    tokio::time::sleep(Duration::from_millis(200)).await;
    stack.picker.process().output().lines().iter().filter(|line| line.contains(NOTICE)).count()
}

#[tokio::test]
async fn a_proxy_that_does_not_tell_the_ends_of_responses_is_complained_about_once() {
    let mut envoy = EnvoyConfig::from_template(Template::ResponseBypass).unwrap();
    envoy.put(Part::ProcessingMode, "response_trailer_mode", "SKIP").unwrap();
    assert_eq!(complaints(envoy, Reply::Events { count: 2, pause_ms: 5 }).await, 1);
}

/// Also where most of them are so short that they look the same.
#[tokio::test]
async fn a_proxy_that_tells_the_ends_of_responses_is_not_complained_about() {
    for pause_ms in [0, 5] {
        let envoy = EnvoyConfig::from_template(Template::ResponseBypass).unwrap();
        assert_eq!(complaints(envoy, Reply::Events { count: 2, pause_ms }).await, 0, "{pause_ms}");
    }
}

/// How 40 streams have ended that were complete when their headers came, by what the picker could tell: `natural` and
/// `unaccounted`; and how often it has complained.
async fn ends_of_complete_ones(answer: &'static str) -> (i64, i64, usize) {
    let mut servers = JoinSet::new();
    let address = server("127.0.0.1", answer, Then::Close(Duration::from_secs(1)), &mut servers).await;
    let envoy = EnvoyConfig::from_template(Template::ResponseBypass).unwrap();
    let stack = Stack::start_configured(picker(), &[], PickerConfig::standalone, envoy, &[address]).await.unwrap();
    let client = Protocol::Http2.client().unwrap();
    for _ in 0..40 {
        let response = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, true)).send().await.unwrap();
        assert_eq!(response.text().await.unwrap(), "data: [DONE]\n\n");
    }
    // The last stream ends at about the same time as the response.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let page = stack.picker.metrics().await.unwrap();
    let ended = |cause| page.count("llm_d_epp_request_ended_total", &[("cause", cause)]).unwrap();
    let complaints = stack.picker.process().output().lines().iter().filter(|line| line.contains(NOTICE)).count();
    (ended("natural"), ended("unaccounted"), complaints)
}

/// Envoy ends their streams as if it never told the ends of responses. Only where the length is known there is no doubt.
#[tokio::test]
async fn responses_that_are_all_complete_when_they_begin_are_told_from_skipped_trailers_by_their_length_only() {
    let chunked = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\
                   connection: close\r\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    let (natural, unaccounted, complaints) = ends_of_complete_ones(chunked).await;
    assert_eq!((natural + unaccounted, complaints), (40, 1));
    assert!(unaccounted > 0, "nothing was doubted");

    let known = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 14\r\nconnection: close\r\n\
                 \r\ndata: [DONE]\n\n";
    assert_eq!(ends_of_complete_ones(known).await, (40, 0, 0));
}
