//! Every other way in which a proxy may send bodies.

use std::time::Duration;

use sluice_core::{Api, Time, TokenUsage};

use super::script::{CHAT, DUPLEX, Script, modes};
use crate::action::Notice;
use crate::message::{BodyMode, InboundEnd, Message};
use crate::session::{SessionSettings, StreamFacts, Wanted};

const USAGE: &str = "data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";

fn request(mode: BodyMode) -> Script {
    Script::with_modes(Some(modes(mode, BodyMode::None)))
}

fn response(mode: BodyMode) -> Script {
    Script::with_modes(Some(modes(BodyMode::FullDuplex, mode)))
}

#[test]
fn buffered_headers_are_answered_at_once_and_the_decision_goes_with_the_body() {
    let mut script = request(BodyMode::Buffered);
    assert_eq!(script.post("/v1/chat/completions").out(), "rh?");
    let headers = script.held;
    assert_eq!(script.body(CHAT, true).out(), "route");
    assert_eq!(script.held, headers, "the proxy has the body");
    assert_eq!(script.placed().out(), "rb!");
    assert_eq!(script.mutation.as_ref().unwrap().destination, "10.0.0.1:80");
    let request = &script.intents[0].request;
    assert_eq!((request.model.as_deref(), request.body_bytes), (Some("m"), CHAT.len() as u64));

    // Trailers follow the answer to the body; one that does not wait for it is answered in order.
    let mut script = request_of(BodyMode::Buffered);
    assert_eq!(script.body(CHAT, false).placed().out(), "rh? route rb!");
    assert_eq!(script.trailers().out(), "rt");
    let mut script = request_of(BodyMode::Buffered);
    assert_eq!(script.body(CHAT, false).trailers().placed().out(), "rh? route rb! rt");
}

fn request_of(mode: BodyMode) -> Script {
    let mut script = request(mode);
    script.post("/v1/chat/completions");
    script
}

#[test]
fn a_buffered_body_that_does_not_fit_or_parse_is_refused() {
    let mut script = request_of(BodyMode::Buffered);
    assert_eq!(script.body("{", true).out(), "rh? 400 end:BadRequest close");
    let mut script = request_of(BodyMode::Buffered);
    assert_eq!(script.body(&"x".repeat(1_001), true).out(), "rh? 413 end:PayloadTooLarge close");
    // The decision has nowhere to go.
    let mut script = request_of(BodyMode::Buffered);
    assert_eq!(script.trailers().out(), "rh? 500 end:Internal close");
    assert!(script.refusal_text().contains("BUFFERED"), "{}", script.refusal_text());
}

#[test]
fn a_request_without_a_body_is_decided_with_its_headers_in_every_mode() {
    for mode in [
        BodyMode::None,
        BodyMode::Streamed,
        BodyMode::Buffered,
        BodyMode::BufferedPartial,
        BodyMode::FullDuplex,
        BodyMode::Other,
    ] {
        let mut script = request(mode);
        assert_eq!(script.get().placed().out(), "route rh", "{mode:?}");
        assert!(script.intents[0].header_only);
    }
}

