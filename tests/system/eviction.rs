//! Running requests that make room, through a real Envoy: who goes, what their clients see, and what becomes of the
//! place.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::time::Duration;

use anyhow::Result;
use reqwest::Response;
use serde_json::{Value, json};
use sluice_testkit::{CountingUpstream, EnvoyConfig, Protocol, Template, eventually};
use tokio::task::JoinSet;

use crate::flow::support::{Counted, DROPPED_REASON, OBJECTIVE, config, for_millis, streamed};
use crate::support::LIMIT;

/// Two model servers with two slots each, whose batch requests make room.
async fn pool(template: Template, sluice: &Value) -> Counted {
    let config = config(2, &json!({"enableEviction": true}), sluice);
    Counted::start_with(2, &config, &[], EnvoyConfig::from_template(template).unwrap()).await.unwrap()
}

/// What came of a stream, and whether it ended in order.
async fn read(mut response: Response) -> (String, bool) {
    let mut text = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => text.extend_from_slice(&chunk),
            Ok(None) => return (String::from_utf8(text).unwrap(), true),
            Err(_) => return (String::from_utf8(text).unwrap(), false),
        }
    }
}

/// Four batch streams whose clients have seen their beginning, the newest last.
async fn four_streams(pool: &Counted, protocol: Protocol) -> Vec<Response> {
    let client = protocol.client().unwrap();
    let mut streams = Vec::new();
    for tag in ["b0", "b1", "b2", "b3"] {
        let request = streamed(pool.chat_from(&client, tag)).header(OBJECTIVE, "batch");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        streams.push(response);
    }
    pool.wait_for(4, 0).await.unwrap();
    streams
}

/// Tags of the requests whose clients left, or were made to.
fn aborted(pool: &Counted) -> Vec<String> {
    let visits = pool.servers.iter().flat_map(CountingUpstream::visits);
    visits.filter(|visit| visit.ended.is_some_and(|end| end.aborted)).map(|visit| visit.tag).collect()
}

async fn count(pool: &Counted, name: &str, labels: &[(&str, &str)]) -> i64 {
    pool.stack.picker.metrics().await.unwrap().count(name, labels).unwrap_or_default()
}

async fn revocations(pool: &Counted) -> i64 {
    count(pool, "llm_d_epp_flow_control_revocations_issued_total", &[("priority", "100")]).await
}

/// An interactive request finds the pool full of batch streams: it is served, one stream is cut, the newest, which `ends`
/// in this way, and the others run to their end.
async fn one_goes(pool: &Counted, protocol: Protocol, ends: impl Fn(&str, bool)) {
    let mut streams = four_streams(pool, protocol).await;
    let issued = revocations(pool).await;
    let lost = aborted(pool).len();
    let served = for_millis(pool.chat_for("interactive", "i"), 10).send().await.unwrap();
    assert_eq!(served.status(), 200);

    let (text, in_order) = tokio::time::timeout(LIMIT, read(streams.pop().unwrap())).await.expect("it was cut");
    ends(&text, in_order);
    pool.wait_for(3, 0).await.unwrap();
    for server in &pool.servers {
        server.release(server.open());
    }
    for stream in streams {
        assert_eq!(read(stream).await, ("data: 0\n\ndata: [DONE]\n\n".to_owned(), true));
    }
    pool.wait_for(0, 0).await.unwrap();
    assert_eq!(revocations(pool).await - issued, 1, "exactly one");
    assert_eq!(aborted(pool)[lost..], ["b3"], "the newest, and the model server knows");
}

/// The event at the end of `text`, and what came before it.
fn last_event(text: &str) -> (&str, Value) {
    let (before, event) = text.trim_end().rsplit_once("data: ").unwrap();
    (before, serde_json::from_str(event).unwrap())
}

fn assert_is_told(text: &str) {
    let (before, event) = last_event(text);
    assert_eq!(before, "data: 0\n\n", "whole events");
    let error = &event["error"];
    assert_eq!((&error["code"], &error["reason"]), (&json!(429), &json!("evicted")), "{event}");
    let retry_after = error["retry_after_ms"].as_u64().unwrap();
    assert!((1_000..=30_000).contains(&retry_after), "{event}");
}

