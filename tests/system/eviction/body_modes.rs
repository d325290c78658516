//! Answers that come in pieces of any kind, and the other modes in which Envoy may show them to the picker.

use std::time::Duration;

use sluice_testkit::{CountingUpstream, EnvoyConfig, Protocol, STREAM_HEADER, Template};
use tokio::task::JoinSet;

use super::one_slot::{
    Holder, assert_cut, assert_error_event, assert_told_by_status, batch, evictions, one_slot, pool, pool_behind,
    pool_of,
};
use super::seen::Ending;
use crate::envoy::modes::with_modes;
use crate::flow::support::AT_ONCE;
use crate::raw::{Then, server};
use crate::support::{LIMIT, TEMPLATES};

/// Short beside the time in which an event has to end.
const PAUSE: Duration = Duration::from_millis(10);

/// The data of an event that a test's server sends again and again, with its end.
const EVENT: &str = "data: 0\n\n";

/// `text` is whole events and the error event behind them.
fn assert_whole_events_before_the_error(text: &str, context: &str) {
    let (events, _error) = text.split_once("data: {").unwrap_or_else(|| panic!("{context}: {text:?}"));
    assert!(!events.is_empty() && events.replace(EVENT, "").is_empty(), "{context}: {text:?}");
}

/// The event takes the place of a part, and all parts behind it are dropped.
#[tokio::test]
async fn where_parts_are_shown_one_by_one_the_event_replaces_the_next_one_and_then_comes_the_cut() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n\
                          9\r\ndata: 0\n\n\r\n";
    let mut servers = JoinSet::new();
    let then = Then::Repeat { what: "9\r\ndata: 0\n\n\r\n", every: PAUSE };
    let address = server("127.0.0.1", ANSWER, then, &mut servers).await;
    // The stream ends when the model server ends it, so here the orderly end is the broken one, too.
    for mid_stream in ["event-then-reset", "event-then-end"] {
        let envoy = with_modes("FULL_DUPLEX_STREAMED", "STREAMED").unwrap();
        let stack = pool_behind(envoy, mid_stream, address).await;
        for protocol in Protocol::ALL {
            let context = format!("{mid_stream}, {protocol:?}");
            let client = protocol.client().unwrap();
            let holder = Holder::start_answered(&stack, &client, batch(&stack, &client), EVENT.as_bytes()).await;
            let seen = holder.evict().await;
            assert_eq!(seen.ending(), Ending::ToldThenCut, "{context}: {seen}");
            assert_error_event(&seen, &context);
            assert_whole_events_before_the_error(&seen.text(), &context);
            assert_cut(&seen, protocol, &context);
        }
        assert_eq!(evictions(&stack, "event").await, 2, "{mid_stream}");
    }
}

/// No part comes whose place the event could take.
#[tokio::test]
async fn where_parts_are_shown_one_by_one_a_stream_that_stays_silent_is_cut() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n";
    let mut servers = JoinSet::new();
    let address = server("127.0.0.1", HEAD, Then::Close(LIMIT * 2), &mut servers).await;
    let envoy = with_modes("FULL_DUPLEX_STREAMED", "STREAMED").unwrap();
    let stack = pool_behind(envoy, "event-then-reset", address).await;
    for protocol in Protocol::ALL {
        let context = format!("{protocol:?}");
        let client = protocol.client().unwrap();
        let seen = Holder::start_answered(&stack, &client, batch(&stack, &client), b"").await.evict().await;
        assert_eq!((seen.status, seen.body.len()), (200, 0), "{context}: {seen}");
        assert_cut(&seen, protocol, &context);
    }
    assert_eq!(evictions(&stack, "reset").await, 2);
}

#[tokio::test]
async fn an_answer_that_the_proxy_holds_until_its_end_is_replaced_by_a_clean_429() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n\
                          9\r\ndata: 0\n\n\r\n";
    let mut servers = JoinSet::new();
    let address = server("127.0.0.1", ANSWER, Then::Close(LIMIT * 2), &mut servers).await;
    let envoy = with_modes("FULL_DUPLEX_STREAMED", "BUFFERED").unwrap();
    let stack = pool_behind(envoy, "event-then-reset", address).await;
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let holder = Holder::start(&stack, &client, batch(&stack, &client)).await;
        tokio::time::sleep(AT_ONCE).await;
        assert_told_by_status(&holder.evict().await, &format!("{protocol:?}"));
    }
    assert_eq!(evictions(&stack, "status").await, 2);
}

