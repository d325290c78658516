//! Full duplex, both ways or with responses that pass by.

use sluice_core::{Api, DropReason, TokenUsage};
use sluice_payload::{Parser, Parsers};
use sluice_router::Rejection;

use super::script::{CHAT, DUPLEX, Script};
use crate::message::{InboundEnd, Message};
use crate::session::SessionSettings;

#[test]
fn headers_are_answered_only_after_the_whole_body() {
    let mut script = Script::new();
    assert_eq!(script.post("/v1/chat/completions").out(), "");
    let (head, tail) = CHAT.split_at(10);
    assert_eq!(script.body(head, false).out(), "");
    assert_eq!(script.body(tail, true).out(), "route");
    assert_eq!(script.placed().out(), "rh rb*");
    assert_eq!(script.request_body, CHAT.as_bytes());
    let request = &script.intents[0].request;
    assert_eq!(request.model.as_deref(), Some("m"));
    assert!(request.stream);
    assert_eq!(request.api, Api::OpenAiChat);
    assert_eq!(request.body_bytes, CHAT.len() as u64);
    assert!(!script.intents[0].header_only);
}

#[test]
fn a_streamed_response_passes_and_ends_once() {
    let mut script = Script::new();
    script.chat().placed().out();
    assert_eq!(script.ok_response().out(), "sh");
    assert_eq!(script.chunk("data: 1\n\n", false).out(), "sb");
    assert_eq!(script.chunk("", false).out(), "sb");
    assert_eq!(script.chunk("data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n", false).out(), "sb");
    assert_eq!(script.chunk("", true).out(), "sb* end:natural");
    assert_eq!(script.ends(InboundEnd::Reset).out(), "close");
    assert_eq!(script.endings[0].usage, TokenUsage { prompt: Some(3), completion: Some(4), cached: None });
}

#[test]
fn json_responses_pass_as_they_arrive() {
    let mut script = Script::new();
    script.chat().placed().out();
    script.response(&[(":status", "200"), ("content-type", "application/json")], false);
    assert_eq!(script.out(), "sh");
    assert_eq!(script.chunk("{\"usage\":{\"prompt_tok", false).out(), "sb");
    assert_eq!(script.chunk("ens\":7}}", true).out(), "sb* end:natural");
    assert_eq!(script.response_body, br#"{"usage":{"prompt_tokens":7}}"#);
    assert_eq!(script.endings[0].usage.prompt, Some(7));
}

#[test]
fn trailers_end_the_body_in_both_directions() {
    let mut script = Script::new();
    script.post("/v1/chat/completions").body(CHAT, false);
    assert_eq!(script.out(), "");
    assert_eq!(script.message(Message::RequestTrailers).out(), "route");
    assert_eq!(script.placed().out(), "rh rb rt");
    assert_eq!(script.ok_response().chunk("x", false).out(), "sh sb");
    assert_eq!(script.message(Message::ResponseTrailers).out(), "st end:natural");
    assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "close");
}

#[test]
fn trailers_without_a_body_answer_no_body() {
    let mut script = Script::new();
    script.post("/raw").message(Message::RequestTrailers);
    assert_eq!(script.out(), "route");
    assert_eq!(script.placed().out(), "rh rt");
}

#[test]
fn an_empty_last_body_message_is_answered() {
    let mut script = Script::new();
    script.post("/raw").body("abc", false).body("", true);
    assert_eq!(script.placed().out(), "route rh rb*");
    assert_eq!(script.request_body, b"abc");
    let mut script = Script::new();
    assert_eq!(script.post("/raw").body("", true).placed().out(), "route rh rb*");
}

#[test]
fn a_get_is_placed_at_once_and_not_counted() {
    let mut script = Script::new();
    script.headers(&[(":method", "GET"), (":path", "/v1/models")], true);
    assert_eq!(script.out(), "route");
    assert!(script.intents[0].header_only);
    assert_eq!(script.placed().out(), "rh");
    assert_eq!(script.response(&[(":status", "200")], false).chunk("{}", true).out(), "sh sb* end:natural");
    // Also on a path that would otherwise need a model.
    let mut script = Script::new();
    assert_eq!(script.headers(&[(":method", "GET"), (":path", "/v1/completions")], true).out(), "route");
}

#[test]
fn a_post_without_a_body_takes_the_full_path() {
    let mut script = Script::new();
    script.headers(&[(":method", "POST"), (":path", "/reset")], true);
    assert!(!script.intents[0].header_only);
    assert_eq!(script.placed().out(), "route rh");
    let mut script = Script::new();
    script.headers(&[(":method", "POST"), (":path", "/v1/completions")], true);
    assert_eq!(script.out(), "400 end:BadRequest close");
}

