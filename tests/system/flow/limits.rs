//! A model server gets as much as its limit says: never more, and all of it.

use std::time::Duration;

use serde_json::json;
use sluice_testkit::{Burst, eventually};

use super::support::{Counted, config};
use crate::support::LIMIT;

#[tokio::test]
async fn bursts_with_disconnects_fill_every_server_to_its_limit_and_not_beyond() {
    const SLOTS: u32 = 4;
    const SERVERS: usize = 2;
    let pool = Counted::start(SERVERS, &config(SLOTS, &json!({}), &json!({}))).await.unwrap();
    let burst = Burst { clients: 80, requests: 2_500, seed: 1 };
    let report = burst.run(&pool.stack, &pool.servers).await.unwrap();
    println!("{report}");
    assert_eq!(report.statuses.keys().copied().collect::<Vec<_>>(), [200], "{report}");
    assert!(report.left > burst.requests / 10 && report.broken == 0, "{report}");
    for server in &report.servers {
        assert_eq!(server.peak_without_aborted, 4, "{report}");
        assert!(server.aborted > 10, "clients leave while they are served, too: {report}");
    }
    // Those who left have not seen their status.
    let stats = pool.stack.envoy.stats().await.unwrap();
    let server_errors = [("envoy_http_conn_manager_prefix", "inference"), ("envoy_response_code_class", "5")];
    assert_eq!(stats.count("envoy_http_downstream_rq_xx", &server_errors), Some(0));
    eventually(LIMIT, "nothing is left", async || {
        let page = pool.stack.picker.flow().await?;
        let leases = [&page["leases"]["granted"], &page["leases"]["started"], &page["waiting"]["requests"]];
        Ok((pool.open() == 0 && leases.iter().all(|count| **count == 0)).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn of_fifty_requests_at_once_the_only_slot_takes_one_and_the_others_wait() {
    let mut pool = Counted::start(1, &config(1, &json!({}), &json!({}))).await.unwrap();
    for index in 0..50 {
        let request = pool.chat(&index.to_string());
        pool.send(request);
    }
    pool.wait_for(1, 49).await.unwrap();
    let metrics = pool.stack.picker.metrics().await.unwrap();
    assert_eq!(metrics.sum("llm_d_epp_flow_control_pool_saturation", &[("stage", "effective")]), Some(1.0));

    pool.servers[0].release(50);
    pool.wait_for(0, 0).await.unwrap();
    assert_eq!(pool.servers[0].visits().len(), 50);
    assert_eq!(pool.servers[0].peak(), 1);
    assert_eq!(pool.ended_with("Dispatched").await.unwrap(), 50);
}

#[tokio::test]
async fn a_stream_that_stays_silent_keeps_its_slot() {
    let mut pool = Counted::start(1, &config(1, &json!({}), &json!({}))).await.unwrap();
    let request = super::support::streamed(pool.chat("silent"));
    let mut silent = request.send().await.unwrap();
    assert!(silent.chunk().await.unwrap().is_some());
    let request = pool.chat("next");
    pool.send(request);
    pool.wait_for(1, 1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    pool.wait_for(1, 1).await.unwrap();
    pool.servers[0].release(1);
    assert!(silent.chunk().await.unwrap().is_some());
    pool.wait_for(1, 0).await.unwrap();
    assert_eq!(pool.servers[0].tags(), ["silent", "next"]);
}

#[tokio::test]
async fn requests_that_nothing_tells_apart_spread_over_the_servers() {
    let mut pool = Counted::start(4, &config(100, &json!({}), &json!({}))).await.unwrap();
    for index in 0..100 {
        let request = pool.chat(&index.to_string());
        pool.send(request);
    }
    pool.wait_for(100, 0).await.unwrap();
    let open: Vec<_> = pool.servers.iter().map(sluice_testkit::CountingUpstream::open).collect();
    assert!(open.iter().all(|open| (20..=30).contains(open)), "{open:?}");
}