#[test]
fn a_streamed_body_is_decided_on_the_headers_and_every_piece_is_answered_once() {
    for mode in [BodyMode::Streamed, BodyMode::None] {
        let mut script = request(mode);
        let lines = [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-length", "4000")];
        let settings = SessionSettings { max_request_body: 10_000, ..SessionSettings::TEST };
        script.session = crate::session::Session::new(settings, StreamFacts::default(), std::sync::Arc::default());
        assert_eq!(script.headers(&lines, false).out(), "route");
        let request = &script.intents[0].request;
        assert_eq!(request.body_bytes, 4_000, "as the client announces");
        assert_eq!((request.api, request.model.as_deref()), (Api::OpenAiChat, None), "nobody has seen a body");
        assert!(!script.intents[0].header_only);
        assert_eq!(script.placed().out(), "rh");
        assert_eq!(script.body("a", false).body("", false).body("b", true).out(), "rb. rb. rb.");
        assert!(script.request_body.is_empty());
        assert_eq!(script.held, 0);
    }
}

#[test]
fn pieces_that_come_before_the_answer_to_the_headers_are_answered_after_it() {
    let mut script = request_of(BodyMode::Streamed);
    assert_eq!(script.body("a", false).body("b", false).out(), "route");
    assert_eq!(script.placed().out(), "rh rb. rb.");
    assert_eq!(script.body("", true).out(), "rb.");

    let mut script = request_of(BodyMode::Streamed);
    assert_eq!(script.body("a", false).trailers().placed().out(), "route rh rb. rt");
    let mut script = request_of(BodyMode::None);
    assert_eq!(script.placed().trailers().out(), "route rh rt");
}

#[test]
fn buffered_partial_requests_are_refused_and_the_operator_is_told() {
    let mut script = request_of(BodyMode::BufferedPartial);
    assert_eq!(script.out(), "500 end:Internal close");
    assert!(script.refusal_text().contains("BUFFERED_PARTIAL"));
    assert_eq!(script.notices, [Notice::RefusedMode { direction: "request", mode: BodyMode::BufferedPartial }]);
}

#[test]
fn without_a_known_mode_full_duplex_is_assumed() {
    for told in [None, Some(modes(BodyMode::Other, BodyMode::Other))] {
        let mut script = Script::with_modes(told);
        assert_eq!(script.chat().placed().ok_response().chunk("x", true).out(), "route rh rb* sh sb* end:natural");
        assert_eq!(script.notices, [Notice::UnknownMode]);
    }
}

#[test]
fn where_no_mode_is_known_a_request_without_its_body_is_placed_by_its_headers() {
    let mut script = Script::with_modes(None);
    script.post("/v1/chat/completions");
    assert_eq!(script.wait(149).out(), "");
    assert_eq!(script.wait(1).out(), "route");
    assert_eq!(script.notices, [Notice::UnknownMode, Notice::NoBody]);
    // A body that comes after all is passed on.
    assert_eq!(script.body("a", false).placed().out(), "rh rb");
    assert_eq!(script.body("b", true).out(), "rb*");
    assert_eq!(script.request_body, b"ab");

    // A body in time is waited for, however long the rest of it takes.
    let mut script = Script::with_modes(None);
    script.post("/v1/chat/completions").wait(100).body("{", false);
    assert_eq!(script.wait(10_000).out(), "");
    // And where the proxy has said that it sends one.
    let mut script = Script::with_modes(Some(DUPLEX));
    script.post("/v1/chat/completions");
    assert_eq!(script.wait(10_000).out(), "");
}

#[test]
fn responses_that_the_proxy_keeps_are_answered_with_a_word_and_read_all_the_same() {
    for mode in [BodyMode::Streamed, BodyMode::Buffered, BodyMode::BufferedPartial] {
        let mut script = response(mode);
        script.chat().placed().ok_response().out();
        assert_eq!(script.chunk("data: 1\n\n", false).chunk(USAGE, false).out(), "sb. sb.");
        assert_eq!(script.chunk("", true).out(), "sb. end:natural");
        assert!(script.response_body.is_empty());
        assert_eq!(script.endings[0].usage, TokenUsage { prompt: Some(3), completion: Some(4), cached: None });
        // Also an end that is told twice: the proxy waits for every answer.
        assert_eq!(script.chunk("", true).out(), "sb.");

        let mut script = response(mode);
        script.chat().placed().ok_response().chunk(USAGE, false).out();
        assert_eq!(script.message(Message::ResponseTrailers).out(), "st end:natural");
    }
}

#[test]
fn a_proxy_that_measures_the_wait_is_asked_for_patience_once() {
    for mode in [BodyMode::None, BodyMode::Streamed, BodyMode::Buffered] {
        let mut script = request_of(mode);
        script.body(CHAT, true).out();
        assert_eq!(script.wait(99).out(), "", "{mode:?}");
        assert_eq!(script.wait(1).out(), "wait", "{mode:?}");
        assert_eq!(script.patience, Some(Duration::from_secs(3_600)));
        assert_eq!(script.wait(3_600_000).out(), "", "{mode:?}");
        let last = if mode == BodyMode::Buffered { "rb!" } else { "rh rb." };
        assert_eq!(script.placed().out(), last);
    }
}

#[test]
fn no_patience_is_asked_for_where_nobody_measures_or_nothing_is_left_to_wait_for() {
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.wait(10_000).out(), "", "in full duplex the proxy measures no time");
    let mut script = request_of(BodyMode::None);
    script.placed().out();
    assert_eq!(script.wait(10_000).out(), "", "placed at once");
    let settings = SessionSettings { extend_message_timeout: false, ..SessionSettings::TEST };
    let mut script = Script::with_settings(settings, modes(BodyMode::None, BodyMode::None));
    script.post("/raw").out();
    assert_eq!(script.wait(10_000).out(), "");
}

