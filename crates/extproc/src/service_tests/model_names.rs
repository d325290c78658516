//! Names of models that clients choose: what they may cost, and where they are not heeded.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use envoy_types::pb::envoy::service::ext_proc::v3::{CommonResponse, ProcessingRequest};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use sluice_core::MAX_MODEL_NAME;
use sluice_router::{Gatekeeper, IdentityRules};

use super::rig::{Picking, one_at_a_time, request_body, request_headers_with, settings, telling};
use crate::ServiceSettings;

const HEADER: &str = "x-llm-d-model-name-rewrite";

fn asking_for(target: &str) -> ProcessingRequest {
    telling([BodySendMode::FullDuplexStreamed; 2], request_headers_with(&[(HEADER, target)]))
}

/// With so many models, none of which has a name.
fn body_of(models: usize) -> ProcessingRequest {
    request_body(&format!("{{{}}}", vec![r#""model":"""#; models].join(",")))
}

#[tokio::test]
async fn a_short_request_for_very_much_is_refused_by_what_it_would_take() {
    const MODELS: usize = 15_000;
    let target = "T".repeat(MAX_MODEL_NAME);
    for (max_request_body, body_memory, setting) in
        [(1 << 20, 1 << 30, "maxRequestBody"), (1 << 30, 1 << 20, "bodyMemory")]
    {
        let settings = ServiceSettings { max_request_body, body_memory, ..settings() };
        let picking = Picking::start_with(settings, |_| Gatekeeper::Open).await;
        let mut proxy = picking.open(vec![asking_for(&target), body_of(MODELS)]).await.unwrap();
        let (status, body) = proxy.refusal().await;
        assert_eq!(status, 413, "{body}");
        assert!(body.contains(setting) && body.len() < 300, "{body}");
        picking.idle().await;
        assert!(picking.errors("PayloadTooLarge") >= 1.0);
    }
}

#[tokio::test]
async fn a_request_waits_with_the_memory_that_it_will_take() {
    let settings = ServiceSettings { body_memory: 300_000, ..settings() };
    let picking = Picking::start_with(settings, |table| Gatekeeper::FlowControl(one_at_a_time(table))).await;
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut proxy = picking.chat("m").await.unwrap();
        proxy.answer().await;
        running.push(proxy);
    }
    // Each is small, and becomes 200 kB.
    let target = "T".repeat(2_000);
    let waiting = picking.open_waiting(vec![asking_for(&target), body_of(100)]).await;
    let mut next = picking.open(vec![asking_for(&target), body_of(100)]).await.unwrap();
    assert_eq!(next.refusal().await.0, 429);
    waiting.abort();
}

#[tokio::test]
async fn a_name_that_is_too_long_is_a_bad_request() {
    let picking = Picking::start().await;
    let long = "T".repeat(MAX_MODEL_NAME + 1);
    let in_body = telling([BodySendMode::FullDuplexStreamed; 2], request_headers_with(&[]));
    for messages in [vec![asking_for(&long)], vec![in_body, request_body(&format!(r#"{{"model":"{long}"}}"#))]] {
        let (status, body) = picking.open(messages).await.unwrap().refusal().await;
        assert_eq!(status, 400, "{body}");
        assert!(body.contains("4096") && body.len() < 300, "{body}");
    }
    picking.idle().await;
    assert!(picking.errors("BadRequest") >= 2.0);
}

#[tokio::test]
async fn a_client_that_is_not_trusted_cannot_ask_for_another_model() {
    let rules = IdentityRules { only_vouched: true, ..IdentityRules::default() };
    let picking = Picking::start_by(rules, settings(), |_| Gatekeeper::Open).await;
    let long = "T".repeat(MAX_MODEL_NAME + 1);
    for (client, vouched, expected) in
        [("theirs", None, "m"), (&long, None, "m"), ("theirs", Some("big"), "big"), ("theirs", Some(""), "m")]
    {
        let headers = ProcessingRequest { metadata_context: vouched.map(metadata), ..asking_for(client) };
        let mut proxy = picking.open(vec![headers, request_body(r#"{"model":"m"}"#)]).await.unwrap();
        let Answer::RequestHeaders(headers) = proxy.answer().await else { panic!("refused") };
        let removed = headers.response.unwrap().header_mutation.unwrap().remove_headers;
        assert!(removed.iter().any(|name| name == HEADER), "{removed:?}");
        let Answer::RequestBody(body) = proxy.answer().await else { panic!("no body") };
        let CommonResponse { body_mutation: Some(mutation), .. } = body.response.unwrap() else { panic!("no body") };
        let Some(Mutation::StreamedResponse(piece)) = mutation.mutation else { panic!("no body") };
        assert_eq!(String::from_utf8(piece.body).unwrap(), format!(r#"{{"model":"{expected}"}}"#));
    }
}

fn metadata(model: &str) -> Metadata {
    let text = Value { kind: Some(Kind::StringValue(model.to_owned())) };
    let fields = Struct { fields: [("model_name_rewrite".to_owned(), text)].into() };
    Metadata { filter_metadata: [("sluice".to_owned(), fields)].into(), ..Metadata::default() }
}
