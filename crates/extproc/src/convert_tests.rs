use std::collections::BTreeMap;

use sluice_core::{Endpoint, EndpointId, EndpointUid};

use super::*;

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

fn hint(value: Value) -> ProcessingRequest {
    let fields = [("x-gateway-destination-endpoint-subset".to_owned(), value)].into();
    let filter_metadata = [("envoy.lb.subset_hint".to_owned(), Struct { fields })].into();
    let metadata_context = Some(Metadata { filter_metadata, ..Metadata::default() });
    ProcessingRequest { metadata_context, ..ProcessingRequest::default() }
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
    assert_eq!(mutation.remove_headers, ["x-slo-ttft-ms"]);
}

#[test]
fn unknown_modes_are_not_an_error() {
    let config = ProtocolConfiguration { request_body_mode: 4, response_body_mode: 99, ..Default::default() };
    assert_eq!(modes(&config), BodyModes { request: BodyMode::FullDuplex, response: BodyMode::Other });
}

#[test]
fn the_proxy_vouches_in_its_own_namespace() {
    let fields = [("objective".to_owned(), text("premium")), ("fairness_id".to_owned(), text("alice"))].into();
    let filter_metadata = [("mine".to_owned(), Struct { fields })].into();
    let metadata_context = Some(Metadata { filter_metadata, ..Metadata::default() });
    let request = ProcessingRequest { metadata_context, ..ProcessingRequest::default() };
    let vouched = Vouched { objective: Some("premium".into()), fairness_id: Some("alice".into()) };
    assert_eq!(inbound(request.clone(), "mine").vouched, Some(vouched));
    assert_eq!(inbound(request, "sluice").vouched, None);
}
