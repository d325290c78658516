use proptest::prelude::*;
use sluice_core::DropReason;
use sluice_router::Rejection;

use super::*;

const CHAT: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
const DUPLEX: BodyModes = BodyModes { request: BodyMode::FullDuplex, response: BodyMode::FullDuplex };
const BYPASS: BodyModes = BodyModes { request: BodyMode::FullDuplex, response: BodyMode::None };

/// Drives a session the way a proxy would and notes what comes out, in short words.
struct Script {
    session: Session,
    modes: Option<BodyModes>,
    /// What the next message's headers rule out.
    refusal: Option<Refusal>,
    log: Vec<String>,
    intents: Vec<Intent>,
    request_body: Vec<u8>,
    response_body: Vec<u8>,
    /// Announced response bytes.
    sent: u64,
    endings: Vec<Ending>,
    immediate: Option<crate::reject::ImmediateReply>,
    mutation: Option<RequestMutation>,
}

impl Script {
    fn new() -> Self {
        let settings = SessionSettings { max_request_body: 1_000, refusal_style: RefusalStyle::Api, retry_after: true };
        Self {
            session: Session::new(settings),
            modes: Some(DUPLEX),
            refusal: None,
            log: Vec::new(),
            intents: Vec::new(),
            request_body: Vec::new(),
            response_body: Vec::new(),
            sent: 0,
            endings: Vec::new(),
            immediate: None,
            mutation: None,
        }
    }

    fn with_modes(modes: Option<BodyModes>) -> Self {
        Self { modes, ..Self::new() }
    }

    fn message(&mut self, message: Message) -> &mut Self {
        let mut actions = Vec::new();
        let inbound =
            Inbound { modes: self.modes.take(), subset: None, vouched: None, refusal: self.refusal.take(), message };
        self.session.on_message(Time::ZERO, inbound, || "fresh".to_owned(), &mut actions);
        self.note(actions)
    }

    fn headers(&mut self, lines: &[(&str, &str)], end_of_stream: bool) -> &mut Self {
        self.message(Message::RequestHeaders { headers: headers(lines), end_of_stream })
    }

    fn post(&mut self, path: &str) -> &mut Self {
        self.headers(&[(":method", "POST"), (":path", path), ("x-request-id", "abc")], false)
    }

    fn body(&mut self, chunk: &str, end_of_stream: bool) -> &mut Self {
        self.message(Message::RequestBody { chunk: Bytes::copy_from_slice(chunk.as_bytes()), end_of_stream })
    }

    fn chat(&mut self) -> &mut Self {
        self.post("/v1/chat/completions").body(CHAT, true)
    }

    fn placed(&mut self) -> &mut Self {
        let mut actions = Vec::new();
        self.session.on_routed(Ok("10.0.0.1:80".into()), &mut actions);
        self.note(actions)
    }

    fn rejected(&mut self, rejection: Rejection) -> &mut Self {
        let mut actions = Vec::new();
        self.session.on_routed(Err(rejection.into()), &mut actions);
        self.note(actions)
    }

    fn response(&mut self, lines: &[(&str, &str)], end_of_stream: bool) -> &mut Self {
        self.message(Message::ResponseHeaders { headers: headers(lines), end_of_stream })
    }

    fn ok_response(&mut self) -> &mut Self {
        self.response(&[(":status", "200"), ("content-type", "text/event-stream")], false)
    }

    fn chunk(&mut self, chunk: &str, end_of_stream: bool) -> &mut Self {
        self.message(Message::ResponseBody { chunk: Bytes::copy_from_slice(chunk.as_bytes()), end_of_stream })
    }

    fn ends(&mut self, end: InboundEnd) -> &mut Self {
        let mut actions = Vec::new();
        self.session.on_inbound_end(end, &mut actions);
        self.note(actions)
    }

    fn note(&mut self, actions: Vec<Action>) -> &mut Self {
        for action in actions {
            let word = match action {
                Action::Route(intent) => {
                    self.intents.push(intent);
                    "route".to_owned()
                }
                Action::StopRouting => "stop".to_owned(),
                Action::Sending(bytes) => {
                    self.sent += bytes;
                    continue;
                }
                Action::Reply(Reply::RequestHeaders(mutation)) => {
                    self.mutation = Some(mutation);
                    "rh".to_owned()
                }
                Action::Reply(Reply::RequestBody(piece)) => {
                    self.request_body.extend_from_slice(&piece.bytes);
                    if piece.end_of_stream { "rb*" } else { "rb" }.to_owned()
                }
                Action::Reply(Reply::RequestTrailers) => "rt".to_owned(),
                Action::Reply(Reply::ResponseHeaders) => "sh".to_owned(),
                Action::Reply(Reply::ResponseBody(piece)) => {
                    self.response_body.extend_from_slice(&piece.bytes);
                    if piece.end_of_stream { "sb*" } else { "sb" }.to_owned()
                }
                Action::Reply(Reply::ResponseTrailers) => "st".to_owned(),
                Action::Reply(Reply::Immediate(reply)) => {
                    let word = reply.status.to_string();
                    self.immediate = Some(reply);
                    word
                }
                Action::End(ending) => {
                    self.endings.push(ending);
                    match ending.outcome {
                        Outcome::Refused(code) => format!("end:{}", code.as_str()),
                        Outcome::Terminated { cause, .. } => format!("end:{cause}"),
                    }
                }
                Action::Close(Close::Finished) => "close".to_owned(),
                Action::Close(Close::Failed(_)) => "fail".to_owned(),
            };
            self.log.push(word);
        }
        self
    }

