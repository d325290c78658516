//! How requests end, and what is made of it.

use std::net::SocketAddr;
use std::time::Duration;

use sluice_core::TerminationCause;

use super::script::{BYPASS, CHAT, Script, modes};
use crate::action::{Outcome, Responder};
use crate::message::{BodyMode, InboundEnd, Origin};
use crate::reject::Refusal;
use crate::session::SessionSettings;

#[test]
fn a_client_that_leaves_before_the_response_ends_the_request() {
    for end in [InboundEnd::HalfClosed, InboundEnd::Reset] {
        let mut script = Script::new();
        assert_eq!(script.ends(end).out(), "end:client-disconnect fail", "before it began");

        let mut script = Script::new();
        script.post("/v1/chat/completions").out();
        assert_eq!(script.ends(end).out(), "end:client-disconnect fail");

        let mut script = Script::new();
        script.chat().out();
        assert_eq!(script.ends(end).out(), "stop end:client-disconnect fail");
        assert_eq!(script.placed().out(), "", "a late placement of a dead request is dropped");

        let mut script = Script::new();
        script.chat().placed().out();
        assert_eq!(script.ends(end).out(), "end:client-disconnect fail");
        assert!(script.endings[0].remark.is_empty());
    }
}

#[test]
fn a_stream_that_ends_in_the_middle_of_a_response_leaves_open_who_broke_off() {
    for end in [InboundEnd::HalfClosed, InboundEnd::Reset] {
        let mut script = Script::new();
        script.chat().placed().ok_response().chunk("data: 1\n\n", false).out();
        assert_eq!(script.ends(end).out(), "end:client-disconnect fail");
        assert_eq!(script.endings[0].remark, "the client left or the model server broke off");
    }
}

#[test]
fn what_a_client_that_leaves_got_is_told_by_events() {
    let mut script = Script::new();
    script.chat().placed().ok_response().chunk("data: 1\n\ndata: 2\n\nda", false).chunk("ta: 3\n\nda", false).out();
    script.ends(InboundEnd::HalfClosed).out();
    assert_eq!(script.endings[0].events, 3);
}

#[test]
fn a_broken_connection_is_an_error_and_nobodys_wish() {
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.ends(InboundEnd::Broken).out(), "stop end:error fail");
    for modes in [super::script::DUPLEX, BYPASS] {
        let mut script = Script::with_modes(Some(modes));
        script.chat().placed().ok_response().out();
        assert_eq!(script.ends(InboundEnd::Broken).out(), "end:error fail");
    }
    let mut script = Script::new();
    script.chat().placed().ok_response().chunk("", true).out();
    assert_eq!(script.ends(InboundEnd::Broken).out(), "close", "the response was complete");
}

#[test]
fn a_message_that_cannot_be_taken_is_answered_as_long_as_that_is_possible() {
    let mut script = Script::new();
    script.post("/raw").out();
    assert_eq!(script.ends(InboundEnd::TooLarge).out(), "413 end:PayloadTooLarge close");
    assert!(script.refusal_text().contains("--grpc-max-recv-msg-size"));
    let mut script = Script::new();
    script.chat().placed().out();
    assert_eq!(script.ends(InboundEnd::Unreadable).out(), "500 end:Internal close");
    let mut script = Script::new();
    script.chat().placed().ok_response().out();
    assert_eq!(script.ends(InboundEnd::TooLarge).out(), "end:error fail");
}

#[test]
fn without_response_bodies_the_end_of_the_stream_is_the_end_of_the_response() {
    let mut script = Script::with_modes(Some(BYPASS));
    script.chat().placed().ok_response().wait(1_000).out();
    assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:natural close");
    assert_eq!(script.endings[0].remark, "the response is complete or the client left");

    // A short one has ended before the answer to its headers arrives: then the proxy resets the stream.
    let mut script = Script::with_modes(Some(BYPASS));
    script.chat().placed().response(&[(":status", "500")], false).out();
    assert_eq!(script.ends(InboundEnd::Reset).out(), "end:natural close");
    let outcome =
        Outcome::Terminated { cause: TerminationCause::Natural, status: Some(500), responder: Responder::ModelServer };
    assert_eq!(script.endings[0].outcome, outcome);

    let mut script = Script::with_modes(Some(BYPASS));
    script.chat().placed().out();
    assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:client-disconnect fail");
}

