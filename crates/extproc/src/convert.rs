//! Between the protocol's types and ours. Bodies are copied here once per direction, because the generated types
//! own their bytes.

use std::net::SocketAddr;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, HeaderValueOption, Metadata};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::{BodySendMode, HeaderSendMode};
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, GrpcStatus, HeaderMutation, HeadersResponse, ImmediateResponse,
    ProcessingRequest, ProcessingResponse, ProtocolConfiguration, StreamedBodyResponse, TrailersResponse,
    body_mutation, processing_request, processing_response,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::{Duration, ListValue, Struct, Value, value::Kind};
use sluice_core::Headers;
use sluice_data::Subset;
use sluice_router::Vouched;

use crate::message::{BodyMode, BodyModes, Inbound, Message, Origin, Standing};
use crate::reject::ImmediateReply;
use crate::reply::{Piece, Reply, RequestMutation};
use crate::request_headers::MAX_HEADER_LINES;

const DESTINATION: &str = "x-gateway-destination-endpoint";
const SERVED: &str = "x-gateway-destination-endpoint-served";

/// `vouched_namespace` is where the proxy's metadata names objective, fairness id and model.
pub(crate) fn inbound(request: ProcessingRequest, vouched_namespace: &str) -> Inbound {
    use processing_request::Request;
    let ProcessingRequest { request, protocol_config, metadata_context, attributes, .. } = request;
    let metadata = metadata_context.as_ref();
    let (mut hint, mut said) = (None, None);
    let message = match request {
        Some(Request::RequestHeaders(part)) => {
            hint = metadata.and_then(subset);
            said = metadata.and_then(|metadata| vouched(metadata, vouched_namespace));
            Message::RequestHeaders { headers: headers(part.headers), end_of_stream: part.end_of_stream }
        }
        Some(Request::RequestBody(part)) => {
            hint = metadata.and_then(subset);
            Message::RequestBody { chunk: Bytes::from(part.body), end_of_stream: part.end_of_stream }
        }
        Some(Request::RequestTrailers(_)) => {
            hint = metadata.and_then(subset);
            Message::RequestTrailers
        }
        Some(Request::ResponseHeaders(part)) => {
            let headers = headers(part.headers);
            let served = metadata.and_then(served_metadata).or_else(|| headers.last_str(SERVED)?.trim().parse().ok());
            // Under the name that the filter has in the proxy's configuration.
            let details = attributes.values().find_map(|part| text(part, "response.code_details"));
            let origin = Origin { details: details.map(str::to_owned), served };
            Message::ResponseHeaders { headers, end_of_stream: part.end_of_stream, origin }
        }
        Some(Request::ResponseBody(part)) => {
            Message::ResponseBody { chunk: Bytes::from(part.body), end_of_stream: part.end_of_stream }
        }
        Some(Request::ResponseTrailers(_)) => Message::ResponseTrailers,
        None => Message::Unknown,
    };
    Inbound {
        modes: protocol_config.as_ref().map(modes),
        subset: hint,
        vouched: said,
        standing: Standing::default(),
        message,
    }
}

fn served_metadata(metadata: &Metadata) -> Option<SocketAddr> {
    text(metadata.filter_metadata.get("envoy.lb")?, SERVED)?.trim().parse().ok()
}

fn text<'a>(fields: &'a Struct, key: &str) -> Option<&'a str> {
    match &fields.fields.get(key)?.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

/// A proxy fills either `raw_value` or `value`. What goes far beyond the lines that a request may have is left out.
fn headers(map: Option<HeaderMap>) -> Headers {
    let lines = map.map(|map| map.headers).unwrap_or_default();
    let kept = lines.len().min(MAX_HEADER_LINES + 1);
    let mut headers = Headers::with_capacity(kept);
    for HeaderValue { key, value, raw_value } in lines.into_iter().take(kept) {
        headers.push(&key, if raw_value.is_empty() { value.into_bytes() } else { raw_value });
    }
    headers
}