#[test]
fn patience_is_asked_for_no_longer_than_the_wait_can_take() {
    for (seconds, asked) in [(10, 15), (90, 95), (4_000, 3_600)] {
        let mut script = request_of(BodyMode::None);
        script.wait_ends = Some(Time::from_secs(seconds));
        assert_eq!(script.wait(100).out(), "route wait");
        let whole = Duration::from_secs(asked);
        let patience = if asked == 3_600 { whole } else { whole - Duration::from_millis(100) };
        assert_eq!(script.patience, Some(patience));
    }
}

#[test]
fn a_proxy_that_tells_its_timeout_is_asked_only_if_that_is_too_short() {
    let told = |seconds: u64, wait_ends: Option<u64>| {
        let message_timeout = Some(Duration::from_secs(seconds));
        let facts = StreamFacts { message_timeout, ..StreamFacts::default() };
        let mut script = Script::started(SessionSettings::TEST, facts, Some(modes(BodyMode::None, BodyMode::None)));
        script.wait_ends = wait_ends.map(Time::from_secs);
        script.post("/raw").out();
        script
    };
    assert_eq!(told(3_600, None).wait(3_600_000).out(), "", "there is no longer time to be had");
    assert_eq!(told(60, Some(55)).wait(60_000).out(), "");
    // As late as is safe, since it cannot move to another picker afterwards.
    let mut script = told(60, Some(56));
    assert_eq!(script.wait(29_999).out(), "");
    assert_eq!(script.wait(1).out(), "wait");
    assert_eq!(script.patience, Some(Duration::from_secs(56 + 5 - 30)));
    assert_eq!(told(60, None).wait(30_000).out(), "wait");
    assert_eq!(told(0, None).wait(10).out(), "wait");
}

#[test]
fn a_request_that_is_placed_without_its_body_has_a_timeout_like_any_other() {
    let mut script = Script::with_modes(None);
    script.post("/v1/chat/completions");
    assert_eq!(script.wait(150).out(), "route");
    assert_eq!(script.wait(10).out(), "wait", "more than half of the time is over");
    let mut script = Script::with_modes(None);
    script.chat();
    assert_eq!(script.wait(10_000).out(), "route", "a body that comes by itself is in full duplex");
}

#[test]
fn how_old_a_request_was_that_left_while_it_waited_is_told_where_the_proxy_has_a_clock() {
    for mode in [BodyMode::None, BodyMode::Streamed, BodyMode::Buffered] {
        for end in [InboundEnd::HalfClosed, InboundEnd::Reset] {
            let mut script = request_of(mode);
            script.wait(30).body(CHAT, true).wait(1_000).ends(end);
            let since_headers = Duration::from_millis(1_030);
            let expected = if mode == BodyMode::Buffered { Duration::from_secs(1) } else { since_headers };
            assert_eq!(script.gave_up, Some(expected), "{mode:?}, {end:?}");
        }
    }
    let mut duplex = Script::new();
    duplex.chat().wait(1_000).ends(InboundEnd::HalfClosed);
    let mut broken = request_of(BodyMode::None);
    broken.wait(1_000).ends(InboundEnd::Broken);
    let mut placed = request_of(BodyMode::None);
    placed.placed().wait(1_000).ends(InboundEnd::HalfClosed);
    for script in [duplex, broken, placed] {
        assert_eq!(script.gave_up, None);
    }
}

