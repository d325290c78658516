//! Requests in flight that make room, from the word of the engine to the end of their streams. All batch requests here
//! have the same request id, which tells nothing apart.

use std::time::Duration;

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::ImmediateResponse;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use sluice_core::{FlowKey, Priority, TerminationCause, Time};
use sluice_data::EndpointTable;
use sluice_flow::{Ask, Ended, EvictionConfig, Signal, Stage, VictimOrder};
use sluice_router::Gatekeeper;
use sluice_router::admission::{Admission, Target};
use tokio::task::JoinHandle;
use tonic::Status;

use super::rig::{
    Picking, Proxy, batch_headers, one_at_a_time_evicting, request_body, request_headers, response_chunk, response_end,
    response_headers, settings, telling,
};
use crate::service::{MidStream, ServiceSettings};

const SSE: &[(&str, &str)] = &[(":status", "200"), ("content-type", "text/event-stream")];
const CHAT: &str = r#"{"model":"m"}"#;
const EVICTIONS: &str = "llm_d_epp_flow_control_evictions_total";
const TOKENS: &str = "sluice_evicted_tokens_total";
const ENDED: &str = "llm_d_epp_request_ended_total";

/// A picker whose two endpoints take one request each; none makes room without `eviction`.
async fn picking(eviction: Option<MidStream>) -> (Picking, Admission) {
    picking_in(EvictionConfig::default(), eviction).await
}

/// The same with other settings of the engine.
async fn picking_in(config: EvictionConfig, eviction: Option<MidStream>) -> (Picking, Admission) {
    let mut kept = None;
    let gatekeeper = |table: &EndpointTable| {
        let admission = one_at_a_time_evicting(table, eviction.map(|_| config));
        kept = Some(admission.clone());
        Gatekeeper::FlowControl(admission)
    };
    let picking = Picking::start_with(ServiceSettings { eviction, ..settings() }, gatekeeper).await;
    (picking, kept.unwrap())
}

/// Work that needs room.
async fn urgent(picking: &Picking) -> JoinHandle<Result<Proxy, Status>> {
    picking.open_waiting(vec![request_headers(), request_body(CHAT)]).await
}

/// Waits until the work that needed room has it.
async fn served(waiting: JoinHandle<Result<Proxy, Status>>) -> Proxy {
    let mut proxy = waiting.await.unwrap().unwrap();
    proxy.read_placement().await;
    proxy
}

impl Proxy {
    /// Reads the answers to a request with a body that was placed.
    async fn read_placement(&mut self) {
        assert!(matches!(self.answer().await, Answer::RequestHeaders(_)));
        assert!(matches!(self.answer().await, Answer::RequestBody(_)));
    }

    /// The same, and then the beginning of its response.
    async fn read_beginning(&mut self) {
        self.read_placement().await;
        self.send(response_headers(SSE)).await;
        assert!(matches!(self.answer().await, Answer::ResponseHeaders(_)));
        self.send(response_chunk("data: 1\n\n")).await;
        assert_eq!(self.piece().await, ("data: 1\n\n".to_owned(), false));
    }

    /// The next part of the response, and whether it is the last.
    async fn piece(&mut self) -> (String, bool) {
        let Answer::ResponseBody(answer) = self.answer().await else { panic!("no part of a response") };
        let Some(Mutation::StreamedResponse(piece)) = answer.response.unwrap().body_mutation.unwrap().mutation else {
            panic!("not in full duplex")
        };
        (String::from_utf8(piece.body).unwrap(), piece.end_of_stream)
    }

    async fn cut(&mut self) -> ImmediateResponse {
        match self.answer().await {
            Answer::ImmediateResponse(reply) => reply,
            other => panic!("not the end: {other:?}"),
        }
    }
}

fn header(reply: &ImmediateResponse, name: &str) -> Option<String> {
    let mut lines = reply.headers.as_ref()?.set_headers.iter().filter_map(|line| line.header.as_ref());
    String::from_utf8(lines.find(|line| line.key == name)?.raw_value.clone()).ok()
}

fn is(count: f64, expected: u32) -> bool {
    (count - f64::from(expected)).abs() < f64::EPSILON
}