#[test]
fn how_long_the_stream_of_an_event_stream_lives_is_told_where_its_body_passes_by() {
    let mut script = Script::with_modes(Some(BYPASS));
    script.chat().placed().ok_response().wait(7).ends(InboundEnd::Reset);
    assert_eq!(script.passed_by, Some((InboundEnd::Reset, Duration::from_millis(7))));

    let mut seen = Script::new();
    seen.chat().placed().ok_response().ends(InboundEnd::Reset);
    let mut json = Script::with_modes(Some(BYPASS));
    json.chat().placed().response(&[(":status", "200"), ("content-type", "application/json")], false);
    json.ends(InboundEnd::Reset);
    let mut error = Script::with_modes(Some(BYPASS));
    error.chat().placed().response(&[(":status", "500"), ("content-type", "text/event-stream")], false);
    error.ends(InboundEnd::Reset);
    let mut whole = Script::with_modes(Some(BYPASS));
    whole.chat().placed().response(&[(":status", "200"), ("content-type", "text/event-stream")], true);
    whole.ends(InboundEnd::Reset);
    // It was there when its headers were.
    let mut measured = Script::with_modes(Some(BYPASS));
    let lines = [(":status", "200"), ("content-type", "text/event-stream"), ("content-length", "14")];
    measured.chat().placed().response(&lines, false).ends(InboundEnd::Reset);
    for script in [seen, json, error, whole, measured] {
        assert_eq!(script.passed_by, None);
    }
}

#[test]
fn a_waiting_request_that_the_proxy_gives_up_leaves_at_once_and_is_told_why() {
    for (mode, answered) in
        [(BodyMode::FullDuplex, ""), (BodyMode::Buffered, "rh? "), (BodyMode::Streamed, ""), (BodyMode::None, "")]
    {
        let mut script = Script::with_modes(Some(modes(mode, BodyMode::None)));
        script.post("/v1/chat/completions").body(CHAT, true);
        script.proxy_answers("504", "stream_idle_timeout");
        assert_eq!(script.out(), format!("{answered}route stop 504 end:GatewayTimeout close"), "{mode:?}");
        assert!(script.refusal_text().contains("stream_idle_timeout"));
        assert_eq!(script.placed().out(), "");
    }
    // Also where the proxy does not tell details, and while the body is still being read.
    let mut script = Script::new();
    script.post("/v1/chat/completions").body("{", false).response(&[(":status", "408")], true);
    assert_eq!(script.out(), "408 end:RequestTimeout close");
    let mut script = Script::with_modes(Some(modes(BodyMode::Buffered, BodyMode::None)));
    script.post("/v1/chat/completions").proxy_answers("413", "request_payload_too_large");
    assert_eq!(script.out(), "rh? 413 end:PayloadTooLarge close");
}

#[test]
fn what_else_the_proxy_answers_a_waiting_request_is_passed_on() {
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.proxy_answers("403", "rbac_access_denied").out(), "stop sh");
    assert_eq!(script.body("late", false).placed().out(), "");
    assert_eq!(script.chunk("no", true).out(), "sb* end:error:proxy");
    assert_eq!(script.endings[0].remark, "rbac_access_denied");

    // Nobody else can have answered, even where the proxy does not say so, or an endpoint is named.
    for modes in [super::script::DUPLEX, BYPASS] {
        for served in [None, Some("10.0.0.2:80".parse().unwrap())] {
            let mut script = Script::with_modes(Some(modes));
            script.chat().out();
            script.response_from(&[(":status", "503")], false, Origin { details: None, served });
            script.ends(InboundEnd::HalfClosed);
            assert!(script.out().starts_with("stop sh end:error:proxy"));
            assert_eq!(script.endings[0].remark, "the proxy answered before the request had an endpoint");
            assert_eq!(script.served, None);
        }
    }
}