#[test]
fn an_upgrade_is_placed_by_its_headers_and_then_passed_on() {
    let mut script = Script::new();
    let lines = [(":method", "GET"), (":path", "/v1/realtime"), ("upgrade", "websocket"), ("connection", "upgrade")];
    assert_eq!(script.headers(&lines, false).out(), "route");
    assert!(!script.intents[0].header_only, "it may keep a model busy");
    assert_eq!(script.body("early", false).out(), "", "held until it is known where it goes");
    assert_eq!(script.placed().out(), "rh rb");
    assert_eq!(script.response(&[(":status", "101")], false).out(), "sh");
    assert_eq!(script.body("ping", false).chunk("pong", false).out(), "rb sb");
    assert_eq!(script.body("", true).chunk("", true).out(), "rb* sb* end:natural");
    assert_eq!(script.request_body, b"earlyping");

    // A client that ends its side before it is placed.
    let mut script = Script::new();
    script.headers(&lines, false).body("bye", true);
    assert_eq!(script.placed().out(), "route rh rb*");

    // Also where the path would need a model.
    let mut script = Script::new();
    script.headers(&[(":method", "GET"), (":path", "/v1/completions"), ("upgrade", "websocket")], false);
    assert_eq!(script.placed().out(), "route rh");
}

#[test]
fn a_response_of_headers_only_is_complete() {
    let mut script = Script::new();
    script.chat().placed().out();
    assert_eq!(script.response(&[(":status", "204")], true).out(), "sh end:natural");
}

#[test]
fn a_response_without_a_request_phase_passes() {
    let mut script = Script::new();
    assert_eq!(script.ok_response().chunk("a", false).chunk("", true).out(), "sh sb sb* end:natural");
    assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "close");
}

#[test]
fn bad_json_is_refused_before_any_routing() {
    let mut script = Script::new();
    script.post("/v1/chat/completions").body("{\"model\": \"m\", oops", true);
    assert_eq!(script.out(), "400 end:BadRequest close");
    let body = script.immediate.as_ref().map(|reply| reply.body.clone()).unwrap();
    assert!(body.contains("line 1 column 16") && !body.contains("oops"), "{body}");
    assert_eq!(script.ends(InboundEnd::Reset).out(), "");
}

#[test]
fn a_model_is_needed_where_the_api_has_one() {
    let mut script = Script::new();
    script.post("/v1/completions").body(r#"{"prompt":"hello world"}"#, true);
    assert_eq!(script.out(), "400 end:BadRequest close");
    assert!(script.immediate.as_ref().unwrap().body.contains("model not found in request body"));
    for path in ["/v1/embeddings", "/v1/messages", "/v1/responses"] {
        let mut script = Script::new();
        assert_eq!(script.post(path).body("{}", true).out(), "400 end:BadRequest close", "{path}");
    }
    for path in ["/v1/conversations", "/inference/v1/generate"] {
        let mut script = Script::new();
        assert_eq!(script.post(path).body("{}", true).out(), "route", "{path}");
    }
    let mut script = Script::new();
    assert_eq!(script.post("/v1/messages/count_tokens").body("[", true).placed().out(), "route rh rb*");
    assert_eq!(script.request_body, b"[", "what is not known is not judged");
}

#[test]
fn a_path_that_no_parser_claims_is_refused_by_its_headers() {
    let mut parsers = Parsers::NONE;
    parsers.add(Parser::Anthropic);
    let settings = SessionSettings { parsers, ..SessionSettings::TEST };
    let mut script = Script::with_settings(settings, DUPLEX);
    assert_eq!(script.post("/v1/chat/completions?key=secret").out(), "400 end:BadRequest close");
    let told = &script.immediate.as_ref().unwrap().body;
    assert!(told.contains("no parser registered matching path suffix for: /v1/chat/completions\""), "{told}");
    let mut script = Script::with_settings(settings, DUPLEX);
    assert_eq!(script.post("/v1/messages").body(CHAT, true).out(), "route");
    let mut script = Script::with_settings(settings, DUPLEX);
    script.headers(&[(":method", "GET"), (":path", "/v1/models")], true);
    assert_eq!(script.out(), "route", "there is nothing to parse");
}

#[test]
fn rejections_become_immediate_replies() {
    for (rejection, expected, reason) in [
        (
            Rejection::NoCandidates { retry_after: 1 },
            "503 end:ServiceUnavailable close",
            DropReason::RejectedNoEndpoints,
        ),
        (Rejection::NoneAvailable { retry_after: 1 }, "429 end:ResourceExhausted close", DropReason::RejectedSaturated),
    ] {
        let mut script = Script::new();
        script.chat().out();
        assert_eq!(script.rejected(rejection).out(), expected);
        let reply = script.immediate.unwrap();
        assert!(reply.headers.contains(&("x-llm-d-request-dropped-reason", reason.as_str().into())));
    }
}

#[test]
fn a_body_over_the_limit_is_refused_as_soon_as_it_shows() {
    let mut script = Script::new();
    script.headers(&[(":method", "POST"), (":path", "/raw"), ("content-length", "1001")], false);
    assert_eq!(script.out(), "413 end:PayloadTooLarge close");

    let mut script = Script::new();
    script.post("/raw").body(&"x".repeat(1_000), false);
    assert_eq!(script.out(), "");
    assert_eq!(script.body("x", false).out(), "413 end:PayloadTooLarge close");
}

#[test]
fn what_headers_rule_out_is_refused_before_the_body_arrives() {
    let mut script = Script::new();
    script.refusal = Some(Rejection::Shed { retry_after: 1 }.into());
    assert_eq!(script.post("/v1/chat/completions").out(), "429 end:ResourceExhausted close");
    assert_eq!(script.body(CHAT, true).out(), "");
}

#[test]
fn a_message_out_of_order_is_refused_while_the_client_has_seen_nothing() {
    let mut script = Script::new();
    assert_eq!(script.body("x", true).out(), "500 end:Internal close");
    assert!(script.refusal_text().contains("unexpected from the proxy: request body"));
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.body("x", true).out(), "stop 500 end:Internal close");
    let mut script = Script::new();
    assert_eq!(script.chat().placed().chunk("x", false).out(), "route rh rb* 500 end:Internal close");
    let mut script = Script::new();
    assert_eq!(script.message(Message::Unknown).out(), "500 end:Internal close");
}