#[tokio::test]
async fn the_newest_gives_its_place_when_its_stream_has_ended() {
    let (picking, admission) = picking(Some(MidStream::default())).await;
    let mut stays = picking.batch_chat().await.unwrap();
    let mut goes = picking.batch_chat().await.unwrap();
    stays.read_placement().await;
    goes.read_placement().await;
    let waiting = urgent(&picking).await;

    let reply = goes.cut().await;
    assert_eq!(reply.status.as_ref().unwrap().code, 429);
    assert_eq!(header(&reply, "x-llm-d-request-dropped-reason").as_deref(), Some("evicted"));
    let retry_after: u64 = header(&reply, "retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&retry_after), "{retry_after}");
    assert_eq!(reply.grpc_status.unwrap().status, 8);
    let stats = admission.stats();
    assert_eq!((stats.leases.revoked, stats.waiting.requests), (1, 1), "the proxy has not ended it yet");

    drop(goes);
    let urgent = served(waiting).await;
    let stats = admission.stats();
    assert_eq!((stats.leases.revoked, stats.leases.started, stats.revocations.confirmed), (0, 2, 1));
    assert!(is(picking.count(EVICTIONS, "status"), 1) && is(picking.count(EVICTIONS, "*"), 1));
    assert!(is(picking.errors("Evicted"), 1) && is(picking.errors("*"), 1), "counted once");
    assert!(is(picking.count(TOKENS, "prompt"), 4) && is(picking.count(TOKENS, "output"), 0));
    drop((stays, urgent));
    picking.idle().await;
}

#[tokio::test]
async fn a_stream_gets_the_event_then_the_cut_and_nothing_more() {
    let (picking, _admission) = picking(Some(MidStream::EventThenReset)).await;
    let mut stays = picking.batch_chat().await.unwrap();
    let mut goes = picking.batch_chat().await.unwrap();
    stays.read_beginning().await;
    goes.read_beginning().await;
    let waiting = urgent(&picking).await;

    let (event, is_last) = goes.piece().await;
    assert!(event.starts_with("data: {\"error\":{\"code\":429,") && event.ends_with("}}\n\n"), "{event}");
    assert!(event.contains("\"reason\":\"evicted\"") && event.contains("\"retry_after_ms\":"), "{event}");
    assert!(!is_last, "or it would look complete");
    goes.send(response_chunk("data: 2\n\n")).await;
    assert_eq!(goes.cut().await.status.unwrap().code, 429);
    drop(goes);
    drop(served(waiting).await);

    stays.send(response_chunk("data: 2\n\n")).await;
    assert_eq!(stays.piece().await.0, "data: 2\n\n", "the other one goes on");
    assert!(is(picking.count(EVICTIONS, "event"), 1) && is(picking.count(TOKENS, "output"), 1));
    drop(stays);
    picking.idle().await;
}

#[tokio::test]
async fn a_stream_that_has_only_its_headers_gets_the_status_in_its_place() {
    let (picking, admission) = picking(Some(MidStream::EventThenReset)).await;
    let told = || telling([BodySendMode::FullDuplexStreamed; 2], batch_headers());
    let mut stays = picking.open(vec![told(), request_body(CHAT)]).await.unwrap();
    let mut goes = picking.open(vec![told(), request_body(CHAT)]).await.unwrap();
    for proxy in [&mut stays, &mut goes] {
        proxy.read_placement().await;
        proxy.send(response_headers(SSE)).await;
    }
    let waiting = urgent(&picking).await;
    assert_eq!(goes.cut().await.status.unwrap().code, 429, "and no headers before it");
    assert_eq!(admission.stats().leases.revoked, 1);
    drop(goes);
    drop(served(waiting).await);

    stays.send(response_chunk("data: 1\n\n")).await;
    assert!(matches!(stays.answer().await, Answer::ResponseHeaders(_)));
    assert_eq!(stays.piece().await.0, "data: 1\n\n", "the other one begins");
    assert!(is(picking.count(EVICTIONS, "status"), 1) && is(picking.count(TOKENS, "prompt"), 4));
    drop(stays);
    picking.idle().await;
}

#[tokio::test]
async fn a_response_that_completes_before_it_was_cut_off_stays_complete() {
    let (picking, admission) = picking(Some(MidStream::EventThenReset)).await;
    let stays = picking.batch_chat().await.unwrap();
    let mut goes = picking.batch_chat().await.unwrap();
    goes.read_beginning().await;
    goes.send(response_chunk("data: 2")).await;
    assert_eq!(goes.piece().await.0, "data: 2");
    // The word waits for the end of the event, which takes as long here as the machine likes.
    picking.stop_clock();
    let waiting = urgent(&picking).await;
    while admission.stats().leases.revoked == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    goes.send(response_chunk("\n\ndata: [DONE]\n\n")).await;
    goes.send(response_end()).await;
    assert_eq!(goes.piece().await, ("\n\ndata: [DONE]\n\n".to_owned(), false));
    assert_eq!(goes.piece().await, (String::new(), true));
    drop(served(waiting).await);
    assert!(is(picking.count(EVICTIONS, "completed"), 1) && is(picking.count(TOKENS, "*"), 0));
    assert!(is(picking.errors("*"), 0));
    drop((stays, goes));
    picking.idle().await;
}

/// The end of a stream is looked at before the word that it has to go, so both may be there at once.
#[tokio::test]
async fn a_victim_that_leaves_as_it_is_told_counts_as_evicted() {
    let (picking, admission) = picking(Some(MidStream::EventThenReset)).await;
    let stays = picking.batch_chat().await.unwrap();
    for turns in 0..40 {
        let mut goes = picking.batch_chat().await.unwrap();
        goes.read_beginning().await;
        drop(goes);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        let urgent = Ask::new(FlowKey { tenant: "o".into(), priority: Priority(0) }, Time::ZERO);
        drop(admission.admit(urgent).await.unwrap());
        while admission.stats().leases.started > 1 {
            tokio::task::yield_now().await;
        }
    }
    let revoked = u32::try_from(admission.stats().totals[&Priority(0)].revocations).unwrap();
    let counted = [picking.count(EVICTIONS, "*"), picking.count(ENDED, "evicted")];
    assert!(revoked > 0 && counted.iter().all(|&counted| is(counted, revoked)), "{revoked} told, {counted:?} counted");
    drop(stays);
    picking.idle().await;
}

#[tokio::test]
async fn a_place_that_is_wanted_back_before_the_request_was_sent_costs_the_endpoint_nothing() {
    let (picking, admission) = picking(Some(MidStream::default())).await;
    let ask = || Ask::new(FlowKey { tenant: "other".into(), priority: Priority(0) }, Time::ZERO);
    let mut running = Vec::new();
    for endpoint in picking.endpoints.iter().cloned() {
        let target = Target { endpoint, stage: Stage::Decode, tokens: 1 };
        running.push(admission.admit(ask()).await.unwrap().start(&[target], None).unwrap());
    }
    let batch = picking.open_waiting(vec![batch_headers(), request_body(CHAT)]).await;
    // Without an await between them: a place is granted to the batch work, and before it can start, others want it.
    running.pop().unwrap().finish(Ended { cause: TerminationCause::Natural, usage: None });
    let others = admission.admit(ask());
    let mut batch = batch.await.unwrap().unwrap();
    let reply = batch.cut().await;
    assert_eq!(reply.status.as_ref().unwrap().code, 429, "and no destination before it");
    assert_eq!(header(&reply, "x-llm-d-request-dropped-reason").as_deref(), Some("evicted"));
    assert!(batch.replies.message().await.unwrap().is_none(), "nothing has to be waited for");
    drop(others.await.unwrap());
    assert!(is(picking.count(EVICTIONS, "refused"), 1) && is(picking.count(TOKENS, "*"), 0));
    assert!(is(picking.errors("Evicted"), 1));
    drop(running);
    picking.idle().await;
}

#[tokio::test]
async fn a_victim_whose_client_leaves_frees_its_place_once() {
    let (picking, admission) = picking(Some(MidStream::EventThenReset)).await;
    let stays = picking.batch_chat().await.unwrap();
    let mut goes = picking.batch_chat().await.unwrap();
    goes.read_beginning().await;
    let waiting = urgent(&picking).await;
    drop(goes);
    let urgent = served(waiting).await;
    let stats = admission.stats();
    assert_eq!((stats.revocations.confirmed, stats.revocations.outstanding, stats.leases.started), (1, 0, 2));
    drop((stays, urgent));
    picking.idle().await;
}

#[tokio::test]
async fn the_end_of_the_process_does_not_stop_an_eviction_under_way() {
    let (picking, admission) = picking(Some(MidStream::EventThenReset)).await;
    let stays = picking.batch_chat().await.unwrap();
    let mut goes = picking.batch_chat().await.unwrap();
    goes.read_beginning().await;
    let waiting = urgent(&picking).await;
    picking.service.stop_reading();
    admission.observe(Signal::Drain);
    assert!(goes.piece().await.0.contains("evicted"));
    assert_eq!(goes.cut().await.status.unwrap().code, 429);
    assert_eq!(waiting.await.unwrap().unwrap().refusal().await.0, 503);
    drop((stays, goes));
    picking.idle().await;
    assert_eq!(admission.stats().leases.started, 0);
}

#[tokio::test]
async fn where_bodies_pass_by_the_cheapest_is_the_one_whose_response_has_not_begun() {
    let cheapest = EvictionConfig { victim_order: VictimOrder::Cheapest, ..EvictionConfig::default() };
    let (picking, _admission) = picking_in(cheapest, Some(MidStream::default())).await;
    let told = || telling([BodySendMode::FullDuplexStreamed, BodySendMode::None], batch_headers());
    let mut goes = picking.open(vec![told(), request_body(CHAT)]).await.unwrap();
    goes.read_placement().await;
    // The newest.
    let mut stays = picking.open(vec![told(), request_body(CHAT)]).await.unwrap();
    stays.read_placement().await;
    stays.send(response_headers(SSE)).await;
    assert!(matches!(stays.answer().await, Answer::ResponseHeaders(_)));
    let waiting = urgent(&picking).await;
    assert_eq!(goes.cut().await.status.unwrap().code, 429);
    drop(goes);
    drop((served(waiting).await, stays));
    picking.idle().await;
}

#[tokio::test]
async fn two_requests_with_one_id_are_two_victims() {
    let (picking, admission) = picking(Some(MidStream::Reset)).await;
    let mut victims = [picking.batch_chat().await.unwrap(), picking.batch_chat().await.unwrap()];
    for victim in &mut victims {
        victim.read_placement().await;
    }
    let waiting = [urgent(&picking).await, urgent(&picking).await];
    for victim in &mut victims {
        assert_eq!(victim.cut().await.status.unwrap().code, 429);
    }
    drop(victims);
    for waiting in waiting {
        drop(served(waiting).await);
    }
    picking.idle().await;
    assert_eq!((admission.stats().revocations.confirmed, admission.stats().leases.started), (2, 0));
}

#[tokio::test]
async fn a_word_that_comes_again_is_not_heard() {
    let (picking, admission) = picking(Some(MidStream::EventThenReset)).await;
    let mut stays = picking.batch_chat().await.unwrap();
    let mut goes = picking.batch_chat().await.unwrap();
    stays.read_beginning().await;
    goes.read_beginning().await;
    let waiting = urgent(&picking).await;
    goes.piece().await;
    // The engine says it to every request in flight, this one among them.
    admission.observe(Signal::Shutdown);
    assert_eq!(goes.cut().await.status.unwrap().code, 429);
    let next = tokio::time::timeout(Duration::from_millis(50), goes.replies.message()).await;
    assert!(next.is_err(), "nothing follows while the proxy has not ended it");
    drop((goes, waiting));
    // Who ends the process cuts the others.
    stays.send(response_chunk("data: 2\n\n")).await;
    assert_eq!(stays.piece().await.0, "data: 2\n\n");
    drop(stays);
    picking.idle().await;
}

#[tokio::test]
async fn what_may_not_be_cut_off_never_is() {
    // Neither work of priority 0, nor anything where eviction is off.
    for (eviction, batch) in [(Some(MidStream::default()), false), (None, true)] {
        let (picking, admission) = picking(eviction).await;
        let mut running = Vec::new();
        for _ in 0..2 {
            running.push(if batch { picking.batch_chat().await.unwrap() } else { picking.chat("m").await.unwrap() });
        }
        let waiting = urgent(&picking).await;
        let stats = admission.stats();
        assert_eq!((stats.leases.revoked, stats.leases.started, stats.waiting.requests), (0, 2, 1));
        drop(running);
        drop(served(waiting).await);
        picking.idle().await;
    }
}

#[tokio::test]
async fn a_proxy_that_lets_the_picker_choose_shows_it_the_event_streams_that_may_be_cut_off() {
    let (picking, _admission) = picking(Some(MidStream::EventThenReset)).await;
    let (duplex, none) = (BodySendMode::FullDuplexStreamed, BodySendMode::None);
    for (headers, asked) in [(batch_headers(), duplex), (request_headers(), none)] {
        let first = telling([BodySendMode::None; 2], headers);
        let mut proxy = picking.open_announcing(vec![first], true).await.unwrap();
        assert!(matches!(proxy.answer().await, Answer::RequestHeaders(_)));
        proxy.send(response_headers(SSE)).await;
        let reply = proxy.reply().await;
        assert_eq!(reply.mode_override.map(|mode| mode.response_body_mode), Some(i32::from(asked)));
        drop(proxy);
        picking.idle().await;
    }
}
