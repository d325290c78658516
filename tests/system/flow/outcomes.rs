//! What a client is told that was not let in, and what it then holds: nothing.

use std::time::Duration;

use reqwest::header::HeaderValue;
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock};
use sluice_testkit::{Part, eventually};

use super::support::{AT_ONCE, Counted, DROPPED_REASON, TTL, assert_refused, config, envoy};
use crate::support::LIMIT;

/// One slot, taken, and room for two requests to wait in each band.
async fn full() -> Counted {
    let band = json!({"maxRequests": 2});
    let mut pool = Counted::start(1, &config(1, &json!({"defaultPriorityBand": band}), &json!({}))).await.unwrap();
    let request = pool.chat("running");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    pool
}

#[tokio::test]
async fn a_full_band_refuses_newcomers_and_a_client_that_hammers_takes_no_place() {
    let mut pool = full().await;
    for (waiting, tag) in [(1, "waits-0"), (2, "waits-1")] {
        let request = pool.chat(tag);
        pool.send(request);
        pool.wait_for(1, waiting).await.unwrap();
    }
    let message = "request rejected pre-queue: queue at capacity";
    for _ in 0..300 {
        let response = pool.chat("hammers").send().await.unwrap();
        assert_refused(response, 429, "rejected-saturated", message).await;
    }
    assert_eq!(pool.waiting().await.unwrap(), 2);
    // A band is full on its own.
    let request = pool.chat_for("batch", "batch");
    pool.send(request);
    pool.wait_for(1, 3).await.unwrap();

    pool.servers[0].release(4);
    pool.wait_for(0, 0).await.unwrap();
    assert_eq!(pool.servers[0].tags(), ["running", "waits-0", "waits-1", "batch"]);
}

#[tokio::test]
async fn an_empty_pool_is_named_when_its_queue_is_full_or_its_budget_spent() {
    let flow_control = json!({"noEndpointRequestTTL": "700ms", "defaultPriorityBand": {"maxRequests": 1}});
    let pool = Counted::start(0, &config(1, &flow_control, &json!({}))).await.unwrap();
    let clock = SystemClock::start();
    let waits = tokio::task::LocalSet::new();
    waits
        .run_until(async {
            let first = pool.chat("waits").send();
            let second = async {
                eventually(LIMIT, "the first waits", async || Ok((pool.waiting().await? == 1).then_some(())))
                    .await
                    .unwrap();
                pool.chat("too-many").send().await
            };
            let (first, second) = tokio::join!(first, second);
            assert!(clock.now().saturating_since(sluice_core::Time::ZERO) >= Duration::from_millis(700));
            let late = "request timed out in queue and no endpoints are available: ";
            assert_refused(first.unwrap(), 503, "rejected-no-endpoints", late).await;
            assert_refused(second.unwrap(), 503, "rejected-no-endpoints", "no endpoints available: ").await;
        })
        .await;
    let response = pool.chat("impatient").header(TTL, "50ms").send().await.unwrap();
    assert_refused(response, 503, "rejected-no-endpoints", "request timed out in queue and no endpoints").await;
    assert_eq!(pool.ended_with("EvictedNoEndpoints").await.unwrap(), 2);
}

#[tokio::test]
async fn refusals_are_counted_by_their_outcome() {
    let mut pool = full().await;
    for tag in ["waits-0", "waits-1"] {
        let request = pool.chat(tag);
        pool.send(request);
    }
    pool.wait_for(1, 2).await.unwrap();
    for _ in 0..3 {
        assert_eq!(pool.chat("refused").send().await.unwrap().status(), 429);
    }
    let expired = pool.chat_for("batch", "expires").header(TTL, "1ms").send().await.unwrap();
    assert_eq!(expired.status(), 429);
    assert_eq!(pool.ended_with("EvictedTTL").await.unwrap(), 1);
    assert_eq!(pool.ended_with("RejectedCapacity").await.unwrap(), 3);
}

