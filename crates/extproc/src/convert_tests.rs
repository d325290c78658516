use std::collections::BTreeMap;

use envoy_types::pb::envoy::service::ext_proc::v3::{HttpBody, HttpHeaders, HttpTrailers};
use sluice_core::{Endpoint, EndpointId, EndpointUid};

use super::*;

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

fn hint(value: Value) -> ProcessingRequest {
    let fields = [("x-gateway-destination-endpoint-subset".to_owned(), value)].into();
    ProcessingRequest { metadata_context: metadata("envoy.lb.subset_hint", Struct { fields }), ..request_headers() }
}

fn metadata(namespace: &str, fields: Struct) -> Option<Metadata> {
    Some(Metadata { filter_metadata: [(namespace.to_owned(), fields)].into(), ..Metadata::default() })
}

fn request_headers() -> ProcessingRequest {
    part(processing_request::Request::RequestHeaders(HttpHeaders::default()))
}

fn part(request: processing_request::Request) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..ProcessingRequest::default() }
}

/// Whether 10.0.0.1:8000 is allowed.
fn allowed(value: Value) -> bool {
    let address = "10.0.0.1:8000".parse().unwrap();
    let endpoint = Endpoint::new(EndpointId::new("d", "a"), EndpointUid("1".into()), address, BTreeMap::new());
    inbound(hint(value), "sluice").subset.unwrap().allows(&endpoint)
}

#[test]
fn a_subset_hint_is_a_list_or_a_text() {
    let list = |items: Vec<Value>| Value { kind: Some(Kind::ListValue(ListValue { values: items })) };
    assert!(allowed(list(vec![text("10.0.0.9:1"), text("10.0.0.1:8000")])));
    assert!(allowed(text("10.0.0.9:1,10.0.0.1")));
    assert!(!allowed(list(vec![])));
    assert!(!allowed(list(vec![Value { kind: Some(Kind::NumberValue(1.0)) }])));
    assert!(!allowed(Value { kind: Some(Kind::BoolValue(true)) }));
    assert!(inbound(ProcessingRequest::default(), "sluice").subset.is_none());
}

#[test]
fn header_values_come_in_either_field() {
    let line = |key: &str, value: &str, raw: &[u8]| HeaderValue {
        key: key.into(),
        value: value.into(),
        raw_value: raw.to_vec(),
    };
    let map = HeaderMap { headers: vec![line("A", "old", b""), line("b", "", b"\xff"), line("c", "x", b"raw")] };
    let headers = headers(Some(map));
    assert_eq!(headers.last_str("a"), Some("old"));
    assert_eq!(headers.last("b").map(|value| &value[..]), Some(&b"\xff"[..]));
    assert_eq!(headers.last_str("c"), Some("raw"));
}

#[test]
fn the_destination_goes_out_twice_and_in_raw_value() {
    let mutation = RequestMutation {
        destination: "10.0.0.1:8000".into(),
        new_request_id: Some("id".into()),
        traceparent: Some("parent".into()),
        content_length: None,
        remove: vec!["x-slo-ttft-ms"],
    };
    let response = outbound(Reply::RequestHeaders(mutation));
    let metadata = response.dynamic_metadata.unwrap();
    let Some(Kind::StructValue(inner)) = &metadata.fields["envoy.lb"].kind else { panic!() };
    assert_eq!(inner.fields[DESTINATION], text("10.0.0.1:8000"));

    let Some(processing_response::Response::RequestHeaders(HeadersResponse { response: Some(common) })) =
        response.response
    else {
        panic!()
    };
    assert!(common.clear_route_cache);
    let mutation = common.header_mutation.unwrap();
    let set: Vec<_> = mutation.set_headers.into_iter().map(|option| option.header.unwrap()).collect();
    assert!(set.iter().all(|header| header.value.is_empty()));
    assert_eq!((set[0].key.as_str(), &set[0].raw_value[..]), (DESTINATION, &b"10.0.0.1:8000"[..]));
    assert_eq!((set[1].key.as_str(), &set[1].raw_value[..]), ("x-request-id", &b"id"[..]));
    assert_eq!((set[2].key.as_str(), &set[2].raw_value[..]), ("traceparent", &b"parent"[..]));
    assert_eq!(mutation.remove_headers, ["x-slo-ttft-ms"]);
}

#[test]
fn another_body_goes_out_with_its_length() {
    let mutation = RequestMutation {
        destination: "10.0.0.1:8000".into(),
        new_request_id: None,
        traceparent: None,
        content_length: Some(3),
        remove: vec![],
    };
    let response = outbound(Reply::RequestBodyPlaced(mutation, Some("abc".into()))).response;
    let Some(processing_response::Response::RequestBody(BodyResponse { response: Some(common) })) = response else {
        panic!()
    };
    let set = common.header_mutation.unwrap().set_headers.pop().unwrap().header.unwrap();
    assert_eq!((set.key.as_str(), &set.raw_value[..]), ("content-length", &b"3"[..]));
    assert_eq!(common.body_mutation.unwrap().mutation, Some(body_mutation::Mutation::Body(b"abc".to_vec())));
}

