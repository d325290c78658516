//! The model that the endpoint is asked for, and the one that the client reads, in every body mode.

use std::sync::Arc;

use sluice_core::MAX_MODEL_NAME;
use sluice_router::{ModelRewrites, RewriteRule, RewriteTarget};

use super::script::{BYPASS, CHAT, DUPLEX, Script, modes};
use crate::action::Notice;
use crate::message::{BodyMode, BodyModes};
use crate::session::{SessionSettings, StreamFacts, Wanted};

const PATH: &str = "/v1/chat/completions";
const RENAMED: &str = r#"{"model":"big","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
const EVENT: &str = "data: {\"model\":\"big\"}\n\n";
/// It, cut in the midst of the name.
const PARTS: [&str; 2] = ["data: {\"model\":\"b", "ig\"}\n\n"];

/// Requests for `m` are for `big`; those for `none` for nothing.
fn rules() -> ModelRewrites {
    let rule = |model: &str, targets: &[&str]| RewriteRule {
        origin: "rule".into(),
        models: vec![model.to_owned()],
        targets: targets.iter().map(|&model| RewriteTarget { model: model.to_owned(), weight: None }).collect(),
    };
    [rule("m", &["big"]), rule("none", &[])].into_iter().collect()
}

fn all_become(target: &str) -> ModelRewrites {
    let targets = vec![RewriteTarget { model: target.to_owned(), weight: None }];
    [RewriteRule { origin: "all".into(), models: vec![], targets }].into_iter().collect()
}

fn script(rewrites: ModelRewrites, modes: BodyModes) -> Script {
    let settings = SessionSettings { wanted: Wanted { models: true, ..Wanted::default() }, ..SessionSettings::TEST };
    let mut script = Script::with_settings(settings, modes);
    script.session = crate::session::Session::new(settings, StreamFacts::default(), Arc::new(rewrites));
    script
}

#[test]
fn the_endpoint_is_asked_for_the_target_in_full_duplex() {
    let mut script = script(rules(), DUPLEX);
    script.headers(&[(":method", "POST"), (":path", PATH), ("content-length", "72")], false).body(CHAT, true);
    assert_eq!(script.placed().out(), "route rh rb*");
    assert_eq!(script.request_body, RENAMED.as_bytes());
    assert_eq!(script.mutation.as_ref().unwrap().content_length, Some(RENAMED.len() as u64));
    let request = &script.intents[0].request;
    assert_eq!((request.model.as_deref(), request.target_model.as_deref()), (Some("m"), Some("big")));
    assert_eq!(request.rewritten_by.as_deref(), Some("rule"));
    assert_eq!(request.body_bytes, CHAT.len() as u64, "as received");
}

#[test]
fn a_body_that_the_proxy_was_asked_for_has_no_length_once_it_is_changed() {
    for (length, drops) in [(Some("72"), true), (None, false)] {
        let mut script = script(rules(), modes(BodyMode::None, BodyMode::None));
        let facts = StreamFacts { may_choose_modes: true, ..StreamFacts::default() };
        let settings =
            SessionSettings { wanted: Wanted { models: true, ..Wanted::default() }, ..SessionSettings::TEST };
        script.session = crate::session::Session::new(settings, facts, Arc::new(rules()));
        let mut lines = vec![(":method", "POST"), (":path", PATH)];
        lines.extend(length.map(|length| ("content-length", length)));
        script.headers(&lines, false).body(CHAT, true).placed();
        assert_eq!(script.request_body, RENAMED.as_bytes());
        let mutation = script.mutation.as_ref().unwrap();
        assert_eq!((mutation.content_length, mutation.remove.contains(&"content-length")), (None, drops));
    }
}

#[test]
fn the_endpoint_is_asked_for_the_target_where_the_proxy_has_the_body() {
    let mut script = script(rules(), modes(BodyMode::Buffered, BodyMode::None));
    script.headers(&[(":method", "POST"), (":path", PATH), ("content-length", "72")], false).body(CHAT, true);
    let headers_only = script.held - RENAMED.len() as u64;
    assert!(headers_only > 0, "the other body is held here");
    assert_eq!(script.placed().out(), "rh? route rb!");
    assert_eq!(script.request_body, RENAMED.as_bytes());
    assert_eq!(script.mutation.as_ref().unwrap().content_length, Some(RENAMED.len() as u64));
    assert_eq!(script.held, 0);
}

