//! Whose request it is, and who says so.

use serde_json::json;

use super::support::{Counted, DROPPED_REASON, VOUCHED_OBJECTIVE, config, envoy, vouching_envoy};

#[tokio::test]
async fn an_unknown_objective_is_a_400_where_those_are_refused() {
    let config = config(1, &json!({}), &json!({"unknownObjective": "reject"}));
    let mut pool = Counted::start_with(1, &config, &[], envoy().unwrap()).await.unwrap();
    let response = pool.chat_for("nobody", "unknown").send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(!response.headers().contains_key("retry-after") && !response.headers().contains_key(DROPPED_REASON));
    let body: serde_json::Value = response.json().await.unwrap();
    assert!(body["error"]["message"].as_str().unwrap().contains("nobody"), "{body}");
    let metrics = pool.stack.picker.metrics().await.unwrap();
    let unknown = metrics.samples().iter().filter(|sample| sample.name.contains("objective_not_found"));
    assert_eq!(unknown.map(|sample| sample.value).collect::<Vec<_>>(), [1.0]);

    for request in [pool.chat_for("batch", "known"), pool.chat("none")] {
        pool.send(request);
    }
    pool.wait_for(1, 1).await.unwrap();
}

#[tokio::test]
async fn an_unknown_objective_counts_as_none_where_those_are_not_refused() {
    let config = config(1, &json!({}), &json!({"defaultObjective": "batch"}));
    let mut pool = Counted::start(1, &config).await.unwrap();
    for request in [pool.chat("first"), pool.chat("none"), pool.chat_for("nobody", "unknown")] {
        pool.send(request);
    }
    pool.wait_for(1, 2).await.unwrap();
    assert_eq!(pool.band(-10).await.unwrap()["waiting"]["requests"], 2);
}

#[tokio::test]
async fn where_the_proxy_is_trusted_a_client_cannot_promote_itself() {
    let config = config(1, &json!({}), &json!({"trust": {"source": "metadata"}}));
    let mut pool = Counted::start_with(1, &config, &[], vouching_envoy().unwrap()).await.unwrap();
    let request = pool.chat("first");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    let requests = [
        pool.chat_for("interactive", "claimed"),
        pool.chat("vouched").header(VOUCHED_OBJECTIVE, "interactive"),
        pool.chat_for("interactive", "demoted").header(VOUCHED_OBJECTIVE, "batch"),
    ];
    for request in requests {
        pool.send(request);
    }
    pool.wait_for(1, 3).await.unwrap();
    for priority in [100, 0, -10] {
        assert_eq!(pool.band(priority).await.unwrap()["waiting"]["requests"], 1, "band {priority}");
    }
    pool.servers[0].release(4);
    pool.wait_for(0, 0).await.unwrap();
    assert_eq!(pool.servers[0].tags(), ["first", "vouched", "claimed", "demoted"]);
}

#[tokio::test]
async fn priorities_span_the_whole_range_of_32_bits() {
    let objectives = json!([
        {"name": "first", "priority": i32::MAX},
        {"name": "last", "priority": i32::MIN},
    ]);
    let mut pool = Counted::start(1, &config(1, &json!({}), &json!({"objectives": objectives}))).await.unwrap();
    let request = pool.chat("running");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    for (waiting, objective) in [(1, "last"), (2, "none"), (3, "first")] {
        let request = pool.chat_for(objective, objective);
        pool.send(request);
        pool.wait_for(1, waiting).await.unwrap();
    }
    for priority in [i32::MIN, 0, i32::MAX] {
        assert_eq!(pool.band(priority.into()).await.unwrap()["waiting"]["requests"], 1, "band {priority}");
    }
    pool.servers[0].release(4);
    pool.wait_for(0, 0).await.unwrap();
    assert_eq!(pool.servers[0].tags(), ["running", "first", "none", "last"]);
}