fn modes(config: &ProtocolConfiguration) -> BodyModes {
    let mode = |number| match BodySendMode::try_from(number) {
        Ok(BodySendMode::None) => BodyMode::None,
        Ok(BodySendMode::Streamed) => BodyMode::Streamed,
        Ok(BodySendMode::Buffered) => BodyMode::Buffered,
        Ok(BodySendMode::BufferedPartial) => BodyMode::BufferedPartial,
        Ok(BodySendMode::FullDuplexStreamed) => BodyMode::FullDuplex,
        Ok(_) | Err(_) => BodyMode::Other,
    };
    BodyModes { request: mode(config.request_body_mode), response: mode(config.response_body_mode) }
}

/// The endpoints the gateway allows: a list of texts, or one text with commas. Anything else under the key allows
/// none, since a hint that cannot be read must not open the whole pool.
fn subset(metadata: &Metadata) -> Option<Subset> {
    let hint = metadata.filter_metadata.get("envoy.lb.subset_hint")?;
    let value = hint.fields.get("x-gateway-destination-endpoint-subset")?;
    Some(match &value.kind {
        Some(Kind::StringValue(text)) => Subset::parse([text.as_str()]),
        Some(Kind::ListValue(ListValue { values })) => {
            Subset::parse(values.iter().filter_map(|item| match &item.kind {
                Some(Kind::StringValue(text)) => Some(text.as_str()),
                _ => None,
            }))
        }
        _ => Subset::default(),
    })
}

fn vouched(metadata: &Metadata, namespace: &str) -> Option<Vouched> {
    let fields = metadata.filter_metadata.get(namespace)?;
    let text = |key: &str| text(fields, key).map(str::to_owned);
    Some(Vouched {
        objective: text("objective"),
        fairness_id: text("fairness_id"),
        model_name_rewrite: text("model_name_rewrite"),
    })
}

pub(crate) fn outbound(reply: Reply) -> ProcessingResponse {
    use processing_response::Response;
    let mut message = ProcessingResponse::default();
    let response = match reply {
        Reply::ContinueRequest => Response::RequestHeaders(HeadersResponse::default()),
        Reply::RequestHeaders(mutation) => {
            message.dynamic_metadata = Some(destination_metadata(&mutation.destination));
            Response::RequestHeaders(HeadersResponse { response: Some(placed(mutation)) })
        }
        Reply::RequestBody(piece) => Response::RequestBody(streamed(piece)),
        Reply::RequestBodyAsIs => Response::RequestBody(BodyResponse::default()),
        Reply::RequestBodyPlaced(mutation, body) => {
            message.dynamic_metadata = Some(destination_metadata(&mutation.destination));
            let body_mutation = body.map(|body| in_its_place(body.into()));
            Response::RequestBody(BodyResponse { response: Some(CommonResponse { body_mutation, ..placed(mutation) }) })
        }
        Reply::RequestTrailers => Response::RequestTrailers(TrailersResponse::default()),
        Reply::ResponseHeaders { ask, drop_length } => {
            message.mode_override = ask.map(processing_mode);
            let set_headers = vec![set_header("x-went-into-resp-headers", b"true".to_vec())];
            let remove_headers = drop_length.then(|| "content-length".to_owned()).into_iter().collect();
            let header_mutation = Some(HeaderMutation { set_headers, remove_headers });
            Response::ResponseHeaders(HeadersResponse {
                response: Some(CommonResponse { header_mutation, ..CommonResponse::default() }),
            })
        }
        Reply::ResponseBody(piece) => Response::ResponseBody(streamed(piece)),
        Reply::ResponseBodyReplaced(bytes) => Response::ResponseBody(replaced(bytes.into())),
        Reply::ResponseBodyAsIs => Response::ResponseBody(BodyResponse::default()),
        Reply::ResponseTrailers => Response::ResponseTrailers(TrailersResponse::default()),
        Reply::Immediate(reply) => Response::ImmediateResponse(immediate(reply)),
        Reply::Modes(modes) => {
            message.mode_override = Some(processing_mode(modes));
            return message;
        }
        Reply::Wait(duration) => {
            let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
            message.override_message_timeout = Some(Duration { seconds, nanos: 0 });
            return message;
        }
    };
    message.response = Some(response);
    message
}

