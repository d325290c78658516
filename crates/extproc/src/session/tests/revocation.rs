//! Requests that have to make room, in every phase and mode.

use serde_json::{Value, json};

use super::script::{BYPASS, CHAT, DUPLEX, Script, modes};
use crate::action::{Delivery, Notice};
use crate::message::{BodyMode, BodyModes, InboundEnd, Message, Origin};
use crate::reject::{ImmediateReply, RefusalStyle};
use crate::service::MidStream;
use crate::session::{SessionSettings, StreamFacts, Wanted};

/// What the event says in the API of chats.
const EVENT: &str = concat!(
    r#"data: {"error":{"code":429,"message":"request evicted by flow control","reason":"evicted","#,
    r#""retry_after_ms":1500,"type":"rate_limit_error"}}"#,
    "\n\n"
);

fn settings(mid_stream: MidStream) -> SessionSettings {
    SessionSettings { eviction: Some(mid_stream), ..SessionSettings::TEST }
}

/// A request that may be cut off, placed.
fn placed(settings: SessionSettings, modes: BodyModes) -> Script {
    let mut script = Script::with_settings(settings, modes);
    script.revocable = true;
    script.chat().placed().out();
    script
}

/// The same with the beginning of its response.
fn streaming(settings: SessionSettings, modes: BodyModes) -> Script {
    let mut script = placed(settings, modes);
    script.ok_response().chunk("data: 1\n\n", false).out();
    script
}

fn duplex() -> Script {
    streaming(settings(MidStream::EventThenReset), DUPLEX)
}

fn header<'a>(reply: &'a ImmediateReply, name: &str) -> Option<&'a str> {
    reply.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| &**value)
}

/// The one ending, and how the client learned of it.
fn delivery(script: &Script) -> Option<Delivery> {
    let [ending] = &script.endings[..] else { panic!("{} endings", script.endings.len()) };
    ending.evicted
}

#[test]
fn before_the_response_the_client_gets_a_status_in_place_of_it() {
    const ALL: [BodyMode; 6] = [
        BodyMode::None,
        BodyMode::Streamed,
        BodyMode::Buffered,
        BodyMode::BufferedPartial,
        BodyMode::FullDuplex,
        BodyMode::Other,
    ];
    for response in ALL {
        let mut script = placed(settings(MidStream::EventThenReset), modes(BodyMode::FullDuplex, response));
        assert_eq!(script.revoked().out(), "429", "{response:?}");
        let reply = script.immediate.clone().unwrap();
        assert_eq!(header(&reply, "x-llm-d-request-dropped-reason"), Some("evicted"));
        assert_eq!(header(&reply, "retry-after"), Some("2"), "1.5 seconds, rounded");
        assert_eq!(reply.grpc_status, tonic::Code::ResourceExhausted);
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["error"]["code"], "evicted");
        assert_eq!(script.endings.len(), 0, "its place is free when the proxy has ended the stream, not before");
        assert_eq!(script.ends(InboundEnd::Reset).out(), "end:evicted close");
        assert_eq!(delivery(&script), Some(Delivery::Status));
    }
}

#[test]
fn an_upload_that_goes_on_changes_nothing() {
    for request in [BodyMode::None, BodyMode::Streamed] {
        let mut script = Script::with_settings(settings(MidStream::EventThenReset), modes(request, BodyMode::None));
        script.revocable = true;
        script.post("/raw").placed().out();
        assert_eq!(script.revoked().body("more", false).body("", true).trailers().out(), "429");
        assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:evicted close");
    }
}

#[test]
fn an_event_stream_gets_an_event_and_then_the_cut() {
    let mut script = duplex();
    assert_eq!(script.revoked().out(), "sb");
    assert_eq!(script.response_body, format!("data: 1\n\n{EVENT}").as_bytes());
    assert_eq!(script.sent, 9, "the event is nothing that the model server has made");
    assert_eq!(script.chunk("data: 2\n\n", false).wait(9).out(), "", "what comes behind the event is dropped");
    assert_eq!(script.wait(1).out(), "429");
    assert_eq!(script.chunk("", true).trailers().out(), "");
    assert_eq!(script.ends(InboundEnd::Reset).out(), "end:evicted close");
    assert_eq!(delivery(&script), Some(Delivery::Event));
    assert_eq!(script.endings[0].events, 1);
}

