//! `docs/requests.md` says what the code does.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use sluice_flow::Outcome;
use sluice_payload::ParseError;
use sluice_router::Rejection;

use crate::error_shape::ErrorShape;
use crate::message::BodyMode;
use crate::reject::{Code, Refusal};
use crate::reply::GATEWAY_HEADERS;
use crate::request_headers::{BodyLimit, MAX_HEADER_LINES};
use crate::session::SessionSettings;

const PAGE: &str = include_str!("../../../docs/requests.md");

/// Where names of headers stand.
const SOURCES: [&str; 10] = [
    include_str!("convert.rs"),
    include_str!("ids.rs"),
    include_str!("reject.rs"),
    include_str!("reply.rs"),
    include_str!("request_headers.rs"),
    include_str!("service.rs"),
    include_str!("session/request.rs"),
    include_str!("session/timing.rs"),
    include_str!("../../router/src/ask.rs"),
    include_str!("../../router/src/identity.rs"),
];

fn section<'a>(heading: &str) -> &'a str {
    let rest = PAGE.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no section {heading}")).1;
    rest.split("\n## ").next().unwrap().split("\n### ").next().unwrap()
}

/// Words in quotes that begin as the names of such headers do.
fn names(text: &str, quote: char) -> BTreeSet<&str> {
    let quoted = text.split(quote).skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.starts_with("x-") && word.chars().all(|letter| matches!(letter, 'a'..='z' | '0'..='9' | '-'))
    };
    quoted.filter(is_name).collect()
}

#[test]
fn every_header_that_the_code_names_is_described_and_no_other() {
    let sources = SOURCES.map(|source| source.split("#[cfg(test)]").next().unwrap());
    let in_code: BTreeSet<&str> = sources.iter().flat_map(|source| names(source, '"')).collect();
    assert_eq!(names(PAGE, '`'), in_code);
}

#[test]
fn the_headers_that_are_taken_out_are_listed() {
    let listed = names(section("## Headers that the model server does not get"), '`');
    assert_eq!(listed, BTreeSet::from(GATEWAY_HEADERS));
}

fn row(what: &str, refusal: &Refusal) -> String {
    let Refusal { code: _, message, reason, retry_after } = refusal;
    let reason = reason.map_or_else(|| "–".to_owned(), |reason| reason.to_string());
    let retry_after = if retry_after.is_some() { "yes" } else { "–" };
    let status = refusal.render(SessionSettings::TEST, ErrorShape::OpenAi).status;
    let message = match message.split_once(": ") {
        Some((begin, _)) => format!("{begin}…"),
        None => message.clone(),
    };
    format!("| {what} | {status} | {reason} | {retry_after} | {message} |")
}

/// The rows of the only table in a section.
fn rows(heading: &str) -> Vec<&'static str> {
    section(heading).lines().filter(|line| line.starts_with("| ")).skip(1).collect()
}

#[test]
fn the_table_of_outcomes_is_what_clients_are_told() {
    let refused = Outcome::ALL.into_iter().filter(|outcome| *outcome != Outcome::Dispatched);
    let expected: Vec<String> = refused
        .map(|outcome| {
            let retry_after = (outcome != Outcome::EvictedContextCancelled).then_some(1);
            row(outcome.as_str(), &Rejection::NotAdmitted { outcome, retry_after }.into())
        })
        .collect();
    assert_eq!(rows("### By admission"), expected);
}