#[tokio::test]
async fn a_request_waits_as_long_as_its_client_or_its_band_allows() {
    let bands = json!([{"priority": -10, "requestTTL": "400ms"}]);
    let mut pool = Counted::start(1, &config(1, &json!({"priorityBands": bands}), &json!({}))).await.unwrap();
    let request = pool.chat("running");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    let cases = [
        ("standard", Some("1ms"), 1),
        ("standard", Some("250ms"), 250),
        ("batch", None, 400),
        ("batch", Some("1h"), 400),
        ("batch", Some("100ms"), 100),
        ("batch", Some("nonsense"), 400),
        ("standard", Some("0s"), 0),
    ];
    let clock = SystemClock::start();
    for (objective, ttl, millis) in cases {
        let request = pool.chat_for(objective, "waits");
        let request = if let Some(ttl) = ttl { request.header(TTL, ttl) } else { request };
        let sent = clock.now();
        let response = request.send().await.unwrap();
        let took = clock.now().saturating_since(sent);
        let budget = Duration::from_millis(millis);
        assert!(took >= budget && took < budget + AT_ONCE, "{objective} {ttl:?} took {took:?}");
        assert_refused(response, 429, "rejected-ttl-expired", "request timed out in queue: ").await;
    }
    assert_eq!(pool.waiting().await.unwrap(), 0);
}

#[tokio::test]
async fn a_request_that_waits_is_refused_before_the_proxy_gives_its_stream_up() {
    let mut deadline = envoy().unwrap();
    let metadata = json!([{"key": "grpc-timeout", "value": "1S"}]);
    deadline.put(Part::GrpcService, "initial_metadata", metadata).unwrap();
    let mut pool = Counted::start_with(1, &config(1, &json!({}), &json!({})), &[], deadline).await.unwrap();
    let request = pool.chat("running");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    let clock = SystemClock::start();
    let response = pool.chat("waits").send().await.unwrap();
    let took = clock.now().saturating_since(sluice_core::Time::ZERO);
    assert!(took >= Duration::from_millis(900), "{took:?}");
    assert_refused(response, 429, "rejected-ttl-expired", "request timed out in queue: ").await;
    assert_eq!(pool.ended_with("EvictedTTL").await.unwrap(), 1);
    pool.wait_for(1, 0).await.unwrap();
}

