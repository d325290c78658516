//! Responses whose bodies pass the picker by: how it knows when they end.

use std::time::Duration;

use sluice_testkit::{EnvoyConfig, Part, PickerConfig, Protocol, RecordingUpstream, Reply, SseEvents, Stack, Template};

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