#[test]
fn a_request_that_no_rule_is_for_goes_on_as_it_came() {
    let other = r#"{"model" : "x", "messages":[]}"#;
    for body_mode in [BodyMode::FullDuplex, BodyMode::Buffered] {
        let mut script = script(rules(), modes(body_mode, BodyMode::FullDuplex));
        script
            .headers(&[(":method", "POST"), (":path", PATH), ("content-length", "30")], false)
            .body(other, true)
            .placed();
        let expected = if body_mode == BodyMode::FullDuplex { other } else { "" };
        assert_eq!(script.request_body, expected.as_bytes());
        assert_eq!(script.mutation.as_ref().unwrap().content_length, None);
        let request = &script.intents[0].request;
        assert_eq!((request.target_model.as_deref(), request.rewritten_by.as_deref()), (Some("x"), None));
        script.ok_response().chunk(EVENT, true);
        assert_eq!(script.response_body, EVENT.as_bytes());
    }
}

#[test]
fn a_rule_for_all_gives_a_model_to_a_request_that_names_none() {
    let mut script = script(all_become("big"), DUPLEX);
    assert_eq!(script.post(PATH).body(r#"{"messages":[]}"#, true).placed().out(), "route rh rb*");
    assert_eq!(script.request_body, br#"{"model":"big","messages":[]}"#);
    assert_eq!(script.intents[0].request.model, None);
    // There is no name of the client's that could be put back.
    script.ok_response().chunk(EVENT, true);
    assert_eq!(script.response_body, EVENT.as_bytes());
}

#[test]
fn a_rule_without_a_target_refuses_its_requests() {
    let mut script = script(rules(), DUPLEX);
    assert_eq!(script.post(PATH).body(r#"{"model":"none"}"#, true).out(), "400 end:BadRequest close");
    assert!(script.refusal_text().contains("model not found in request body"), "{}", script.refusal_text());
}

#[test]
fn a_header_asks_for_a_model_and_a_rule_overrules_it() {
    let target = |rewrites: ModelRewrites, lines: &[(&str, &str)]| {
        let mut script = script(rewrites, DUPLEX);
        script.headers(&[&[(":method", "POST"), (":path", PATH)], lines].concat(), false).body(CHAT, true);
        script.intents[0].request.target_model.as_deref().map(str::to_owned)
    };
    let (present, older) = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite");
    let none = ModelRewrites::default;
    assert_eq!(target(none(), &[(older, "b")]).as_deref(), Some("b"));
    assert_eq!(target(none(), &[(older, "b"), (present, "c")]).as_deref(), Some("c"));
    assert_eq!(target(none(), &[(older, "b"), (present, "")]).as_deref(), Some("m"));
    assert_eq!(target(rules(), &[(present, "c")]).as_deref(), Some("big"));
}

/// With 40 models, each of one byte.
fn body_of_many_models() -> String {
    format!("{{{}}}", [r#""model":0"#; 40].join(","))
}

#[test]
fn a_body_that_its_models_make_too_large_is_refused() {
    let body = body_of_many_models();
    for mode in [BodyMode::FullDuplex, BodyMode::Buffered] {
        let answer = |target: &str| {
            let mut script = script(ModelRewrites::default(), modes(mode, BodyMode::None));
            script.headers(&[(":path", PATH), ("x-llm-d-model-name-rewrite", target)], false).body(&body, true);
            script
        };
        // With the quotes in the place of each 0.
        let fits = (1_000 - body.len()) / 40 + 1 - 2;
        let mut refused = answer(&"T".repeat(fits + 1));
        assert!(refused.out().ends_with("413 end:PayloadTooLarge close"), "{mode:?}");
        assert!(refused.intents.is_empty());
        assert!(refused.refusal_text().contains("its model replaced"), "{}", refused.refusal_text());
        let mut placed = answer(&"T".repeat(fits));
        assert!(placed.placed().out().contains("route"), "{mode:?}");
        assert!(placed.request_body.len() > 900, "{mode:?}");
    }
}

#[test]
fn a_changed_body_is_booked_while_its_request_waits_and_made_when_it_goes_on() {
    let body = body_of_many_models();
    for mode in [BodyMode::FullDuplex, BodyMode::Buffered] {
        let mut script = script(ModelRewrites::default(), modes(mode, BodyMode::None));
        let lines = [(":path", PATH), ("x-llm-d-model-name-rewrite", "target")];
        let headers: usize = lines.iter().map(|(name, value)| name.len() + value.len()).sum();
        script.headers(&lines, false).body(&body, true);
        let changed = body.replace('0', "\"target\"");
        assert_eq!(script.held, (headers + changed.len()) as u64, "{mode:?}");
        assert_eq!(script.request_body, b"", "{mode:?}");
        script.placed();
        assert_eq!((script.held, &script.request_body[..]), (0, changed.as_bytes()), "{mode:?}");
    }
    // Of a body that becomes shorter, the longer one is held until then.
    let mut script = script(ModelRewrites::default(), DUPLEX);
    let body = format!(r#"{{"model":"{}"}}"#, "m".repeat(200));
    script.headers(&[(":path", PATH), ("x-llm-d-model-name-rewrite", "b")], false).body(&body, true);
    assert!(script.held > body.len() as u64, "{}", script.held);
    assert_eq!(script.placed().request_body, br#"{"model":"b"}"#);
}

#[test]
fn a_header_with_a_name_that_is_too_long_is_refused_before_the_body_comes() {
    let settings = SessionSettings { max_request_headers: 50_000, body_memory: 100_000, ..SessionSettings::TEST };
    let (present, older) = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite");
    for mode in [BodyMode::FullDuplex, BodyMode::Buffered, BodyMode::Streamed, BodyMode::None] {
        let answer = |lines: &[(&str, &str)]| {
            let mut script = Script::with_settings(settings, modes(mode, BodyMode::None));
            script.headers(&[&[(":path", PATH)], lines].concat(), false);
            (script.out(), script)
        };
        let (longest, longer) = ("T".repeat(MAX_MODEL_NAME), "T".repeat(MAX_MODEL_NAME + 1));
        for name in [present, older] {
            let (answered, script) = answer(&[(name, &longer)]);
            assert_eq!(answered, "400 end:BadRequest close", "{mode:?}");
            let text = script.refusal_text();
            assert!(text.contains(name) && text.contains("4096") && text.len() < 300, "{text}");
            assert_ne!(answer(&[(name, &longest)]).0, answered, "{mode:?}");
        }
        assert_ne!(
            answer(&[(older, &longer), (present, "b")]).0,
            "400 end:BadRequest close",
            "only one of them counts"
        );
    }
}

#[test]
fn a_body_with_a_name_that_is_too_long_is_refused() {
    let settings = SessionSettings { max_request_body: 50_000, body_memory: 100_000, ..SessionSettings::TEST };
    for mode in [BodyMode::FullDuplex, BodyMode::Buffered] {
        let mut script = Script::with_settings(settings, modes(mode, BodyMode::FullDuplex));
        script.post(PATH).body(&format!(r#"{{"model":"{}"}}"#, "m".repeat(MAX_MODEL_NAME + 1)), true);
        assert!(script.out().ends_with("400 end:BadRequest close"), "{mode:?}");
        assert!(script.intents.is_empty());
        let text = script.refusal_text();
        assert!(text.contains("4096") && text.len() < 300, "{text}");
    }
}

#[test]
fn what_is_no_inference_api_is_left_alone() {
    let mut script = script(all_become("big"), DUPLEX);
    script.post("/v1/messages/count_tokens").body(CHAT, true).placed();
    assert_eq!(script.request_body, CHAT.as_bytes());
    assert_eq!(script.intents[0].request.target_model, None);
}

#[test]
fn the_client_reads_its_own_name_in_every_mode_in_which_the_response_passes_here() {
    let expected = EVENT.replace("big", "m");
    for (mode, replies) in [
        (BodyMode::FullDuplex, "sh sb sb*"),
        (BodyMode::Streamed, "sh sb! sb!"),
        (BodyMode::Buffered, "sh sb! sb!"),
        (BodyMode::Other, "sh sb sb*"),
    ] {
        let mut script = script(rules(), modes(BodyMode::FullDuplex, mode));
        script.post(PATH).body(CHAT, true).placed().out();
        let lines = [(":status", "200"), ("content-type", "text/event-stream"), ("content-length", "22")];
        script.response(&lines, false);
        assert!(script.length_dropped, "{mode:?}");
        script.chunk(PARTS[0], false).chunk(PARTS[1], true);
        assert_eq!(script.out(), format!("{replies} end:natural"), "{mode:?}");
        assert_eq!(script.response_body, expected.as_bytes(), "{mode:?}");
    }
}

#[test]
fn a_response_that_breaks_off_is_passed_on_to_its_last_byte() {
    let mut script = script(rules(), DUPLEX);
    script.post(PATH).body(CHAT, true).placed().ok_response().chunk(PARTS[0], false);
    script.message(crate::message::Message::ResponseTrailers);
    assert_eq!(script.response_body, PARTS[0].as_bytes());
}

#[test]
fn bodies_are_asked_for_where_that_is_possible_and_a_model_may_be_replaced() {
    let facts = StreamFacts { may_choose_modes: true, ..StreamFacts::default() };
    let none = modes(BodyMode::None, BodyMode::None);
    let run = |rewrites: ModelRewrites, models: bool, path: &str| {
        let settings = SessionSettings { wanted: Wanted { models, ..Wanted::default() }, ..SessionSettings::TEST };
        let mut script = Script::started(settings, facts, Some(none));
        script.session = crate::session::Session::new(settings, facts, Arc::new(rewrites));
        script.post(path);
        script
    };
    let mut asks = run(rules(), true, PATH);
    assert_eq!(asks.out(), "modes");
    assert_eq!(asks.asked, Some(BYPASS));
    asks.body(CHAT, true).placed().ok_response();
    assert_eq!(asks.out(), "route rh rb* sh+modes");
    assert_eq!(asks.asked.map(|modes| modes.response), Some(BodyMode::Streamed));

    let mut unnamed = run(rules(), true, PATH);
    unnamed.body(r#"{"model":"x"}"#, true).placed().ok_response();
    assert_eq!(unnamed.asked.map(|modes| modes.response), Some(BodyMode::None), "nothing is to be put back");
    for (rewrites, models, path) in
        [(ModelRewrites::default(), true, PATH), (rules(), false, PATH), (rules(), true, "/raw")]
    {
        assert_eq!(run(rewrites, models, path).out(), "route");
    }
}

#[test]
fn where_bodies_pass_by_nothing_is_said_to_be_replaced_and_the_operator_is_told() {
    for mode in [BodyMode::None, BodyMode::Streamed] {
        let mut script = script(rules(), modes(mode, BodyMode::FullDuplex));
        assert_eq!(script.post(PATH).out(), "route");
        assert_eq!(script.notices, [Notice::ModelsStay { mode }]);
        assert_eq!(script.intents[0].request.target_model, None);
        assert_eq!(script.intents[0].request.rewritten_by, None);
    }
    let mut raw = script(rules(), modes(BodyMode::None, BodyMode::None));
    raw.post("/raw");
    assert_eq!(raw.notices, []);

    let mut bypass = script(rules(), BYPASS);
    bypass.post(PATH).body(CHAT, true).placed().ok_response();
    assert_eq!(bypass.notices, [Notice::TargetsShow]);
}

#[test]
fn an_event_that_ends_a_stream_comes_after_the_clients_name() {
    let mut script = script(rules(), DUPLEX);
    script.revocable = true;
    script.post(PATH).body(CHAT, true).placed().ok_response().chunk(PARTS[0], false);
    script.revoked().chunk(PARTS[1], false);
    let text = String::from_utf8(script.response_body.clone()).unwrap();
    assert!(text.starts_with(&EVENT.replace("big", "m")), "{text}");
    assert!(text.len() > EVENT.len() && !text.contains("big"), "{text}");
}
