//! Whatever messages come, in whatever order: each stream is answered, refused or ended, nothing panics, and nothing of
//! it is left. `cargo xtask fuzz session` runs more of them.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, Metadata};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Part;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest, ProtocolConfiguration,
};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use sluice_data::EndpointTable;
use sluice_flow::EvictionConfig;
use sluice_router::Gatekeeper;

use super::rig::{Picking, batch_headers, one_at_a_time_evicting, request_body, request_headers, settings};
use crate::{Bodies, MidStream, ServiceSettings};

const NAMES: [&str; 14] = [
    ":method",
    ":path",
    ":status",
    "content-type",
    "content-encoding",
    "content-length",
    "upgrade",
    "expect",
    "x-request-id",
    "traceparent",
    "x-llm-d-inference-objective",
    "x-llm-d-inference-ttl",
    "x-llm-d-slo-ttft-ms",
    "x-gateway-destination-endpoint-served",
];

const VALUES: [&str; 20] = [
    "POST",
    "GET",
    "/v1/chat/completions",
    "/v1/messages",
    "/raw",
    "200",
    "500",
    "504",
    "text/event-stream",
    "application/json",
    "application/grpc",
    "gzip",
    "5",
    "99999999999999999999",
    "websocket",
    "100-continue",
    "batch",
    "0s",
    "1ms",
    "10.0.0.2:80",
];

const BODIES: [&str; 6] = [
    "",
    "{",
    r#"{"model":"m"}"#,
    r#"{"model":"m","stream":true}"#,
    "data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n",
    "data: [DONE]\n\n",
];

/// What is said where the picker has panicked.
const PANICKED: &str = "the picker failed on this request";

/// What a proxy does on one stream.
#[derive(Clone, Debug)]
struct Stream {
    may_choose_modes: bool,
    /// With a pause before each, or none.
    messages: Vec<(ProcessingRequest, bool)>,
}

fn line() -> impl Strategy<Value = HeaderValue> {
    let value = prop_oneof![select(&VALUES[..]).prop_map(|text| text.as_bytes().to_vec()), vec(any::<u8>(), 0..12)];
    (select(&NAMES[..]), value, any::<bool>()).prop_map(|(key, bytes, raw)| {
        let key = key.to_owned();
        if raw {
            HeaderValue { key, raw_value: bytes, ..HeaderValue::default() }
        } else {
            HeaderValue { key, value: String::from_utf8_lossy(&bytes).into_owned(), ..HeaderValue::default() }
        }
    })
}

fn headers() -> impl Strategy<Value = HttpHeaders> {
    (option::weighted(0.9, vec(line(), 0..8)), any::<bool>()).prop_map(|(lines, end_of_stream)| {
        let headers = lines.map(|headers| HeaderMap { headers });
        HttpHeaders { headers, end_of_stream, ..HttpHeaders::default() }
    })
}

fn body() -> impl Strategy<Value = HttpBody> {
    let bytes = prop_oneof![
        4 => select(&BODIES[..]).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..300),
    ];
    (bytes, any::<bool>()).prop_map(|(body, end_of_stream)| HttpBody { body, end_of_stream, ..HttpBody::default() })
}

fn part() -> impl Strategy<Value = Option<Part>> {
    prop_oneof![
        2 => headers().prop_map(|headers| Some(Part::RequestHeaders(headers))),
        3 => body().prop_map(|body| Some(Part::RequestBody(body))),
        1 => Just(Some(Part::RequestTrailers(HttpTrailers::default()))),
        3 => headers().prop_map(|headers| Some(Part::ResponseHeaders(headers))),
        4 => body().prop_map(|body| Some(Part::ResponseBody(body))),
        1 => Just(Some(Part::ResponseTrailers(HttpTrailers::default()))),
        1 => Just(None),
    ]
}

fn text(name: &str, text: &str) -> Struct {
    Struct { fields: [(name.to_owned(), Value { kind: Some(Kind::StringValue(text.to_owned())) })].into() }
}