#[tokio::test]
async fn where_the_whole_queue_is_full_the_newest_of_the_lowest_band_makes_room() {
    let (limit, displace) = (json!({"maxRequests": 2}), json!({"queue": {"whenFull": "displace"}}));
    let mut pool = Counted::start(1, &config(1, &limit, &displace)).await.unwrap();
    let request = pool.chat("running");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    let oldest = pool.chat_for("batch", "oldest");
    pool.send(oldest);
    pool.wait_for(1, 1).await.unwrap();
    let newest = pool.chat_for("batch", "newest").send();
    let urgent = async {
        pool.wait_for(1, 2).await.unwrap();
        let urgent = pool.chat_for("interactive", "urgent").send();
        let served = async {
            eventually(LIMIT, "the newest is displaced", async || {
                Ok((pool.ended_with("RejectedCapacity").await? == 1).then_some(()))
            })
            .await
            .unwrap();
            pool.servers[0].release(2);
        };
        tokio::join!(urgent, served).0
    };
    let (newest, urgent) = tokio::join!(newest, urgent);
    assert_refused(newest.unwrap(), 429, "rejected-saturated", "request rejected pre-queue: queue at capacity").await;
    assert_eq!(urgent.unwrap().status(), 200);
    let metrics = pool.stack.picker.metrics().await.unwrap();
    let displaced = metrics.count("llm_d_epp_flow_control_displaced_total", &[("priority", "-10")]);
    assert_eq!(displaced, Some(1));
    pool.wait_for(1, 0).await.unwrap();
    assert_eq!(pool.servers[0].tags(), ["running", "urgent", "oldest"]);

    // Nobody makes room for an equal.
    let request = pool.chat_for("batch", "waits-0");
    pool.send(request);
    let request = pool.chat_for("batch", "waits-1");
    pool.send(request);
    pool.wait_for(1, 2).await.unwrap();
    let response = pool.chat_for("batch", "equal").send().await.unwrap();
    assert_refused(response, 429, "rejected-saturated", "request rejected pre-queue: queue at capacity").await;
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_leaves_nothing_behind() {
    let mut pool = full().await;
    let leaving = [pool.chat("leaves-0"), pool.chat("leaves-1")];
    let mut leaving: tokio::task::JoinSet<_> = leaving.into_iter().map(reqwest::RequestBuilder::send).collect();
    pool.wait_for(1, 2).await.unwrap();
    leaving.shutdown().await;
    pool.wait_for(1, 0).await.unwrap();
    assert_eq!(pool.ended_with("EvictedContextCancelled").await.unwrap(), 2);

    let request = pool.chat("stays");
    pool.send(request);
    pool.wait_for(1, 1).await.unwrap();
    pool.servers[0].release(2);
    pool.wait_for(0, 0).await.unwrap();
    assert_eq!(pool.servers[0].tags(), ["running", "stays"]);
}

#[tokio::test]
async fn a_band_that_sheds_takes_what_fits_and_refuses_the_rest() {
    let bands = json!([{"priority": -10, "shed": true}]);
    let mut pool = Counted::start(1, &config(1, &json!({"priorityBands": bands}), &json!({}))).await.unwrap();
    let request = pool.chat_for("batch", "fits");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    let response = pool.chat_for("batch", "does-not").send().await.unwrap();
    assert_refused(response, 429, "rejected-saturated", "request rejected pre-queue").await;
    let request = pool.chat("waits");
    pool.send(request);
    pool.wait_for(1, 1).await.unwrap();
}

#[tokio::test]
async fn without_flow_control_sheddable_work_is_refused_while_its_endpoints_are_full() {
    let mut config = config(1, &json!({}), &json!({}));
    config["featureGates"] = json!([]);
    config["saturationDetector"] = config["flowControl"]["saturationDetector"].take();
    let pool = Counted::start(1, &config).await.unwrap();
    let running = pool.chat("running").send();
    let refused = async {
        eventually(LIMIT, "the server is full", async || Ok((pool.open() == 1).then_some(()))).await.unwrap();
        let shed = pool.chat_for("batch", "shed").send().await.unwrap();
        pool.servers[0].release(2);
        shed
    };
    let (running, shed) = tokio::join!(running, refused);
    assert_eq!(running.unwrap().status(), 200);
    assert_eq!(shed.status(), 429);
    assert!(!shed.headers().contains_key(DROPPED_REASON), "as llm-d-router's EPP: no reason");
    assert!(["1", "2"].contains(&shed.headers()["retry-after"].to_str().unwrap()));
    let body: Value = shed.json().await.unwrap();
    assert_eq!(body["error"]["message"], "system saturated, sheddable request dropped", "{body}");
}

#[tokio::test]
async fn without_flow_control_an_empty_pool_is_a_503_and_a_get_is_told_so_too() {
    let mut off = config(1, &json!({}), &json!({}));
    off["featureGates"] = json!([]);
    for config in [off, config(1, &json!({}), &json!({}))] {
        let pool = Counted::start(0, &config).await.unwrap();
        let url = pool.stack.envoy.url("/v1/models");
        let models = sluice_testkit::Protocol::Http2.client().unwrap().get(url).send().await.unwrap();
        assert_eq!(
            (models.status().as_u16(), &models.headers()[DROPPED_REASON]),
            (503, &HeaderValue::from_static("rejected-no-endpoints"))
        );
        assert!(["1", "2"].contains(&models.headers()["retry-after"].to_str().unwrap()));
        let page = pool.stack.picker.metrics().await.unwrap();
        let queued = page.samples().iter().find(|sample| sample.name.contains("queue_duration"));
        assert!(queued.is_none(), "what asks for no admission has not been in a queue: {queued:?}");
        if config["featureGates"] == json!([]) {
            let chat = pool.chat("lost").send().await.unwrap();
            let message = "failed to find endpoint candidates for serving the request";
            assert_refused(chat, 503, "rejected-no-endpoints", message).await;
        }
    }
}
