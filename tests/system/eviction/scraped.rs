//! A gate that goes by the metrics of model servers, and what it evicts.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_testkit::eventually;

use super::rig::{Pool, evicting};
use crate::flow::support::AT_ONCE;
use crate::support::LIMIT;

/// One model server that runs two requests at once, and is full when another one waits there.
async fn pool(parameters: &Value) -> Pool {
    let mut config = evicting(1, &json!({}));
    let mut detector = json!({"queueDepthThreshold": 1});
    for (name, value) in parameters.as_object().unwrap() {
        detector[name] = value.clone();
    }
    config["plugins"][1] = json!({"name": "in-flight", "type": "utilization-detector", "parameters": detector});
    let pool = Pool::start(&config).await;
    pool.counted.servers[0].say_running_at_most(2);
    pool
}

/// Waits until the only endpoint has, or has not, said anything lately.
async fn until_stale(pool: &Pool, stale: bool) {
    eventually(LIMIT, "the endpoint is stale, or not", async || {
        let page = pool.counted.stack.picker.flow().await?;
        Ok((page["endpoints"][0]["scraped"]["stale"] == stale).then_some(()))
    })
    .await
    .unwrap();
}

/// Nothing changes for a while.
async fn assert_stays(pool: &Pool, open: usize, waiting: u64) {
    tokio::time::sleep(AT_ONCE).await;
    pool.wait_for(open, waiting).await;
}

#[tokio::test]
async fn one_victim_makes_room_and_is_free_once_a_scrape_after_its_end_shows_it() {
    let mut pool = pool(&json!({"metricsStalenessThreshold": "60s"})).await;
    let batch = pool.fill("batch", 3).await;
    pool.counted.servers[0].be_silent(true);
    pool.burst("interactive", 1);
    pool.wait_for(2, 1).await;
    assert_eq!(pool.victim_tags(), batch[2..], "the newest, and no other");
    assert_stays(&pool, 2, 1).await;
    assert_eq!(pool.issued(None).await, 1);
    pool.counted.servers[0].be_silent(false);
    pool.wait_for(3, 0).await;
    pool.settle().await.unwrap();
    assert_eq!((pool.issued(None).await, pool.victim_tags().len()), (1, 1));
}

#[tokio::test]
async fn nobody_is_revoked_and_nobody_is_let_in_while_no_metrics_come() {
    let mut pool = pool(&json!({})).await;
    pool.fill("batch", 2).await;
    pool.counted.servers[0].be_silent(true);
    until_stale(&pool, true).await;
    pool.burst("interactive", 1);
    pool.wait_for(2, 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_stays(&pool, 2, 1).await;
    assert_eq!(pool.issued(None).await, 0);
    let log = pool.counted.stack.logs();
    assert_eq!(log.matches("endpoints whose metrics are too old").count(), 1, "{log}");
    pool.counted.servers[0].be_silent(false);
    pool.wait_for(3, 0).await;
}

#[tokio::test]
async fn where_silence_is_ignored_requests_are_let_in_all_the_same() {
    let mut pool = pool(&json!({"stalenessPolicy": "ignore"})).await;
    pool.counted.servers[0].be_silent(true);
    until_stale(&pool, true).await;
    pool.burst("standard", 10);
    pool.wait_for(10, 0).await;
}