#[test]
fn the_table_of_other_refusals_is_what_clients_are_told() {
    let expected = [
        row("no flow control: negative priority, endpoints full", &Rejection::Shed { retry_after: 1 }.into()),
        row("no endpoint", &Rejection::NoCandidates { retry_after: 1 }.into()),
        row("filters leave none", &Rejection::NoneAvailable { retry_after: 1 }.into()),
        row("unknown objective, `reject`", &Rejection::UnknownObjective { name: "x".into() }.into()),
        row("path that no parser claims", &Refusal::no_parser("/x")),
        row("body without a model, or a rule for its model without targets", &Refusal::model_missing()),
        row("`model` in the body over 4096 bytes", &ParseError::ModelTooLong.into()),
        row("the same in a header", &Refusal::model_too_long("x-llm-d-model-name-rewrite")),
        row("body that is no JSON object", &ParseError::NotAnObject.into()),
        row("body over `maxRequestBody`", &Refusal::body_too_large(BodyLimit::of_requests(64 << 20))),
        row("the same, changed", &Refusal::changed_body_too_large(BodyLimit::of_requests(64 << 20))),
        row(
            "body over `maxBytes` of a queue",
            &Rejection::TooLarge { limit: 1_000_000_000, outcome: Outcome::RejectedCapacity }.into(),
        ),
        row("body over all of `bodyMemory`", &Refusal::body_too_large(BodyLimit::of_memory(1 << 30))),
        row("headers over `maxRequestHeaders`", &Refusal::headers_too_large(64 << 10)),
        row("more than 1000 lines of headers", &Refusal::too_many_headers(MAX_HEADER_LINES)),
        row("`bodyMemory` used up", &Refusal::out_of_body_memory(1)),
        row("body that stopped arriving", &Refusal::body_stalled(Duration::from_secs(60))),
        row("message over the limit of gRPC", &Refusal::message_too_large()),
        row("drain, body not complete", &Refusal::shutting_down(1)),
        row("evicted, before its response began", &Refusal::evicted(Duration::from_secs(1))),
        row("the proxy gave up", &Refusal::given_up_by_proxy(504, Some("stream_idle_timeout")).unwrap()),
        row("body mode that cannot work", &Refusal::body_mode("request", BodyMode::BufferedPartial)),
        row("only trailers", &Refusal::trailers_only()),
        row("messages out of order", &Refusal::out_of_order("request body")),
        row("a bug", &Refusal::failed()),
    ];
    assert_eq!(rows("### For other reasons"), expected);
}

#[test]
fn the_table_of_shapes_is_what_clients_get() {
    let codes = [
        Code::BadRequest,
        Code::RequestTimeout,
        Code::PayloadTooLarge,
        Code::ResourceExhausted,
        Code::HeadersTooLarge,
        Code::Internal,
        Code::ServiceUnavailable,
        Code::GatewayTimeout,
    ];
    let expected: Vec<String> = codes
        .map(|code| {
            let error_type = |shape: ErrorShape| {
                let body: Value = serde_json::from_str(&shape.body(code, "", "").1).unwrap();
                body["error"]["type"].as_str().unwrap().to_owned()
            };
            let refusal = Refusal { code, message: String::new(), reason: None, retry_after: None };
            let reply = refusal.render(SessionSettings::TEST, ErrorShape::OpenAi);
            format!(
                "| {} | `{}` | `{}` | `{}` | {:?} |",
                reply.status,
                code.as_str(),
                error_type(ErrorShape::OpenAi),
                error_type(ErrorShape::Anthropic),
                reply.grpc_status,
            )
        })
        .into();
    assert_eq!(rows("### Shapes"), expected);
}

#[test]
fn the_events_that_end_streams_are_those_that_clients_get() {
    let refusal = Refusal::evicted(Duration::from_secs(1));
    for shape in [ErrorShape::OpenAi, ErrorShape::Responses, ErrorShape::Anthropic] {
        let event = shape.last_event(&refusal, Some(Duration::from_millis(1_500)), 42);
        assert!(section("### Evictions").contains(&format!("```\n{}\n```", event.trim_end())), "{event}");
    }
}

#[test]
fn no_line_is_wider_than_the_page() {
    // An event is one line, however long.
    for line in PAGE.lines().filter(|line| !line.starts_with("data: ")) {
        assert!(line.chars().count() <= 120, "{line}");
    }
}