#[test]
fn the_event_has_the_shape_of_the_api() {
    let mut script = Script::with_settings(settings(MidStream::EventThenReset), DUPLEX);
    script.revocable = true;
    script.post("/v1/messages").body(CHAT, true).placed().ok_response().chunk("event: ping\ndata: {}\n\n", false);
    script.revoked();
    let text = String::from_utf8(script.response_body).unwrap();
    let data = text.strip_prefix("event: ping\ndata: {}\n\nevent: error\ndata: ").unwrap();
    let error = json!({"type": "rate_limit_error", "message": "request evicted by flow control", "code": 429,
        "reason": "evicted", "retry_after_ms": 1_500});
    assert_eq!(serde_json::from_str::<Value>(data).unwrap(), json!({"type": "error", "error": error}));

    let mut script = Script::with_settings(settings(MidStream::EventThenReset), DUPLEX);
    script.revocable = true;
    script.post("/v1/responses").body(CHAT, true).placed().ok_response();
    script.chunk("event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n", false).out();
    script.response_body.clear();
    script.revoked();
    let text = String::from_utf8(script.response_body).unwrap();
    let data = text.strip_prefix("event: error\ndata: ").unwrap();
    let event = json!({"type": "error", "code": "evicted", "message": "request evicted by flow control", "param": null,
        "sequence_number": 2, "error": {"type": "rate_limit_error", "message": "request evicted by flow control",
        "code": 429, "reason": "evicted", "retry_after_ms": 1_500}});
    assert_eq!(serde_json::from_str::<Value>(data).unwrap(), event);

    let quiet = SessionSettings { retry_after: false, ..settings(MidStream::EventThenReset) };
    let mut script = streaming(quiet, DUPLEX);
    script.revoked();
    assert!(!String::from_utf8(script.response_body).unwrap().contains("retry_after"));
}

#[test]
fn an_event_that_was_begun_is_passed_on_to_its_end() {
    let mut script = duplex();
    script.chunk("data: 2", false).out();
    assert_eq!(script.revoked().out(), "");
    assert_eq!(script.chunk("2", false).out(), "sb", "no end in it");
    assert_eq!(script.wait(49).chunk("2\n\ndata: 3\n\n", false).out(), "sb");
    assert_eq!(script.response_body, format!("data: 1\n\ndata: 222\n\n{EVENT}").as_bytes());
    assert_eq!(script.wait(10).ends(InboundEnd::Reset).out(), "429 end:evicted close");
    assert_eq!((delivery(&script), script.endings[0].events), (Some(Delivery::Event), 2));
}

#[test]
fn an_event_without_an_end_is_not_waited_for_long() {
    let mut script = duplex();
    script.chunk("data: 2", false).out();
    assert_eq!(script.revoked().wait(49).out(), "");
    assert_eq!(script.wait(1).out(), "429");
    assert_eq!(script.ends(InboundEnd::Reset).out(), "end:evicted close");
    assert_eq!(delivery(&script), Some(Delivery::Reset));
}

#[test]
fn in_full_duplex_a_stream_whose_first_part_has_not_come_gets_the_status() {
    for mid_stream in [MidStream::EventThenReset, MidStream::Reset, MidStream::EventThenEnd] {
        let mut script = placed(settings(mid_stream), DUPLEX);
        assert_eq!(script.ok_response().wait(100_000).out(), "", "however long it takes");
        assert_eq!(script.revoked().out(), "429");
        assert_eq!(script.chunk("data: 1\n\n", false).ends(InboundEnd::Reset).out(), "end:evicted close");
        assert_eq!((delivery(&script), script.sent), (Some(Delivery::Status), 0));
    }
}