fn placed(mutation: RequestMutation) -> CommonResponse {
    let RequestMutation { destination, new_request_id, traceparent, content_length, remove } = mutation;
    let mut set_headers = vec![set_header(DESTINATION, destination.into_bytes())];
    set_headers.extend(new_request_id.map(|id| set_header("x-request-id", id.into_bytes())));
    set_headers.extend(traceparent.map(|parent| set_header("traceparent", parent.into_bytes())));
    set_headers.extend(content_length.map(|length| set_header("content-length", length.to_string().into_bytes())));
    CommonResponse {
        clear_route_cache: true,
        header_mutation: Some(HeaderMutation {
            set_headers,
            remove_headers: remove.into_iter().map(str::to_owned).collect(),
        }),
        ..CommonResponse::default()
    }
}

/// With full duplex come trailers: they end a body.
fn processing_mode(modes: BodyModes) -> ProcessingMode {
    let BodyModes { request, response } = modes;
    let mode = |mode| {
        i32::from(match mode {
            BodyMode::Streamed => BodySendMode::Streamed,
            BodyMode::Buffered => BodySendMode::Buffered,
            BodyMode::BufferedPartial => BodySendMode::BufferedPartial,
            BodyMode::FullDuplex => BodySendMode::FullDuplexStreamed,
            BodyMode::None | BodyMode::Other => BodySendMode::None,
        })
    };
    let send = i32::from(HeaderSendMode::Send);
    ProcessingMode {
        request_header_mode: send,
        response_header_mode: send,
        request_body_mode: mode(request),
        response_body_mode: mode(response),
        request_trailer_mode: send,
        response_trailer_mode: send,
    }
}

/// Values go in `raw_value`: what is sent in `value` arrives empty.
fn set_header(key: &str, raw_value: Vec<u8>) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: key.to_owned(), value: String::new(), raw_value }),
        ..HeaderValueOption::default()
    }
}

/// `envoy.lb: {x-gateway-destination-endpoint: <destination>}`
fn destination_metadata(destination: &str) -> Struct {
    let text = Value { kind: Some(Kind::StringValue(destination.to_owned())) };
    let inner = Struct { fields: [(DESTINATION.to_owned(), text)].into() };
    let inner = Value { kind: Some(Kind::StructValue(inner)) };
    Struct { fields: [("envoy.lb".to_owned(), inner)].into() }
}

fn streamed(piece: Piece) -> BodyResponse {
    let Piece { bytes, end_of_stream } = piece;
    let streamed = StreamedBodyResponse { body: bytes.into(), end_of_stream, ..StreamedBodyResponse::default() };
    let mutation = BodyMutation { mutation: Some(body_mutation::Mutation::StreamedResponse(streamed)) };
    BodyResponse { response: Some(CommonResponse { body_mutation: Some(mutation), ..CommonResponse::default() }) }
}

fn replaced(body: Vec<u8>) -> BodyResponse {
    BodyResponse {
        response: Some(CommonResponse { body_mutation: Some(in_its_place(body)), ..CommonResponse::default() }),
    }
}

/// In place of the bytes that the proxy keeps.
const fn in_its_place(body: Vec<u8>) -> BodyMutation {
    BodyMutation { mutation: Some(body_mutation::Mutation::Body(body)) }
}

fn immediate(reply: ImmediateReply) -> ImmediateResponse {
    let ImmediateReply { status, grpc_status, headers, body } = reply;
    ImmediateResponse {
        status: Some(HttpStatus { code: i32::from(status) }),
        headers: Some(HeaderMutation {
            set_headers: headers
                .into_iter()
                .map(|(key, value)| set_header(key, value.into_owned().into_bytes()))
                .collect(),
            remove_headers: Vec::new(),
        }),
        body: body.into_bytes(),
        grpc_status: Some(GrpcStatus { status: u32::try_from(i32::from(grpc_status)).unwrap_or_default() }),
        details: String::new(),
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