fn message() -> impl Strategy<Value = ProcessingRequest> {
    let modes = option::of((-1..8_i32, -1..8_i32));
    let hint = option::weighted(0.1, select(&["10.0.0.1", "10.0.0.9:80", "", "x,,"][..]));
    let details = option::weighted(0.3, select(&["via_upstream", "stream_idle_timeout"][..]));
    (part(), modes, hint, details).prop_map(|(request, modes, hint, details)| {
        let mut message = ProcessingRequest { request, ..ProcessingRequest::default() };
        message.protocol_config = modes.map(|(request_body_mode, response_body_mode)| ProtocolConfiguration {
            request_body_mode,
            response_body_mode,
            ..ProtocolConfiguration::default()
        });
        message.metadata_context = hint.map(|hint| {
            let hint = text("x-gateway-destination-endpoint-subset", hint);
            let filter_metadata = [("envoy.lb.subset_hint".to_owned(), hint)].into();
            Metadata { filter_metadata, ..Metadata::default() }
        });
        let attributes = details.map(|details| ("filter".to_owned(), text("response.code_details", details)));
        message.attributes.extend(attributes);
        message
    })
}

/// Half of them begin as a request should, so that the other half of the protocol is reached.
fn stream() -> impl Strategy<Value = Stream> {
    let begin = select(&[None, None, Some(false), Some(true)][..]);
    (begin, any::<bool>(), vec((message(), any::<bool>()), 0..10)).prop_map(
        |(begin, may_choose_modes, mut messages)| {
            if let Some(batch) = begin {
                let headers = if batch { batch_headers() } else { request_headers() };
                messages.splice(0..0, [(headers, false), (request_body(BODIES[2]), true)]);
            }
            Stream { may_choose_modes, messages }
        },
    )
}

/// Runs the streams side by side until all have ended.
async fn run(picking: &Picking, streams: Vec<Stream>) -> TestCaseResult {
    let ended = join_all(streams.into_iter().map(|stream| async move {
        let Stream { may_choose_modes, messages } = stream;
        let replies = picking.exchange(messages, may_choose_modes);
        tokio::time::timeout(Duration::from_secs(5), replies).await
    }));
    for replies in ended.await {
        let Ok((replies, error)) = replies else { return Err(TestCaseError::fail("a stream hangs")) };
        let panicked = error.is_some_and(|status| status.message().contains(PANICKED));
        prop_assert!(!panicked, "a panic");
        let immediate = replies.iter().position(|reply| matches!(reply.response, Some(Answer::ImmediateResponse(_))));
        prop_assert!(immediate.is_none_or(|index| index + 1 == replies.len()), "a refusal is the last word");
        for reply in replies {
            let Some(Answer::ImmediateResponse(refusal)) = reply.response else { continue };
            let said = String::from_utf8(refusal.body).unwrap();
            prop_assert!(!said.contains(PANICKED), "a panic: {}", said);
        }
    }
    picking.idle().await;
    Ok(())
}

fn small(bodies: Bodies, eviction: Option<MidStream>) -> ServiceSettings {
    ServiceSettings { max_request_body: 200, body_memory: 700, bodies, eviction, ..settings() }
}

fn run_many(settings: ServiceSettings, gatekeeper: impl FnOnce(&EndpointTable) -> Gatekeeper) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let picking = runtime.block_on(Picking::start_with(settings, gatekeeper));
    proptest!(|(streams in vec(stream(), 1..4))| {
        runtime.block_on(run(&picking, streams))?;
    });
}

#[test]
fn hostile_streams_leave_nothing_behind() {
    run_many(small(Bodies::Full, None), |_| Gatekeeper::Open);
}

#[test]
fn hostile_streams_leave_nothing_in_queues_and_among_those_that_make_room() {
    let settings = small(Bodies::Auto, Some(MidStream::EventThenReset));
    run_many(settings, |table| Gatekeeper::FlowControl(one_at_a_time_evicting(table, Some(EvictionConfig::default()))));
}