#[tokio::test]
async fn a_client_in_mid_stream_is_told_why_and_cannot_take_the_response_for_complete() {
    for template in [Template::FullDuplex, Template::PerRequest] {
        let pool = pool(template, &json!({})).await;
        for protocol in Protocol::ALL {
            one_goes(&pool, protocol, |text, in_order| {
                assert_is_told(text);
                assert!(!in_order, "{template:?} {protocol:?}");
            })
            .await;
        }
        assert_eq!(count(&pool, "llm_d_epp_flow_control_evictions_total", &[("delivery", "event")]).await, 2);
        assert_eq!(count(&pool, "sluice_evicted_tokens_total", &[("kind", "output")]).await, 2);
    }
}

#[tokio::test]
async fn the_end_of_a_stream_can_be_in_order_or_without_a_word() {
    let pool_with =
        async |mid_stream: &str| pool(Template::FullDuplex, &json!({"eviction": {"midStream": mid_stream}})).await;
    let ending = pool_with("event-then-end").await;
    let resetting = pool_with("reset").await;
    for protocol in Protocol::ALL {
        one_goes(&ending, protocol, |text, in_order| {
            assert_is_told(text);
            assert!(in_order, "{protocol:?}");
        })
        .await;
        one_goes(&resetting, protocol, |text, in_order| {
            assert_eq!((text, in_order), ("data: 0\n\n", false), "{protocol:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_response_that_passes_by_is_cut() {
    let pool = pool(Template::ResponseBypass, &json!({})).await;
    for protocol in Protocol::ALL {
        one_goes(&pool, protocol, |text, in_order| {
            assert_eq!((text, in_order), ("data: 0\n\n", false), "{protocol:?}");
        })
        .await;
    }
    assert_eq!(count(&pool, "llm_d_epp_flow_control_evictions_total", &[("delivery", "reset")]).await, 2);
}

#[tokio::test]
async fn before_its_response_a_victim_is_answered_429_and_its_place_goes_to_those_who_need_it() {
    for template in [Template::FullDuplex, Template::ResponseBypass, Template::PerRequest] {
        let mut pool = pool(template, &json!({})).await;
        let mut batch = JoinSet::new();
        for tag in ["b0", "b1", "b2", "b3"] {
            batch.spawn(pool.chat_for("batch", tag).send());
        }
        pool.wait_for(4, 0).await.unwrap();
        for tag in ["i0", "i1"] {
            let request = pool.chat_for("interactive", tag);
            pool.send(request);
        }
        for _ in 0..2 {
            let victim = batch.join_next().await.unwrap().unwrap().unwrap();
            assert_eq!(victim.status(), 429, "{template:?}");
            assert_eq!(victim.headers()[DROPPED_REASON], "evicted");
            let retry_after: u64 = victim.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert!((1..=30).contains(&retry_after), "{retry_after}");
            let body: Value = victim.json().await.unwrap();
            assert_eq!(body["error"]["code"], "evicted");
        }
        pool.wait_for(4, 0).await.unwrap();
        assert_eq!((revocations(&pool).await, aborted(&pool).len()), (2, 2), "no more than were needed");
        for server in &pool.servers {
            server.release(server.open());
        }
        for answer in batch.join_all().await {
            assert_eq!(answer.unwrap().status(), 200, "the others run to their end");
        }
        confirmed(&pool, 2).await.unwrap();
    }
}

async fn confirmed(pool: &Counted, expected: i64) -> Result<()> {
    eventually(LIMIT, "the ends are counted", async || {
        let labels = [("outcome", "confirmed")];
        let count = count(pool, "llm_d_epp_flow_control_revocations_total", &labels).await;
        Ok((count == expected).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_dry_run_counts_and_cuts_nobody() {
    let mut pool = pool(Template::FullDuplex, &json!({"dryRun": ["eviction"]})).await;
    let streams = four_streams(&pool, Protocol::Http2).await;
    let request = pool.chat_for("interactive", "i");
    pool.send(request);
    pool.wait_for(4, 1).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(count(&pool, "llm_d_epp_flow_control_would_revoke_total", &[("priority", "100")]).await, 1);
    assert_eq!(revocations(&pool).await, 0);
    for server in &pool.servers {
        server.release(3);
    }
    for stream in streams {
        assert!(read(stream).await.1);
    }
}