#[test]
fn an_error_that_the_proxy_made_up_is_not_the_model_servers() {
    let refused = "upstream_reset_before_response_started{remote_connection_failure}";
    for modes in [super::script::DUPLEX, BYPASS] {
        let mut script = Script::with_modes(Some(modes));
        script.chat().placed().out();
        let origin = Origin { details: Some(refused.into()), served: None };
        script.response_from(&[(":status", "503")], false, origin);
        script.ends(InboundEnd::HalfClosed);
        assert!(script.out().starts_with("sh end:error:proxy"));
        assert_eq!(script.endings[0].remark, refused);
    }
    let mut script = Script::new();
    let origin = Origin { details: Some("via_upstream".into()), served: None };
    script.chat().placed().response_from(&[(":status", "503")], true, origin);
    assert_eq!(script.out(), "route rh rb* sh end:natural");
}

#[test]
fn the_endpoint_that_served_is_told() {
    let served: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let mut script = Script::new();
    let origin = Origin { served: Some(served), ..Origin::default() };
    script.chat().placed().response_from(&[(":status", "200")], false, origin);
    assert_eq!(script.served, Some(served));
}

#[test]
fn an_early_response_lets_the_upload_run_out() {
    let mut script = Script::with_modes(Some(modes(BodyMode::Streamed, BodyMode::FullDuplex)));
    script.post("/raw").placed().body("a", false).out();
    assert_eq!(script.ok_response().out(), "sh");
    assert_eq!(script.body("b", false).chunk("x", true).body("c", true).out(), "rb. sb* end:natural rb.");

    // In full duplex the response to an upload that is whole here already: nothing more can come.
    let mut script = Script::new();
    script.chat().placed().ok_response().out();
    assert_eq!(script.body("late", false).out(), "");
}

#[test]
fn what_comes_after_a_refusal_is_not_looked_at() {
    let mut script = Script::new();
    script.post("/v1/chat/completions").body("nonsense", true).out();
    script.body(CHAT, true).trailers().ok_response().chunk("x", true).ends(InboundEnd::Reset);
    assert_eq!(script.out(), "");
    assert_eq!(script.endings.len(), 1);
}

#[test]
fn a_request_that_cannot_stay_is_left_to_another_picker() {
    let settings = SessionSettings { hand_over: true, ..SessionSettings::TEST };
    let duplex = super::script::DUPLEX;
    // While it waits, while its body arrives, and at the door.
    let mut script = Script::with_settings(settings, duplex);
    script.chat().out();
    assert_eq!(script.rejected(Refusal::shutting_down(1)).out(), "end:handed-over fail");
    let mut script = Script::with_settings(settings, duplex);
    script.post("/raw").body("a", false).out();
    assert_eq!(script.refused(&Refusal::shutting_down(1)).out(), "end:handed-over fail");
    let mut script = Script::with_settings(settings, duplex);
    script.refusal = Some(Refusal::shutting_down(1));
    assert_eq!(script.post("/raw").out(), "end:handed-over fail");

    // Not if something was said of it already, nor for another reason, nor a placed one.
    let mut script = Script::with_settings(settings, modes(BodyMode::Buffered, BodyMode::None));
    script.post("/raw").out();
    assert_eq!(script.refused(&Refusal::shutting_down(1)).out(), "503 end:ServiceUnavailable close");
    let mut script = Script::with_settings(settings, duplex);
    script.chat().out();
    assert_eq!(script.rejected(Refusal::out_of_body_memory(1)).out(), "429 end:ResourceExhausted close");
    let mut script = Script::with_settings(settings, duplex);
    script.chat().placed().out();
    assert_eq!(script.refused(&Refusal::shutting_down(1)).out(), "");
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.refused(&Refusal::shutting_down(1)).out(), "stop 503 end:ServiceUnavailable close");
}