/// A script whose proxy takes other modes than the configured ones.
fn choosing(request: bool, response: bool, request_mode: BodyMode, response_mode: BodyMode) -> Script {
    let settings = SessionSettings {
        wanted: Wanted { request, response, revocable: false, models: false },
        ..SessionSettings::TEST
    };
    let facts = StreamFacts { may_choose_modes: true, ..StreamFacts::default() };
    Script::started(settings, facts, Some(modes(request_mode, response_mode)))
}

#[test]
fn the_picker_asks_for_the_bodies_that_it_wants_where_it_may() {
    let mut script = choosing(true, true, BodyMode::None, BodyMode::None);
    assert_eq!(script.post("/v1/chat/completions").out(), "modes");
    assert_eq!(script.asked, Some(modes(BodyMode::FullDuplex, BodyMode::None)));
    assert_eq!(script.body(CHAT, true).placed().out(), "route rh rb*", "full duplex from here on");
    assert_eq!(script.request_body, CHAT.as_bytes(), "the proxy has promised this length upstream");
    assert_eq!(script.ok_response().out(), "sh+modes");
    let asked = modes(BodyMode::FullDuplex, BodyMode::Streamed);
    assert_eq!(script.asked, Some(asked), "Envoy may hang in full duplex that is asked for so late");
    assert_eq!(script.chunk("x", true).out(), "sb. end:natural");

    // The request only.
    let mut script = choosing(true, false, BodyMode::Streamed, BodyMode::None);
    assert_eq!(script.chat().placed().ok_response().out(), "modes route rh rb* sh+modes");
    assert_eq!(script.asked, Some(modes(BodyMode::FullDuplex, BodyMode::None)), "that the stream lives on");
    // The response only, also where there is no request body to ask for.
    for request in [false, true] {
        let mut script = choosing(request, true, BodyMode::None, BodyMode::None);
        assert_eq!(script.get().placed().ok_response().chunk("x", true).out(), "route rh sh+modes sb. end:natural");
        assert_eq!(script.asked, Some(modes(BodyMode::None, BodyMode::Streamed)));
        // Which comes by itself here.
        let mut script = choosing(request, true, BodyMode::None, BodyMode::Streamed);
        assert_eq!(script.get().placed().ok_response().chunk("x", true).out(), "route rh sh sb. end:natural");
    }
    // Not one without a body.
    let mut script = choosing(true, true, BodyMode::None, BodyMode::None);
    assert_eq!(script.get().placed().response(&[(":status", "204")], true).out(), "route rh sh end:natural");
}

#[test]
fn nothing_is_asked_for_where_nothing_is_wanted_or_the_proxy_would_fail_the_request() {
    let mut script = choosing(false, false, BodyMode::None, BodyMode::None);
    assert_eq!(script.post("/v1/chat/completions").placed().out(), "route rh");
    for (request, response) in [
        (BodyMode::FullDuplex, BodyMode::None),
        (BodyMode::Buffered, BodyMode::None),
        (BodyMode::None, BodyMode::FullDuplex),
        (BodyMode::None, BodyMode::Buffered),
        (BodyMode::Other, BodyMode::Other),
    ] {
        let mut script = choosing(true, true, request, response);
        script.post("/raw").body("", true).placed().ok_response();
        assert_eq!(script.asked, None, "{request:?}, {response:?}");
    }
    // Not announced by the proxy's configuration.
    let settings = SessionSettings {
        wanted: Wanted { request: true, response: true, revocable: true, models: true },
        ..SessionSettings::TEST
    };
    let mut script = Script::with_settings(settings, modes(BodyMode::None, BodyMode::None));
    assert_eq!(script.post("/raw").placed().out(), "route rh");
}

