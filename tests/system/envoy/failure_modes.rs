//! What becomes of requests when the picker is gone, by how far they have come: the table of `docs/proxies.md`.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use serde_json::json;
use sluice_testkit::{EnvoyConfig, Part, Protocol};
use tokio::task::JoinSet;

use super::modes::with_modes;
use crate::flow::support::{Counted, config, streamed};
use crate::support::LIMIT;

/// What a client sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Status(u16),
    /// A whole response.
    Complete,
    /// One that broke off.
    Cut,
}

async fn rest(response: Response) -> End {
    match response.status().as_u16() {
        200 if response.bytes().await.is_ok() => End::Complete,
        200 => End::Cut,
        status => End::Status(status),
    }
}

fn send(request: RequestBuilder) -> JoinSet<End> {
    JoinSet::from_iter([async move { rest(request.send().await.unwrap()).await }])
}

async fn end(mut request: JoinSet<End>, case: &str) -> End {
    let end = tokio::time::timeout(LIMIT, request.join_next()).await;
    end.unwrap_or_else(|_| panic!("no end: {case}")).unwrap().unwrap()
}

/// Requests of one client, one in each phase.
struct Phases {
    waiting: JoinSet<End>,
    placed: JoinSet<End>,
    streaming: JoinSet<End>,
}

/// Four places, which requests of two clients take, and two that wait.
async fn begin(pool: &Counted, clients: &[Client; 2]) -> [Phases; 2] {
    let mut streaming = Vec::new();
    for client in clients {
        let response = streamed(pool.chat_from(client, "streams")).send().await.unwrap();
        streaming.push(JoinSet::from_iter([rest(response)]));
    }
    let placed = clients.each_ref().map(|client| send(pool.chat_from(client, "placed")));
    pool.wait_for(4, 0).await.unwrap();
    let waiting = clients.each_ref().map(|client| send(pool.chat_from(client, "waits")));
    pool.wait_for(4, 2).await.unwrap();
    let mut each = waiting.into_iter().zip(placed).zip(streaming);
    [(); 2].map(|()| {
        let ((waiting, placed), streaming) = each.next().unwrap();
        Phases { waiting, placed, streaming }
    })
}

fn envoy(request: &str, response: &str, fail_open: bool) -> EnvoyConfig {
    let mut envoy = with_modes(request, response).unwrap();
    envoy.put(Part::ExtProc, "failure_mode_allow", fail_open).unwrap();
    envoy
}

#[tokio::test]
async fn what_becomes_of_a_request_whose_picker_dies_is_decided_by_phase_body_modes_and_failure_mode() {
    const MODES: [(&str, &str); 4] = [
        ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
        ("FULL_DUPLEX_STREAMED", "NONE"),
        ("BUFFERED", "NONE"),
        ("NONE", "NONE"),
    ];
    for (request, response) in MODES {
        for fail_open in [false, true] {
            let slots = config(4, &json!({}), &json!({}));
            let mut pool = Counted::start_with(1, &slots, &[], envoy(request, response, fail_open)).await.unwrap();
            let clients = Protocol::ALL.map(|protocol| protocol.client().unwrap());
            let phases = begin(&pool, &clients).await;
            pool.stack.picker.process_mut().kill().unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            pool.servers[0].release(4);

            // Where Envoy has nothing of the body in flight to the picker, it can go on alone; but nobody has named an
            // endpoint for those that waited.
            let goes_on = fail_open && request != "FULL_DUPLEX_STREAMED";
            let expected = match goes_on {
                true => [End::Status(503), End::Complete, End::Complete],
                false => [End::Status(500), End::Status(500), End::Cut],
            };
            for (protocol, Phases { waiting, placed, streaming }) in Protocol::ALL.into_iter().zip(phases) {
                let case = format!("{request}, {response}, fail open: {fail_open}, {protocol:?}");
                let seen = [end(waiting, &case).await, end(placed, &case).await, end(streaming, &case).await];
                assert_eq!(seen, expected, "waiting, placed, streaming: {case}");
            }
        }
    }
}

/// Which never gets a destination; a client's own is not followed, see `deaths`.
#[tokio::test]
async fn a_request_goes_on_without_a_picker_only_where_that_is_allowed_and_no_body_is_in_full_duplex() {
    for (request, post_goes_on) in [("FULL_DUPLEX_STREAMED", false), ("BUFFERED", true), ("NONE", true)] {
        for fail_open in [false, true] {
            let mut envoy = envoy(request, "NONE", fail_open);
            envoy.set_pickers(&[sluice_testkit::unused_address().unwrap()]).unwrap();
            let envoy = sluice_testkit::Envoy::start(&envoy).await.unwrap();
            for protocol in Protocol::ALL {
                let client = protocol.client().unwrap();
                let status = async |request: RequestBuilder| request.send().await.unwrap().status().as_u16();
                let case = format!("{request}, fail open: {fail_open}, {protocol:?}");
                let get = status(client.get(envoy.url("/v1/models"))).await;
                assert_eq!(get, if fail_open { 503 } else { 500 }, "{case}");
                let post = status(client.post(envoy.url("/v1/chat/completions")).body("{}")).await;
                match (fail_open, post_goes_on) {
                    (true, true) => assert_eq!(post, 503, "{case}"),
                    // Now and then Envoy hears of the refused connection before it has sent anything of the body.
                    (true, false) => assert!([500, 503].contains(&post), "{case}: {post}"),
                    (false, _) => assert_eq!(post, 500, "{case}"),
                }
            }
        }
    }
}
