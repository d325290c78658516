use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};

use sluice_router::Gatekeeper;

use super::rig::{
    Picking, Proxy, one_at_a_time, request_body, request_headers, response_end, response_headers, response_trailers,
    settings,
};

/// Whoever gives a stream up at its deadline, be it the proxy or the gRPC server here, would leave the client without
/// a reason.
#[tokio::test]
async fn a_waiting_request_is_refused_before_the_streams_deadline() {
    let picking = Picking::start_with(settings(), |table| Gatekeeper::FlowControl(one_at_a_time(table))).await;
    let running = [picking.chat("m").await.unwrap(), picking.chat("m").await.unwrap()];
    let waiting = vec![request_headers(), request_body(r#"{"model":"m"}"#)];
    let mut late = picking.open_within(Duration::from_secs(1), waiting).await.expect("an answer in time");
    let (status, body) = late.refusal().await;
    assert_eq!(status, 429);
    assert!(body.contains("rejected-ttl-expired"), "{body}");
    assert_eq!(picking.in_flight(), [1, 1], "what runs goes on");
    drop((running, late));
    picking.idle().await;
}

#[tokio::test]
async fn a_stream_outlives_its_deadline_once_the_request_is_placed() {
    let picking = Picking::start().await;
    let chat = vec![request_headers(), request_body(r#"{"model":"m"}"#)];
    let mut proxy = picking.open_within(Duration::from_millis(500), chat).await.unwrap();
    proxy.answer().await;
    proxy.answer().await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    proxy.send(response_headers(&[])).await;
    assert!(matches!(proxy.answer().await, Answer::ResponseHeaders(_)));
    drop(proxy);
    picking.idle().await;
}

fn one(count: f64) -> bool {
    (count - 1.0).abs() < f64::EPSILON
}

#[tokio::test]
async fn a_request_is_booked_until_its_response_ends() {
    let picking = Picking::start().await;
    let mut proxy = picking.chat("m").await.unwrap();
    assert!(matches!(proxy.answer().await, Answer::RequestHeaders(_)));
    assert!(matches!(proxy.answer().await, Answer::RequestBody(_)));
    assert_eq!(picking.in_flight(), [1, 0]);

    proxy.send(response_headers(&[])).await;
    proxy.send(response_end()).await;
    assert!(matches!(proxy.answer().await, Answer::ResponseHeaders(_)));
    assert!(matches!(proxy.answer().await, Answer::ResponseBody(_)));
    assert_eq!(picking.in_flight(), [0, 0], "released with the last chunk, not with the stream");
    drop(proxy.sender);
    assert!(proxy.replies.message().await.unwrap().is_none(), "a finished request ends cleanly");
    picking.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_endpoint() {
    let picking = Picking::start().await;
    for with_response in [false, true] {
        let mut proxy = picking.chat("m").await.unwrap();
        proxy.answer().await;
        assert_eq!(picking.in_flight(), [1, 0]);
        if with_response {
            proxy.send(response_headers(&[])).await;
            proxy.answer().await;
        }
        drop(proxy);
        picking.idle().await;
    }
}

#[tokio::test]
async fn a_half_close_in_the_middle_never_ends_with_ok() {
    let picking = Picking::start().await;
    let mut proxy = picking.chat("m").await.unwrap();
    drop(proxy.sender);
    let mut last = proxy.replies.message().await;
    while matches!(last, Ok(Some(_))) {
        last = proxy.replies.message().await;
    }
    assert_eq!(last.unwrap_err().code(), tonic::Code::Unavailable);
    picking.idle().await;
}

/// A stream on which the picker panics. It is answered within 100 ms, if the machine is not too busy every time.
async fn answered_at_once(picking: &Picking) -> Proxy {
    for _ in 0..10 {
        #[expect(clippy::disallowed_methods, reason = "measures the picker from outside")]
        let began = Instant::now();
        let bad = picking.chat("panic").await.unwrap();
        if began.elapsed() < Duration::from_millis(100) {
            return bad;
        }
    }
    panic!("ten times it took longer than 100 ms");
}

#[tokio::test]
async fn a_panic_is_an_answer_to_its_own_client_and_nothing_to_others() {
    let picking = Picking::start().await;
    let mut good = picking.chat("m").await.unwrap();
    let mut bad = answered_at_once(&picking).await;
    let (status, body) = bad.refusal().await;
    assert_eq!(status, 500);
    assert!(body.contains("the picker failed on this request"), "{body}");
    assert!(bad.replies.message().await.unwrap().is_none());
    good.answer().await;
    drop((good, bad));
    picking.idle().await;
    assert!(picking.errors("Internal") >= 1.0);
}

#[tokio::test]
async fn a_refused_request_ends_cleanly_after_the_refusal() {
    let picking = Picking::start().await;
    let mut proxy = picking.chat("").await.unwrap();
    assert_eq!(proxy.refusal().await.0, 400);
    assert!(proxy.replies.message().await.unwrap().is_none());
    picking.idle().await;
    assert!(one(picking.errors("BadRequest")));
}

#[tokio::test]
async fn errors_are_counted_under_the_name_of_who_made_them() {
    let picking = Picking::start().await;
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
    for (details, code) in [("via_upstream", "ModelServerError"), ("response_timeout", "ProxyError")] {
        let proxy = picking.chat("m").await.unwrap();
        let mut answer = response_headers(&[(":status", "503")]);
        let fields = [("response.code_details".to_owned(), text(details))].into();
        answer.attributes.insert("envoy.filters.http.ext_proc".into(), Struct { fields });
        proxy.send(answer).await;
        proxy.send(response_trailers()).await;
        drop(proxy.sender);
        picking.idle().await;
        assert!(one(picking.errors(code)), "{code}");
        drop(proxy.replies);
    }
}

#[tokio::test]
async fn a_booking_moves_to_the_endpoint_that_serves() {
    let open = Picking::start().await;
    let controlled = Picking::start_with(settings(), |table| Gatekeeper::FlowControl(one_at_a_time(table))).await;
    let fields = [(
        "x-gateway-destination-endpoint-served".to_owned(),
        Value { kind: Some(Kind::StringValue("10.0.0.2:80".into())) },
    )];
    let mut by_metadata = response_headers(&[]);
    let filter_metadata = [("envoy.lb".to_owned(), Struct { fields: fields.into() })].into();
    by_metadata.metadata_context = Some(Metadata { filter_metadata, ..Metadata::default() });
    let by_header = response_headers(&[("x-gateway-destination-endpoint-served", "10.0.0.2:80")]);
    let unknown = response_headers(&[("x-gateway-destination-endpoint-served", "10.0.0.9:80")]);
    for picking in [open, controlled] {
        for (message, in_flight) in [(&by_metadata, [0, 1]), (&by_header, [0, 1]), (&unknown, [1, 0])] {
            let mut proxy = picking.chat("m").await.unwrap();
            proxy.answer().await;
            proxy.answer().await;
            proxy.send(message.clone()).await;
            proxy.answer().await;
            assert_eq!(picking.in_flight(), in_flight);
            drop(proxy);
            picking.idle().await;
        }
    }
}