#[test]
fn the_headers_of_a_stream_wait_for_whatever_follows_them_and_not_longer() {
    let withheld = || {
        let mut script = placed(settings(MidStream::EventThenReset), DUPLEX);
        assert_eq!(script.ok_response().out(), "");
        script
    };
    assert_eq!(withheld().chunk("da", false).chunk("ta: 1\n\n", false).out(), "sh sb sb", "half an event will do");
    assert_eq!(withheld().chunk("", false).out(), "sh sb");
    assert_eq!(withheld().chunk("", true).out(), "sh sb* end:natural");
    assert_eq!(withheld().message(Message::ResponseTrailers).out(), "sh st end:natural");
    // Nothing follows.
    for (end, cause) in [(InboundEnd::HalfClosed, "client-disconnect"), (InboundEnd::Broken, "error")] {
        assert_eq!(withheld().ends(end).out(), format!("end:{cause} fail"));
    }
    // What cannot be taken is answered, as long as that is possible.
    assert_eq!(withheld().ok_response().out(), "500 end:Internal close");
    assert_eq!(withheld().ends(InboundEnd::TooLarge).out(), "413 end:PayloadTooLarge close");
    assert!(withheld().session.answer_failure().is_some());
}

#[test]
fn no_other_headers_wait() {
    let mut script = Script::new();
    assert_eq!(script.chat().placed().ok_response().out(), "route rh rb* sh", "it is not to make room");
    for response in [BodyMode::None, BodyMode::Streamed, BodyMode::Buffered, BodyMode::BufferedPartial, BodyMode::Other]
    {
        // The proxy measures the time, or does not show the body before.
        let mut script = placed(settings(MidStream::EventThenReset), modes(BodyMode::FullDuplex, response));
        assert_eq!(script.ok_response().out(), "sh", "{response:?}");
    }
    let json = &[(":status", "200"), ("content-type", "application/json")];
    let mut script = placed(settings(MidStream::EventThenReset), DUPLEX);
    assert_eq!(script.response(json, false).out(), "sh");
    let events = &[(":status", "200"), ("content-type", "text/event-stream")];
    let mut script = placed(settings(MidStream::EventThenReset), DUPLEX);
    assert_eq!(script.response(events, true).out(), "sh end:natural");
    let mut script = placed(settings(MidStream::EventThenReset), DUPLEX);
    let origin = Origin { details: Some("fault_filter_abort".into()), served: None };
    assert_eq!(script.response_from(events, false, origin).out(), "sh", "the proxy's own, which is not evicted");
}

#[test]
fn where_headers_do_not_wait_the_event_takes_the_place_of_the_first_part() {
    let wanted = Wanted { revocable: true, ..Wanted::default() };
    let settings = SessionSettings { wanted, ..settings(MidStream::EventThenReset) };
    let facts = StreamFacts { may_choose_modes: true, ..StreamFacts::default() };
    let begun = |told| {
        let mut script = Script::started(settings, facts, Some(told));
        script.revocable = true;
        script.post("/v1/chat/completions").body(CHAT, true).placed().ok_response().out();
        script
    };
    for (told, answer) in
        [(modes(BodyMode::None, BodyMode::None), "sb"), (modes(BodyMode::FullDuplex, BodyMode::Streamed), "sb!")]
    {
        let mut script = begun(told);
        assert_eq!(script.revoked().wait(49).out(), "", "nothing may be said unasked");
        assert_eq!(script.chunk("data: 1\n\n", false).out(), answer);
        assert_eq!(script.response_body, EVENT.as_bytes());

        let mut script = begun(told);
        assert_eq!(script.revoked().wait(50).out(), "429");
        assert_eq!(script.ends(InboundEnd::Reset).out(), "end:evicted close");
        assert_eq!(delivery(&script), Some(Delivery::Reset));
    }
}

