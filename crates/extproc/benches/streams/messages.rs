//! The messages that Envoy sends for a chat.

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, Metadata};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProtocolConfiguration, processing_request::Request,
};

/// `per_connection_buffer_limit_bytes` of the templates: the largest piece of a body.
const PIECE: usize = 65_536;

/// Whether the proxy shows bodies to the picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    FullDuplex,
    Hidden,
}

impl Body {
    fn mode(self) -> i32 {
        i32::from(match self {
            Self::FullDuplex => BodySendMode::FullDuplexStreamed,
            Self::Hidden => BodySendMode::None,
        })
    }
}

/// The headers of a chat, and its body in pieces if the picker is to see it.
pub(crate) fn request(request: Body, response: Body, body_bytes: usize) -> Vec<ProcessingRequest> {
    let length = body_bytes.to_string();
    let headers = [
        (":authority", "inference.example.com"),
        (":path", "/v1/chat/completions"),
        (":method", "POST"),
        (":scheme", "http"),
        ("content-type", "application/json"),
        ("content-length", &length),
        ("accept", "*/*"),
        ("user-agent", "OpenAI/Python 1.99.0"),
        ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
        ("x-forwarded-for", "10.1.2.3"),
        ("x-forwarded-proto", "http"),
        ("x-envoy-external-address", "10.1.2.3"),
        ("x-request-id", "6d1c6a5f-9a0e-4f3a-8d55-2a7a3c6a1f00"),
    ];
    let mut first = message(Request::RequestHeaders(self::headers(&headers)));
    first.protocol_config = Some(ProtocolConfiguration {
        request_body_mode: request.mode(),
        response_body_mode: response.mode(),
        ..ProtocolConfiguration::default()
    });
    let mut messages = vec![first];
    if request == Body::FullDuplex {
        let body = chat(body_bytes);
        messages.extend(body.chunks(PIECE).map(|piece| self::body(piece, false, Request::RequestBody)));
        // An HTTP/1.1 client's body ends with an empty piece.
        messages.push(self::body(&[], true, Request::RequestBody));
    }
    messages
}

/// The headers of a stream of events.
pub(crate) fn response_headers() -> ProcessingRequest {
    let headers = [
        (":status", "200"),
        ("content-type", "text/event-stream; charset=utf-8"),
        ("date", "Sun, 30 Nov 2025 08:00:00 GMT"),
        ("server", "uvicorn"),
        ("x-envoy-upstream-service-time", "41"),
    ];
    message(Request::ResponseHeaders(self::headers(&headers)))
}

/// One token of a stream of events; with the last one the response ends.
pub(crate) fn chunk(last: bool) -> ProcessingRequest {
    let event: &[u8] =
        b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
        \"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"}}]}\n\n";
    body(if last { b"" } else { event }, last, Request::ResponseBody)
}

/// A chat of exactly `bytes` bytes, or the shortest one.
fn chat(bytes: usize) -> Vec<u8> {
    let head = r#"{"model":"test-model","stream":true,"max_tokens":100,"messages":[{"role":"user","content":""#;
    let tail = r#""}]}"#;
    let words = "the quick brown fox jumps over the lazy dog ".bytes().cycle();
    let words = words.take(bytes.saturating_sub(head.len() + tail.len()));
    head.bytes().chain(words).chain(tail.bytes()).collect()
}

fn headers(lines: &[(&str, &str)]) -> HttpHeaders {
    let line = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: value.as_bytes().to_vec(),
    };
    HttpHeaders { headers: Some(HeaderMap { headers: lines.iter().map(line).collect() }), ..HttpHeaders::default() }
}

fn body(bytes: &[u8], end_of_stream: bool, kind: fn(HttpBody) -> Request) -> ProcessingRequest {
    message(kind(HttpBody { body: bytes.to_vec(), end_of_stream, ..HttpBody::default() }))
}

/// Envoy sends an empty metadata context with every message.
fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        metadata_context: Some(Metadata::default()),
        ..ProcessingRequest::default()
    }
}