    /// What came out since the last call.
    fn out(&mut self) -> String {
        std::mem::take(&mut self.log).join(" ")
    }
}

fn headers(lines: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in lines {
        headers.push(name, value.as_bytes().to_vec());
    }
    headers
}

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
    assert_eq!(script.ends(InboundEnd::Failed).out(), "close");
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
    assert_eq!(script.ends(InboundEnd::Failed).out(), "");
}

#[test]
fn a_model_is_needed_where_the_api_has_one() {
    let mut script = Script::new();
    script.post("/v1/completions").body(r#"{"prompt":"hello world"}"#, true);
    assert_eq!(script.out(), "400 end:BadRequest close");
    assert!(script.immediate.as_ref().unwrap().body.contains("model not found in request body"));
    let mut script = Script::new();
    assert_eq!(script.post("/v1/embeddings").body("{}", true).out(), "route");
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
fn a_client_that_leaves_before_the_response_ends_the_request() {
    for end in [InboundEnd::HalfClosed, InboundEnd::Failed] {
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
    }
}

#[test]
fn a_stream_cut_in_the_middle_of_a_response_is_told_apart() {
    for (end, expected) in
        [(InboundEnd::HalfClosed, "end:client-disconnect fail"), (InboundEnd::Failed, "end:error fail")]
    {
        let mut script = Script::new();
        script.chat().placed().ok_response().chunk("data: 1\n\n", false).out();
        assert_eq!(script.ends(end).out(), expected);
    }
}

#[test]
fn without_response_bodies_the_end_of_the_stream_is_the_end_of_the_response() {
    let mut script = Script::with_modes(Some(BYPASS));
    script.chat().placed().ok_response().out();
    assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:natural close");

    // A short one has ended before the answer to its headers arrives: then the proxy resets the stream.
    let mut script = Script::with_modes(Some(BYPASS));
    script.chat().placed().response(&[(":status", "500")], false).out();
    assert_eq!(script.ends(InboundEnd::Failed).out(), "end:natural close");
    assert_eq!(script.endings[0].outcome, Outcome::Terminated { cause: TerminationCause::Natural, status: Some(500) });

    let mut script = Script::with_modes(Some(BYPASS));
    script.chat().placed().out();
    assert_eq!(script.ends(InboundEnd::HalfClosed).out(), "end:client-disconnect fail");
}

#[test]
fn a_request_the_proxy_answers_itself_is_dead() {
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.response(&[(":status", "504")], false).out(), "stop sh");
    assert_eq!(script.placed().out(), "");
    assert_eq!(script.chunk("timeout", true).out(), "sb* end:natural");

    // While the upload still runs: what is left of it is dropped.
    let mut script = Script::new();
    script.post("/v1/chat/completions").body("{", false).out();
    assert_eq!(script.response(&[(":status", "408")], true).out(), "sh end:natural");
    assert_eq!(script.body("}", true).out(), "");
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
fn a_body_mode_that_cannot_work_is_named() {
    for (request, response, word) in [
        (BodyMode::Buffered, BodyMode::FullDuplex, "request bodies in mode BUFFERED"),
        (BodyMode::Streamed, BodyMode::None, "request bodies in mode STREAMED"),
        (BodyMode::FullDuplex, BodyMode::Buffered, "response bodies in mode BUFFERED"),
    ] {
        let mut script = Script::with_modes(Some(BodyModes { request, response }));
        script.post("/v1/chat/completions");
        assert_eq!(script.out(), "500 end:Internal close");
        assert!(script.immediate.as_ref().unwrap().body.contains(word), "{word}");
    }
    // No word about modes is no trouble.
    let mut script = Script::with_modes(None);
    assert_eq!(script.chat().placed().out(), "route rh rb*");
}

#[test]
fn messages_out_of_order_fail_the_stream() {
    let mut script = Script::new();
    assert_eq!(script.body("x", true).out(), "end:error fail");
    let mut script = Script::new();
    script.chat().out();
    assert_eq!(script.body("x", true).out(), "stop end:error fail");
    let mut script = Script::new();
    script.chat().placed().ok_response().out();
    assert_eq!(script.ok_response().out(), "end:error fail");
    let mut script = Script::new();
    assert_eq!(script.chat().placed().chunk("x", false).out(), "route rh rb* end:error fail");
    let mut script = Script::new();
    assert_eq!(script.message(Message::Unknown).out(), "end:error fail");
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
    assert_eq!(mutation.new_request_id.as_deref(), Some("fresh"));
    assert_eq!(mutation.destination, "10.0.0.1:80");

    let mut script = Script::new();
    script.chat().placed();
    assert_eq!(script.mutation.unwrap().new_request_id, None);
    assert_eq!(script.intents[0].request.id.to_string(), "abc");
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
        assert_eq!(script.session.api, api);
    }
}

/// Cuts `text` at the given places.
fn cut(text: &[u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut places: Vec<usize> = cuts.iter().map(|place| place % (text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| Bytes::copy_from_slice(&text[pair[0]..pair[1]])).collect()
}

proptest! {
    #[test]
    fn any_cutting_gives_the_same_bytes_one_decision_and_one_completion(
        request_cuts in proptest::collection::vec(any::<usize>(), 0..8),
        response_cuts in proptest::collection::vec(any::<usize>(), 0..8),
        request_trailers in any::<bool>(),
        response_trailers in any::<bool>(),
        empty_end in any::<bool>(),
    ) {
        const RESPONSE: &str = "data: {\"x\":1}\n\ndata: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";
        let mut script = Script::new();
        script.post("/v1/chat/completions");
        let mut chunks = cut(CHAT.as_bytes(), &request_cuts);
        if empty_end {
            chunks.push(Bytes::new());
        }
        let last = chunks.len() - 1;
        for (index, chunk) in chunks.into_iter().enumerate() {
            let end_of_stream = index == last && !request_trailers;
            script.message(Message::RequestBody { chunk, end_of_stream });
        }
        if request_trailers {
            script.message(Message::RequestTrailers);
        }
        script.placed().ok_response();
        let chunks = cut(RESPONSE.as_bytes(), &response_cuts);
        let last = chunks.len() - 1;
        for (index, chunk) in chunks.into_iter().enumerate() {
            let end_of_stream = index == last && !response_trailers;
            script.message(Message::ResponseBody { chunk, end_of_stream });
        }
        if response_trailers {
            script.message(Message::ResponseTrailers);
        }
        script.ends(InboundEnd::HalfClosed);

        prop_assert_eq!(&script.request_body[..], CHAT.as_bytes());
        prop_assert_eq!(&script.response_body[..], RESPONSE.as_bytes());
        prop_assert_eq!(script.sent, RESPONSE.len() as u64);
        prop_assert_eq!(script.intents.len(), 1);
        prop_assert_eq!(script.intents[0].request.model.as_deref(), Some("m"));
        prop_assert_eq!(script.endings.len(), 1);
        prop_assert_eq!(script.endings[0].usage, TokenUsage { prompt: Some(3), completion: Some(4), cached: None });
        prop_assert_eq!(script.log.last().map(String::as_str), Some("close"));
        let marks = |word: &str| script.log.iter().filter(|entry| entry.as_str() == word).count();
        prop_assert_eq!((marks("rb*"), marks("rt")), if request_trailers { (0, 1) } else { (1, 0) });
        prop_assert_eq!((marks("sb*"), marks("st")), if response_trailers { (0, 1) } else { (1, 0) });
    }

    #[test]
    fn any_order_of_messages_ends_once_and_closes_last(kinds in proptest::collection::vec((0..10_u8, any::<bool>()), 0..12)) {
        let mut script = Script::new();
        for (kind, flag) in kinds {
            match kind {
                0 => script.post(if flag { "/raw" } else { "/v1/completions" }),
                1 => script.headers(&[(":method", "GET"), (if flag { "x" } else { "upgrade" }, "a")], flag),
                2 => script.body(CHAT, flag),
                3 => script.message(Message::RequestTrailers),
                4 => script.response(&[(":status", "200")], flag),
                5 => script.chunk("x", flag),
                6 => script.message(Message::ResponseTrailers),
                7 => script.placed(),
                8 => script.rejected(Rejection::NoCandidates { retry_after: 1 }),
                _ => script.message(Message::Unknown),
            };
        }
        script.ends(InboundEnd::HalfClosed);
        let closes: Vec<usize> =
            script.log.iter().enumerate().filter(|(_, word)| *word == "close" || *word == "fail").map(|(index, _)| index).collect();
        prop_assert_eq!(closes, vec![script.log.len() - 1]);
        prop_assert_eq!(script.endings.len(), 1);
        prop_assert!(script.intents.len() <= 1);
    }
}