#[test]
fn a_response_that_is_not_seen_is_known_to_have_begun() {
    let begun = |script: &mut Script| script.ok_response().begun_unseen;
    assert!(begun(&mut placed(settings(MidStream::EventThenReset), BYPASS)));
    assert!(!begun(&mut placed(settings(MidStream::EventThenReset), DUPLEX)));
    assert!(!begun(&mut placed(settings(MidStream::EventThenReset), modes(BodyMode::FullDuplex, BodyMode::Streamed))));
    // The picker has asked to see it.
    let wanted = Wanted { revocable: true, ..Wanted::default() };
    let facts = StreamFacts { may_choose_modes: true, ..StreamFacts::default() };
    let settings = SessionSettings { wanted, ..settings(MidStream::EventThenReset) };
    let mut script = Script::started(settings, facts, Some(modes(BodyMode::None, BodyMode::None)));
    script.revocable = true;
    script.post("/v1/chat/completions").placed();
    assert!(!begun(&mut script));
}

#[test]
fn the_other_two_ways_to_end_an_event_stream() {
    let mut script = streaming(settings(MidStream::Reset), DUPLEX);
    assert_eq!(script.revoked().out(), "429");
    assert_eq!(script.ends(InboundEnd::Reset).out(), "end:evicted close");
    assert_eq!(delivery(&script), Some(Delivery::Reset));

    let mut script = streaming(settings(MidStream::EventThenEnd), DUPLEX);
    assert_eq!(script.revoked().out(), "sb*");
    assert_eq!(script.response_body, format!("data: 1\n\n{EVENT}").as_bytes());
    assert_eq!(script.chunk("data: 2\n\n", false).chunk("", true).wait(1_000).out(), "", "its end was told");
    assert_eq!(script.ends(InboundEnd::Reset).out(), "end:evicted close");
    assert_eq!(delivery(&script), Some(Delivery::Event));
}

/// Bytes beyond the announced length would be taken for the beginning of the next response on the connection.
#[test]
fn nothing_is_put_into_a_stream_whose_length_was_told() {
    let events = [(":status", "200"), ("content-type", "text/event-stream"), ("content-length", "1000")];
    let wanted = Wanted { revocable: true, ..Wanted::default() };
    for (told, may_choose_modes, speaks) in [
        (modes(BodyMode::FullDuplex, BodyMode::Streamed), false, false),
        (modes(BodyMode::None, BodyMode::None), true, false),
        // The proxy has taken the length out.
        (DUPLEX, false, true),
    ] {
        let settings = SessionSettings { wanted, ..settings(MidStream::EventThenReset) };
        let facts = StreamFacts { may_choose_modes, ..StreamFacts::default() };
        let mut script = Script::started(settings, facts, Some(told));
        script.revocable = true;
        script.post("/v1/chat/completions").body(CHAT, true).placed().response(&events, false);
        script.chunk("data: 1\n\n", false).out();
        script.revoked().wait(10);
        let delivered = if speaks { Delivery::Event } else { Delivery::Reset };
        assert!(script.ends(InboundEnd::Reset).out().ends_with("end:evicted close"));
        assert_eq!(delivery(&script), Some(delivered), "{told:?}");
    }
}

#[test]
fn where_the_proxy_keeps_the_bytes_the_event_takes_the_place_of_a_part() {
    for mid_stream in [MidStream::EventThenReset, MidStream::EventThenEnd] {
        let mut script = streaming(settings(mid_stream), modes(BodyMode::Streamed, BodyMode::Streamed));
        assert_eq!(script.revoked().out(), "", "nothing may be said unasked");
        assert_eq!(script.chunk("data: 2\n\n", false).out(), "sb!");
        assert_eq!(script.response_body, EVENT.as_bytes(), "what this side has sent");
        assert_eq!(script.chunk("data: 3\n\n", false).wait(10).out(), "429");
        assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:evicted close");
    }
    // In the middle of an event.
    let mut script = streaming(settings(MidStream::EventThenReset), modes(BodyMode::Streamed, BodyMode::Streamed));
    script.chunk("data:", false).out();
    assert_eq!(script.revoked().chunk(" 2", false).chunk("2\n\ndata: 3", false).out(), "sb. sb!");
    assert_eq!(script.response_body, format!("2\n\n{EVENT}").as_bytes());
    // No part comes.
    let mut script = streaming(settings(MidStream::EventThenReset), modes(BodyMode::Streamed, BodyMode::Streamed));
    assert_eq!(script.revoked().wait(50).out(), "429");
}