#[test]
fn the_length_of_a_response_is_taken_out_where_it_may_change() {
    for (drop_length, removed) in [(true, vec!["content-length"]), (false, vec![])] {
        let response = outbound(Reply::ResponseHeaders { ask: None, drop_length }).response;
        let Some(processing_response::Response::ResponseHeaders(HeadersResponse { response: Some(common) })) = response
        else {
            panic!()
        };
        assert_eq!(common.header_mutation.unwrap().remove_headers, removed);
    }
}

#[test]
fn unknown_modes_are_not_an_error() {
    let config = ProtocolConfiguration { request_body_mode: 4, response_body_mode: 99, ..Default::default() };
    assert_eq!(modes(&config), BodyModes { request: BodyMode::FullDuplex, response: BodyMode::Other });
}

#[test]
fn the_proxy_vouches_in_its_own_namespace() {
    let said = [("objective", "premium"), ("fairness_id", "alice"), ("model_name_rewrite", "big")];
    let fields = said.into_iter().map(|(key, value)| (key.to_owned(), text(value))).collect();
    let metadata_context = metadata("mine", Struct { fields });
    let request = ProcessingRequest { metadata_context, ..request_headers() };
    let vouched = Vouched {
        objective: Some("premium".into()),
        fairness_id: Some("alice".into()),
        model_name_rewrite: Some("big".into()),
    };
    assert_eq!(inbound(request.clone(), "mine").vouched, Some(vouched));
    assert_eq!(inbound(request, "sluice").vouched, None);
}

#[test]
fn a_subset_hint_comes_with_any_part_of_the_request() {
    for request in [
        processing_request::Request::RequestHeaders(HttpHeaders::default()),
        processing_request::Request::RequestBody(HttpBody::default()),
        processing_request::Request::RequestTrailers(HttpTrailers::default()),
    ] {
        let message = ProcessingRequest { request: Some(request), ..hint(text("10.0.0.1")) };
        assert!(inbound(message, "sluice").subset.is_some());
    }
}

fn origin(message: ProcessingRequest) -> Origin {
    match inbound(message, "sluice").message {
        Message::ResponseHeaders { origin, .. } => origin,
        other => panic!("{other:?}"),
    }
}

#[test]
fn response_attributes_tell_who_answered() {
    let answered = |fields: &[(&str, &str)]| {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), text(value))).collect();
        let mut message = part(processing_request::Request::ResponseHeaders(HttpHeaders::default()));
        message.attributes.insert("envoy.filters.http.ext_proc".into(), Struct { fields });
        origin(message)
    };
    assert!(!answered(&[("response.code_details", "via_upstream")]).is_proxy());
    assert!(answered(&[("response.code_details", "stream_idle_timeout")]).is_proxy());
    assert_eq!(answered(&[]), Origin::default());
}

#[test]
fn the_endpoint_that_served_is_in_metadata_or_a_header_and_metadata_counts() {
    let line = |value: &str| HeaderValue { key: SERVED.into(), value: value.into(), ..HeaderValue::default() };
    let answered = |header: Option<&str>, said: Option<&str>| {
        let headers = Some(HeaderMap { headers: header.map(line).into_iter().collect() });
        let mut message =
            part(processing_request::Request::ResponseHeaders(HttpHeaders { headers, ..HttpHeaders::default() }));
        let fields = said.map(|said| (SERVED.to_owned(), text(said))).into_iter().collect();
        message.metadata_context = metadata("envoy.lb", Struct { fields });
        origin(message).served.map(|served| served.to_string())
    };
    assert_eq!(answered(Some("10.0.0.1:80"), None).as_deref(), Some("10.0.0.1:80"));
    assert_eq!(answered(Some("10.0.0.1:80"), Some("[fd00::1]:81")).as_deref(), Some("[fd00::1]:81"));
    assert_eq!(answered(Some("nobody"), None), None);
    assert_eq!(answered(None, None), None);
}

#[test]
fn patience_and_modes_are_asked_for_in_messages_that_answer_nothing() {
    let asked = outbound(Reply::Wait(std::time::Duration::from_millis(90_500)));
    assert_eq!(asked.response, None);
    assert_eq!(asked.override_message_timeout, Some(Duration { seconds: 90, nanos: 0 }));
    let modes = BodyModes { request: BodyMode::Streamed, response: BodyMode::FullDuplex };
    let asked = outbound(Reply::Modes(modes));
    assert_eq!(asked.response, None);
    let mode = asked.mode_override.unwrap();
    assert_eq!(mode.request_body_mode, i32::from(BodySendMode::Streamed), "what is not asked for stays");
    assert_eq!(mode.response_body_mode, i32::from(BodySendMode::FullDuplexStreamed));
}