#[test]
fn a_message_out_of_order_in_a_response_fails_the_stream() {
    let mut script = Script::new();
    script.chat().placed().ok_response().out();
    assert_eq!(script.ok_response().out(), "end:error fail");
    let mut script = Script::new();
    script.chat().placed().ok_response().chunk("", true).out();
    assert_eq!(script.chunk("x", false).out(), "fail");
}

#[test]
fn an_end_that_is_told_twice_is_heard_once() {
    let mut script = Script::new();
    assert_eq!(script.chat().body("", true).placed().body("", true).out(), "route rh rb*");
    script.ok_response().chunk("x", true).out();
    assert_eq!(script.chunk("", true).out(), "");
    assert_eq!(script.endings.len(), 1);

    // Trailers after an end: they are answered, and end the body in place of it where that is still possible.
    let mut script = Script::new();
    assert_eq!(script.chat().trailers().placed().out(), "route rh rb rt");
    let mut script = Script::new();
    assert_eq!(script.chat().placed().trailers().out(), "route rh rb* rt");
}

#[test]
fn gateway_headers_are_removed_and_a_missing_id_is_made() {
    let mut script = Script::new();
    let lines = [
        (":method", "POST"),
        (":path", "/raw"),
        ("X-Prefiller-Host-Port", "evil:1"),
        ("x-llm-d-inference-objective", "premium"),
        ("x-request-id", ""),
        ("accept", "*/*"),
    ];
    script.headers(&lines, true).placed();
    let mutation = script.mutation.unwrap();
    assert_eq!(mutation.remove, ["x-llm-d-inference-objective", "x-prefiller-host-port"]);
    assert_eq!(mutation.new_request_id.as_deref(), Some("00000000-0000-4007-8000-000000000007"));
    assert_eq!(mutation.destination, "10.0.0.1:80");

    let mut script = Script::new();
    script.chat().placed();
    assert_eq!(script.mutation.unwrap().new_request_id, None);
    assert_eq!(script.intents[0].request.id.to_string(), "abc");
}

#[test]
fn a_trace_goes_on_behind_the_picker() {
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (sent, set) in [
        (Some(traceparent), Some("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01")),
        (Some("nonsense"), None),
        (None, None),
    ] {
        let mut script = Script::new();
        let mut lines = vec![(":method", "POST"), (":path", "/raw")];
        lines.extend(sent.map(|sent| ("traceparent", sent)));
        script.headers(&lines, true).placed();
        assert_eq!(script.mutation.unwrap().traceparent.as_deref(), set);
    }
}

#[test]
fn the_path_is_looked_for_where_gateways_put_it() {
    for (lines, api) in [
        (&[(":path", ""), ("x-original-path", "/v1/chat/completions")][..], Api::OpenAiChat),
        (&[("x-forwarded-path", "/raw")], Api::Passthrough),
        (&[], Api::OpenAiCompletions),
    ] {
        let mut script = Script::new();
        script.headers(lines, false);
        assert_eq!(script.body(CHAT, true).intents[0].request.api, api);
    }
}