#[test]
fn a_proxy_that_refuses_other_modes_is_told_of() {
    let mut script = choosing(true, true, BodyMode::None, BodyMode::None);
    assert_eq!(script.post("/raw").ends(InboundEnd::Reset).out(), "modes end:client-disconnect fail");
    assert_eq!(script.notices, [Notice::ModesRefused]);
    // Not one whose client left, whose body came, or that was not asked.
    let mut left = choosing(true, true, BodyMode::None, BodyMode::None);
    left.post("/raw").ends(InboundEnd::HalfClosed);
    let mut heeded = choosing(true, true, BodyMode::None, BodyMode::None);
    heeded.post("/raw").body("x", false).ends(InboundEnd::Reset);
    let mut unasked = Script::new();
    unasked.post("/raw").ends(InboundEnd::Reset);
    for script in [left, heeded, unasked] {
        assert_eq!(script.notices, []);
    }
}

#[test]
fn a_proxy_that_shows_no_response_although_it_was_asked_ends_streams_as_before() {
    let mut script = choosing(false, true, BodyMode::None, BodyMode::None);
    script.post("/raw").placed().ok_response().out();
    assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:natural close");
    let mut script = choosing(false, true, BodyMode::None, BodyMode::None);
    script.post("/raw").placed().ok_response().chunk("x", false).out();
    assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:client-disconnect fail");
}

#[test]
fn a_response_of_which_nothing_comes_although_it_was_asked_for_is_left_to_the_proxy() {
    let mut script = choosing(false, true, BodyMode::None, BodyMode::None);
    script.post("/raw").placed().ok_response().out();
    assert_eq!(script.wait(299_999).out(), "");
    assert_eq!(script.wait(1).out(), "end:unseen close");
    // Not one that has begun, and not one that nobody has asked for.
    let mut script = choosing(false, true, BodyMode::None, BodyMode::None);
    script.post("/raw").placed().ok_response().chunk("x", false).out();
    assert_eq!(script.wait(1_000_000).out(), "");
    let mut script = choosing(false, false, BodyMode::None, BodyMode::None);
    script.post("/raw").placed().ok_response().out();
    assert_eq!(script.wait(1_000_000).out(), "");
}

#[test]
fn where_streams_end_with_the_response_headers_nothing_is_said_of_the_end_of_requests() {
    let facts = StreamFacts { skips_trailers: true, ..StreamFacts::default() };
    let begun = |told, status| {
        let mut script = Script::started(SessionSettings::TEST, facts, Some(told));
        script.chat().placed().response(&[(":status", status)], false).out();
        script
    };
    let bypass = modes(BodyMode::FullDuplex, BodyMode::None);
    let mut script = begun(bypass, "200");
    assert_eq!(script.ends(InboundEnd::Reset).out(), "end:unaccounted close");
    let remark = "the stream ended with the response headers: the response was complete, or the proxy tells no ends";
    assert_eq!(script.endings[0].remark, remark);
    assert_eq!(begun(bypass, "200").ends(InboundEnd::HalfClosed).out(), "end:natural close", "it lives on after all");
    assert_eq!(begun(DUPLEX, "200").ends(InboundEnd::Reset).out(), "end:client-disconnect fail");
    let mut whole = Script::started(SessionSettings::TEST, facts, Some(bypass));
    whole.chat().placed().response(&[(":status", "200"), ("content-length", "2")], false).out();
    assert_eq!(whole.ends(InboundEnd::Reset).out(), "end:natural close", "it was complete when it began");
}

#[test]
fn a_request_whose_client_waits_for_100_continue_is_placed_by_its_headers_in_every_mode() {
    for (mode, answered) in [
        (BodyMode::FullDuplex, "rb*"),
        (BodyMode::Other, "rb*"),
        (BodyMode::Buffered, "rb."),
        (BodyMode::Streamed, "rb."),
        (BodyMode::None, "rb."),
    ] {
        let mut script = request(mode);
        let lines = [(":method", "POST"), (":path", "/v1/completions"), ("expect", "100-Continue")];
        assert_eq!(script.headers(&lines, false).placed().out(), "route rh", "{mode:?}");
        assert_eq!(script.body(CHAT, true).out(), answered, "{mode:?}");
        // It is a body like any other.
        let mut script = request(mode);
        script.headers(&lines, false).placed().out();
        assert_eq!(script.body(&"x".repeat(1_001), true).out(), "413 end:PayloadTooLarge close", "{mode:?}");
    }
}
