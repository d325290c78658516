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
    let mut script = Script::with_modes(Some(modes(BodyMode::Streamed, BodyMode::None)));
    script.post("/raw").placed().out();
    assert_eq!(script.wait(1_000_000).out(), "", "not held here");
    let settings = SessionSettings { body_progress_timeout: Duration::ZERO, ..SessionSettings::TEST };
    let mut script = Script::with_settings(settings, DUPLEX);
    script.post("/raw");
    assert_eq!(script.wait(1_000_000).out(), "");
}

#[test]
fn the_bytes_of_a_body_are_held_until_it_is_placed() {
    let mut script = Script::new();
    let (head, tail) = CHAT.split_at(10);
    script.post("/v1/chat/completions").body(head, false);
    assert_eq!(script.held, 10);
    script.body(tail, true);
    assert_eq!(script.held, CHAT.len() as u64);
    script.placed();
    assert_eq!(script.held, 0);

    let mut script = Script::new();
    script.headers(&[(":path", "/v1/realtime"), ("upgrade", "websocket")], false).body("early", false);
    assert_eq!(script.held, 5);
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