#[tokio::test]
async fn a_picker_that_is_not_to_look_at_bodies_cuts_streams() {
    let server = CountingUpstream::start().unwrap();
    let mut config = one_slot("event-then-reset");
    config["sluice"]["bodies"] = "headers".into();
    let envoy = EnvoyConfig::from_template(Template::PerRequest).unwrap();
    let stack = pool_of(&config, envoy, server.address()).await;
    for protocol in Protocol::ALL {
        let context = format!("{protocol:?}");
        let client = protocol.client().unwrap();
        let request = batch(&stack, &client).header(STREAM_HEADER, "1");
        let seen = Holder::start_answered(&stack, &client, request, EVENT.as_bytes()).await.evict().await;
        assert_eq!(seen.body, EVENT.as_bytes(), "{context}: {seen}");
        assert_cut(&seen, protocol, &context);
    }
    assert_eq!(evictions(&stack, "reset").await, 2);
}

/// At every moment a part of an event is under way, and its rest is never far.
#[tokio::test]
async fn an_event_that_was_begun_is_passed_on_to_its_end_before_the_client_is_told() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n\
                          10\r\ndata: 0\n\ndata: 0\r\n";
    let mut servers = JoinSet::new();
    let then = Then::Repeat { what: "9\r\n\n\ndata: 0\r\n", every: PAUSE };
    let address = server("127.0.0.1", ANSWER, then, &mut servers).await;
    for template in [Template::FullDuplex, Template::PerRequest] {
        let stack = pool(template, "event-then-reset", address).await;
        for protocol in Protocol::ALL {
            let context = format!("{template:?}, {protocol:?}");
            let client = protocol.client().unwrap();
            // Whatever else the machine does may make a pause too long, but not each time.
            let mut told = 0;
            for _ in 0..3 {
                let holder = Holder::start_answered(&stack, &client, batch(&stack, &client), EVENT.as_bytes()).await;
                let seen = holder.evict().await;
                assert_cut(&seen, protocol, &context);
                if seen.ending() == Ending::ToldThenCut {
                    assert_whole_events_before_the_error(&seen.text(), &context);
                    told += 1;
                }
            }
            assert!(told > 0, "{context}: they were cut without a word");
        }
    }
}

/// An event that was cut in the middle, text in an unknown code, an answer that is one JSON value: nothing may be added
/// to them.
#[tokio::test]
async fn an_answer_to_which_no_event_can_be_added_is_cut() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n";
    let partial: (&'static str, &'static [u8]) = (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n\
         10\r\ndata: 0\n\ndata: 1\r\n",
        b"data: 0\n\ndata: 1",
    );
    let encoded: (&'static str, &'static [u8]) = (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\ncontent-encoding: br\r\n\
         \r\n9\r\ndata: 0\n\n\r\n",
        b"data: 0\n\n",
    );
    let json: (&'static str, &'static [u8]) = (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\n8\r\n{\"half\":\r\n",
        b"{\"half\":",
    );
    for (name, (answer, begun)) in [("half an event", partial), ("encoded", encoded), ("no stream of events", json)] {
        assert!(answer.starts_with(HEAD));
        let mut servers = JoinSet::new();
        let address = server("127.0.0.1", answer, Then::Close(LIMIT * 2), &mut servers).await;
        for template in TEMPLATES {
            let stack = pool(template, "event-then-reset", address).await;
            for protocol in Protocol::ALL {
                let context = format!("{name}, {template:?}, {protocol:?}");
                let client = protocol.client().unwrap();
                let holder = Holder::start_answered(&stack, &client, batch(&stack, &client), begun).await;
                let seen = holder.evict().await;
                assert_eq!(seen.body, begun, "{context}: {seen}");
                assert_cut(&seen, protocol, &context);
            }
            assert_eq!(evictions(&stack, "reset").await, 2, "{name}, {template:?}");
        }
    }
}
