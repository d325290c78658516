//! Bodies that are too long, too slow, or too many.

use std::time::Duration;

use super::script::{CHAT, DUPLEX, Script, modes};
use crate::message::BodyMode;
use crate::reject::Refusal;
use crate::session::SessionSettings;

#[test]
fn a_body_that_stops_arriving_is_refused() {
    for (mode, answered) in [(BodyMode::FullDuplex, ""), (BodyMode::Buffered, "rh?")] {
        let mut script = Script::with_modes(Some(modes(mode, BodyMode::None)));
        assert_eq!(script.post("/v1/chat/completions").wait(59_999).out(), answered);
        assert_eq!(script.wait(1).out(), "408 end:RequestTimeout close");
        assert_eq!(script.session.next_wakeup(), None);
    }
    let mut script = Script::new();
    script.post("/v1/chat/completions").wait(59_000).body("{", false).wait(59_000).body(" ", false);
    assert_eq!(script.wait(59_999).out(), "", "every part of it gives it time again");
    assert_eq!(script.wait(1).out(), "408 end:RequestTimeout close");
}

#[test]
fn only_a_body_that_is_missing_is_waited_for() {
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.wait(1_000_000).placed().out(), "rh rb*", "a place in the queue has its own time");
    assert_eq!(script.wait(1_000_000).ok_response().out(), "sh");
    let mut script = Script::with_modes(Some(modes(BodyMode::None, BodyMode::None)));
    script.post("/raw").placed().out();
    assert_eq!(script.wait(1_000_000).out(), "", "the proxy keeps it to itself");
    let settings = SessionSettings { body_progress_timeout: Duration::ZERO, ..SessionSettings::TEST };
    let mut script = Script::with_settings(settings, DUPLEX);
    script.post("/raw");
    assert_eq!(script.wait(1_000_000).out(), "");
}

#[test]
fn a_body_that_is_passed_on_piece_by_piece_is_bounded_as_well() {
    let streamed = || {
        let mut script = Script::with_modes(Some(modes(BodyMode::Streamed, BodyMode::None)));
        script.post("/raw").placed().out();
        script
    };
    let part = "x".repeat(600);
    assert_eq!(streamed().body(&part, false).body(&part, false).out(), "rb. 413 end:PayloadTooLarge close");
    assert_eq!(streamed().wait(59_999).body("x", false).wait(59_999).out(), "rb.");
    assert_eq!(streamed().body("x", false).wait(60_000).out(), "rb. 408 end:RequestTimeout close");
    // Not a complete one, and not one that the client has an answer to.
    assert_eq!(streamed().body("x", true).wait(60_000).out(), "rb.");
    assert_eq!(streamed().trailers().wait(60_000).out(), "rt");
    assert_eq!(streamed().body(&part, false).ok_response().body(&part, false).wait(60_000).out(), "rb. sh rb.");

    // Before it is placed, if the proxy does not wait.
    let mut script = Script::with_modes(Some(modes(BodyMode::Streamed, BodyMode::None)));
    script.post("/raw").body(&part, false).body(&part, false);
    assert_eq!(script.out(), "route stop 413 end:PayloadTooLarge close");
    // What follows an upgrade is no body.
    for (mode, passed) in [(BodyMode::Streamed, "rb. rb."), (BodyMode::FullDuplex, "rb rb")] {
        let mut script = Script::with_modes(Some(modes(mode, BodyMode::None)));
        script.headers(&[(":path", "/v1/realtime"), ("upgrade", "websocket")], false).placed().out();
        assert_eq!(script.body(&part, false).body(&part, false).wait(60_000).out(), passed);
    }
}

#[test]
fn headers_that_are_too_large_are_refused() {
    for mode in [BodyMode::FullDuplex, BodyMode::Buffered, BodyMode::Streamed, BodyMode::None] {
        let answer = |length: usize| {
            let mut script = Script::with_modes(Some(modes(mode, BodyMode::None)));
            script.headers(&[(":path", "/raw"), ("x", &"y".repeat(length))], true).out()
        };
        assert_eq!(answer(490), "route", "{mode:?}");
        assert_eq!(answer(491), "431 end:RequestHeaderFieldsTooLarge close", "{mode:?}");
    }
}

#[test]
fn a_thousand_lines_of_headers_are_enough() {
    let answer = |count: usize| {
        let settings = SessionSettings { max_request_headers: 1 << 20, body_memory: 1 << 20, ..SessionSettings::TEST };
        let mut script = Script::with_settings(settings, DUPLEX);
        let mut lines = vec![(":path", "/raw")];
        lines.resize(count, ("x", "y"));
        script.headers(&lines, true).out()
    };
    assert_eq!(answer(1_000), "route");
    assert_eq!(answer(1_001), "431 end:RequestHeaderFieldsTooLarge close");
}

/// The first script of a request with this announced length, and what was said of it.
fn announced(mode: BodyMode, length: usize) -> (Script, String) {
    let mut script = Script::with_modes(Some(modes(mode, BodyMode::None)));
    script.headers(&[(":path", "/raw"), ("content-length", &length.to_string())], false);
    let said = script.out();
    (script, said)
}

fn refused_with(script: &Script) -> &str {
    &script.immediate.as_ref().unwrap().body
}