#[test]
fn a_response_that_nobody_can_add_to_is_cut() {
    let json = &[(":status", "200"), ("content-type", "application/json")][..];
    let packed = &[(":status", "200"), ("content-type", "text/event-stream"), ("content-encoding", "gzip")][..];
    let grpc = &[(":status", "200"), ("content-type", "application/grpc")][..];
    let events = &[(":status", "200"), ("content-type", "text/event-stream")][..];
    for (modes, response) in [(DUPLEX, json), (DUPLEX, packed), (DUPLEX, grpc), (BYPASS, events), (BYPASS, json)] {
        let mut script = placed(settings(MidStream::EventThenReset), modes);
        script.response(response, false).out();
        if modes == DUPLEX {
            script.chunk("x", false).out();
        }
        assert_eq!(script.revoked().out(), "429", "{modes:?} {response:?}");
        assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:evicted close");
        assert_eq!(delivery(&script), Some(Delivery::Reset));
        assert_eq!(script.passed_by, None, "it says nothing of the proxy's trailers");
    }
}

#[test]
fn a_response_that_the_proxy_holds_back_is_replaced_by_the_status() {
    for mode in [BodyMode::Buffered, BodyMode::BufferedPartial] {
        let mut script = placed(settings(MidStream::EventThenReset), modes(BodyMode::FullDuplex, mode));
        assert_eq!(script.ok_response().revoked().out(), "sh 429");
        assert_eq!(script.chunk("data: 1\n\n", true).ends(InboundEnd::Reset).out(), "end:evicted close");
        assert_eq!(delivery(&script), Some(Delivery::Status));
    }
}

#[test]
fn a_complete_response_stays_complete() {
    // Its end was seen.
    let mut script = duplex();
    script.chunk("", true).out();
    assert_eq!(script.revoked().wait(100).out(), "");
    assert_eq!(delivery(&script), None);
    // Its last event was.
    for last in ["data: [DONE]\n\n", "event: message_stop\ndata: {}\n\n", "event: response.incomplete\ndata: {}\n\n"] {
        let mut script = duplex();
        script.chunk(last, false).out();
        assert_eq!(script.revoked().wait(100).chunk("", true).out(), "sb* end:natural", "{last:?}");
        assert_eq!(delivery(&script), None);
    }
    // They come while the event is due: with the end of the event, in its place, as trailers.
    for (last, end) in [("2\n\n", true), ("2\n\ndata: [DONE]\n\n", false)] {
        let mut script = duplex();
        script.chunk("data: 2", false).revoked().out();
        script.chunk(last, end);
        if !end {
            script.wait(100).chunk("", true);
        }
        assert_eq!(script.out(), if end { "sb* end:natural" } else { "sb sb* end:natural" });
        assert_eq!(script.response_body, format!("data: 1\n\ndata: 2{last}").as_bytes());
        assert_eq!((delivery(&script), script.session.next_wakeup()), (None, None));
    }
    let mut script = duplex();
    script.chunk("data: 2", false).revoked().out();
    assert_eq!(script.message(Message::ResponseTrailers).out(), "st end:natural");
}

#[test]
fn who_leaves_while_being_evicted_was_evicted() {
    for end in [InboundEnd::HalfClosed, InboundEnd::Reset, InboundEnd::Broken, InboundEnd::TooLarge] {
        let mut script = duplex();
        script.chunk("data: 2", false).revoked().out();
        assert_eq!(script.ends(end).out(), "end:evicted fail", "nothing was said yet");
        assert_eq!(delivery(&script), Some(Delivery::Left));

        let mut script = duplex();
        script.revoked().out();
        assert_eq!(script.ends(end).out(), "end:evicted close");
        assert_eq!(delivery(&script), Some(Delivery::Event));

        let mut script = placed(settings(MidStream::EventThenReset), DUPLEX);
        script.revoked().out();
        assert_eq!(script.ends(end).out(), "end:evicted close", "no second answer");
    }
}