#[test]
fn a_body_is_refused_by_the_smallest_limit_that_it_is_over_and_the_refusal_names_it() {
    const REFUSED: &str = "413 end:PayloadTooLarge close";
    // What is announced, in every mode.
    for mode in [BodyMode::FullDuplex, BodyMode::Buffered, BodyMode::Streamed, BodyMode::None] {
        assert_ne!(announced(mode, 1_000).1, REFUSED, "{mode:?}");
        let (script, said) = announced(mode, 1_001);
        assert_eq!(said, REFUSED, "{mode:?}");
        assert!(refused_with(&script).contains("larger than 1000 bytes (maxRequestBody)"), "{mode:?}");
    }
    // What would never fit into the memory for bodies, where it comes here.
    let small = SessionSettings { body_memory: 500, ..SessionSettings::TEST };
    for (mode, is_held) in [(BodyMode::FullDuplex, true), (BodyMode::Buffered, true), (BodyMode::None, false)] {
        let mut script = Script::with_settings(small, modes(mode, BodyMode::None));
        script.headers(&[(":path", "/raw"), ("content-length", "490")], false);
        assert_eq!(script.out() == REFUSED, is_held, "{mode:?}");
        assert!(!is_held || refused_with(&script).contains("bytes (bodyMemory)"), "{mode:?}");
    }
    // What grows beyond a limit as it comes.
    let grown = |settings: SessionSettings, largest: Option<u64>, length: usize| {
        let mut script = Script::with_settings(settings, DUPLEX);
        script.largest = largest;
        script.headers(&[(":path", "/raw")], false).body(&"x".repeat(length), false);
        (script.out(), script.immediate.map(|reply| reply.body).unwrap_or_default())
    };
    for (settings, largest, longest, named) in [
        (SessionSettings::TEST, None, 1_000, "larger than 1000 bytes (maxRequestBody)"),
        (SessionSettings::TEST, Some(700), 700, "larger than 700 bytes (maxBytes)"),
        (SessionSettings::TEST, Some(7_000), 1_000, "larger than 1000 bytes (maxRequestBody)"),
        (small, Some(700), 500 - ":path/raw".len(), "(bodyMemory)"),
    ] {
        assert_eq!(grown(settings, largest, longest).0, "");
        let (said, body) = grown(settings, largest, longest + 1);
        assert_eq!(said, REFUSED);
        assert!(body.contains(named), "{body}");
    }
}

/// The queue of a request has room for what is kept of it, and not for what is only announced.
#[test]
fn only_a_body_that_is_kept_takes_room_in_the_queue() {
    for (mode, kept) in
        [(BodyMode::FullDuplex, 9), (BodyMode::Buffered, 9), (BodyMode::Streamed, 0), (BodyMode::None, 0)]
    {
        let mut script = Script::with_modes(Some(modes(mode, BodyMode::None)));
        script.headers(&[(":path", "/raw"), ("content-length", "9")], false).body("123456789", true);
        let intent = &script.intents[0];
        assert_eq!((intent.held_bytes, intent.request.body_bytes), (kept, 9), "{mode:?}");
    }
}

#[test]
fn a_stream_that_brings_nothing_is_ended() {
    let mut script = Script::new();
    assert_eq!(script.wait(4_999).out(), "");
    assert_eq!(script.wait(1).out(), "end:error fail");
    let mut script = Script::new();
    assert_eq!(script.wait(4_999).post("/raw").wait(1_000).out(), "", "a message is enough");
}

#[test]
fn the_bytes_of_a_request_are_held_until_it_is_placed() {
    let mut script = Script::new();
    let (head, tail) = CHAT.split_at(10);
    script.post("/v1/chat/completions");
    let headers = script.held;
    assert_eq!(headers, ":methodPOST:path/v1/chat/completionsx-request-idabc".len() as u64);
    script.body(head, false);
    assert_eq!(script.held, headers + 10);
    script.body(tail, true);
    assert_eq!(script.held, headers + CHAT.len() as u64);
    script.placed();
    assert_eq!(script.held, 0);

    let mut script = Script::new();
    script.headers(&[(":path", "/v1/realtime"), ("upgrade", "websocket")], false);
    let headers = script.held;
    assert_eq!(script.body("early", false).held, headers + 5);
    assert_eq!(script.placed().held, 0);
    // Where the proxy keeps the body.
    let mut script = Script::with_modes(Some(modes(BodyMode::None, BodyMode::None)));
    assert!(script.post("/raw").held > 0);
    assert_eq!(script.placed().held, 0);
}

#[test]
fn a_request_without_room_is_refused_wherever_it_waits() {
    let mut script = Script::new();
    script.post("/raw").body("a", false);
    assert_eq!(script.refused(&Refusal::out_of_body_memory(1)).out(), "429 end:ResourceExhausted close");
    let headers = &script.immediate.unwrap().headers;
    assert!(headers.contains(&("x-llm-d-request-dropped-reason", "rejected-saturated".into())));
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.refused(&Refusal::out_of_body_memory(1)).out(), "stop 429 end:ResourceExhausted close");
    assert_eq!(script.refused(&Refusal::out_of_body_memory(1)).out(), "");
}