#[test]
fn a_second_word_is_not_heard_and_neither_is_one_before_the_request_was_placed() {
    let mut script = duplex();
    assert_eq!(script.revoked().revoked().out(), "sb");
    assert_eq!(script.wait(10).revoked().ends(InboundEnd::Reset).revoked().out(), "429 end:evicted close");

    let mut script = Script::with_settings(settings(MidStream::EventThenReset), DUPLEX);
    script.revocable = true;
    assert_eq!(script.revoked().post("/v1/chat/completions").revoked().out(), "");
    assert_eq!(script.body(CHAT, true).revoked().out(), "route");
    assert_eq!(script.placed().out(), "rh rb*");
}

#[test]
fn what_the_proxy_answers_itself_ends_by_itself() {
    let mut script = placed(settings(MidStream::EventThenReset), DUPLEX);
    let origin = Origin { details: Some("response_timeout".into()), served: None };
    script.response_from(&[(":status", "504")], false, origin).out();
    assert_eq!(script.revoked().out(), "");
    assert_eq!(script.chunk("timeout", true).out(), "sb* end:error:proxy");
}

#[test]
fn a_proxy_that_does_not_end_the_stream_is_told_of_and_its_request_counts_until_it_does() {
    for (mid_stream, cut) in
        [(MidStream::EventThenReset, "sb 429"), (MidStream::Reset, "429"), (MidStream::EventThenEnd, "sb*")]
    {
        let mut script = streaming(settings(mid_stream), DUPLEX);
        assert_eq!(script.revoked().wait(10).out(), cut);
        script.wait(4_980);
        assert_eq!(script.notices, []);
        assert_eq!(script.wait(20).out(), "");
        assert_eq!(script.notices, [Notice::Unending], "{mid_stream:?}");
        assert_eq!(script.wait(1_000_000).chunk("data: 2\n\n", false).trailers().out(), "");
        assert_eq!((script.endings.len(), script.notices.len()), (0, 1), "it is said once");
        assert_eq!(script.ends(InboundEnd::Broken).out(), "end:evicted close");
    }
}

#[test]
fn a_text_refusal_is_worded_as_elsewhere() {
    let text = SessionSettings { refusal_style: RefusalStyle::Text, ..settings(MidStream::EventThenReset) };
    let mut script = placed(text, DUPLEX);
    script.revoked();
    assert_eq!(script.refusal_text(), "request evicted by flow control");
}

#[test]
fn event_streams_that_may_be_cut_off_are_asked_for_where_the_proxy_lets_the_picker_choose() {
    let wanted = Wanted { revocable: true, ..Wanted::default() };
    let settings = SessionSettings { wanted, ..settings(MidStream::EventThenReset) };
    let choosing = |revocable| {
        let facts = StreamFacts { may_choose_modes: true, ..StreamFacts::default() };
        let mut script = Script::started(settings, facts, Some(modes(BodyMode::None, BodyMode::None)));
        script.revocable = revocable;
        script.post("/v1/chat/completions").placed().out();
        script
    };
    let mut script = choosing(true);
    assert_eq!(script.ok_response().out(), "sh+modes");
    assert_eq!(script.asked, Some(modes(BodyMode::None, BodyMode::FullDuplex)));
    assert_eq!(script.chunk("data: 1\n\n", false).revoked().wait(10).out(), "sb sb 429");
    let asked = |script: &mut Script| script.asked.map(|modes| modes.response);
    assert_eq!(asked(choosing(false).ok_response()), Some(BodyMode::None), "nobody cuts it off");
    // Whose trailers may be there already: Envoy would hang.
    let with_trailers = &[(":status", "200"), ("content-type", "text/event-stream"), ("trailer", "x-sum")];
    assert_eq!(asked(choosing(true).response(with_trailers, false)), Some(BodyMode::Streamed));
    let json = &[(":status", "200"), ("content-type", "application/json")];
    assert_eq!(asked(choosing(true).response(json, false)), Some(BodyMode::None), "it takes no event");
}
