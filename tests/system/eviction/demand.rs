//! When nothing is evicted: work that could not be served by it, and pools without a shortage.

use serde_json::json;
use sluice_testkit::{CountingUpstream, Envoy, Protocol, STREAM_HEADER, TAG_HEADER, eventually};

use super::rig::{Pool, evicting, with_ceilings};
use super::seen::{End, Ending};
use crate::flow::support::{AT_ONCE, OBJECTIVE, SUBSET, TTL, envoy, vouching_envoy};
use crate::support::{CHAT, LIMIT, chat, post};

/// Nothing was revoked, and after a while still nothing is.
async fn assert_nothing_is_evicted(pool: &Pool) {
    tokio::time::sleep(AT_ONCE).await;
    assert_eq!(pool.issued(None).await, 0);
    assert_eq!(pool.victim_tags(), [""; 0]);
}

#[tokio::test]
async fn without_the_setting_nothing_is_evicted() {
    let mut config = evicting(4, &json!({}));
    config["flowControl"]["enableEviction"] = false.into();
    let mut pool = Pool::start(&config).await;
    pool.fill("batch", 4).await;
    pool.burst("interactive", 2);
    pool.wait_for(4, 2).await;
    assert_nothing_is_evicted(&pool).await;
}

#[tokio::test]
async fn a_dry_run_counts_and_evicts_nothing() {
    let mut config = evicting(4, &json!({}));
    config["sluice"]["dryRun"] = json!(["eviction"]);
    let mut pool = Pool::start(&config).await;
    pool.fill("batch", 4).await;
    pool.burst("interactive", 2);
    pool.wait_for(4, 2).await;
    assert_nothing_is_evicted(&pool).await;
    let page = pool.counted.stack.picker.metrics().await.unwrap();
    assert_eq!(page.count("llm_d_epp_flow_control_would_revoke_total", &[]), Some(2));
}

#[tokio::test]
async fn a_band_whose_ceiling_is_zero_makes_nobody_go() {
    let config = with_ceilings(evicting(4, &json!({})), &[(200, 1.0), (100, 1.0), (0, 0.0)]);
    let mut pool = Pool::start(&config).await;
    pool.fill("interactive", 4).await;
    pool.burst("standard", 3);
    pool.wait_for(4, 3).await;
    assert_nothing_is_evicted(&pool).await;
}

#[tokio::test]
async fn an_empty_pool_makes_nobody_go() {
    let mut pool = Pool::start(&evicting(4, &json!({}))).await;
    pool.fill("batch", 4).await;
    pool.counted.stack.endpoints.replace(&[]).unwrap();
    pool.counted.wait_for_endpoints(0).await.unwrap();
    pool.burst("interactive", 3);
    pool.wait_for(4, 3).await;
    assert_nothing_is_evicted(&pool).await;
}

#[tokio::test]
async fn a_request_that_may_not_wait_makes_nobody_go() {
    let mut pool = Pool::start(&evicting(4, &json!({}))).await;
    pool.fill("batch", 4).await;
    let request = pool.stream("interactive", "impatient").header(TTL, "0s");
    assert_eq!(request.send().await.unwrap().status(), 429);
    assert_nothing_is_evicted(&pool).await;
}

#[tokio::test]
async fn work_of_one_endpoint_makes_room_there_and_nowhere_else() {
    let config = evicting(2, &json!({}));
    let mut pool = Pool::start_with(2, &config, vouching_envoy().unwrap()).await;
    let [first, second] = [0, 1].map(|server: usize| pool.counted.servers[server].address().to_string());
    for (tag, hint) in [("batch-0", &first), ("batch-1", &first), ("batch-2", &second), ("batch-3", &second)] {
        let request = pool.stream("batch", tag).header(SUBSET, hint);
        pool.run(tag, request).await;
    }
    // The newest of all is on the second.
    let request = pool.stream("interactive", "hinted").header(SUBSET, &first);
    pool.send("hinted", request);
    let (victim, seen) = pool.next_end().await;
    assert_eq!((victim.as_str(), seen.ending()), ("batch-1", Ending::ToldThenCut), "{seen}");
    pool.wait_for_arrivals(5, 4, 0).await;
    assert!(pool.counted.servers[0].tags().contains(&"hinted".to_owned()));

    // Where what runs is of no lower priority, nobody goes.
    let request = pool.stream("interactive", "hinted-too").header(SUBSET, &first);
    pool.send("hinted-too", request);
    let (victim, _) = pool.next_end().await;
    assert_eq!(victim, "batch-0");
    pool.wait_for_arrivals(6, 4, 0).await;
    let request = pool.stream("interactive", "in-vain").header(SUBSET, &first);
    pool.send("in-vain", request);
    pool.wait_for(4, 1).await;
    assert_eq!(pool.issued(None).await, 2);
    assert_eq!(pool.counted.servers[1].open(), 2);
}

/// A second proxy in front of the same picker hears of nothing while the first one is frozen.
#[tokio::test]
async fn a_victim_that_does_not_end_in_time_is_counted_and_the_next_one_taken() {
    const SLOTS: usize = 3;
    let mut pool = Pool::start(&evicting(3, &json!({"confirmationTimeout": "300ms"}))).await;
    pool.fill("batch", SLOTS).await;
    let mut other = envoy().unwrap();
    other.set_pickers(&[pool.counted.stack.picker.ext_proc()]).unwrap();
    let other = Envoy::start(&other).await.unwrap();

    pool.counted.stack.envoy.process_mut().freeze().unwrap();
    let client = Protocol::Http1.client().unwrap();
    let request = post(&client, &other.url(CHAT), &chat("hello", 1, true)).header(STREAM_HEADER, "1");
    let request = request.header(OBJECTIVE, "interactive").header(TAG_HEADER, "interactive");
    pool.send("interactive", request);
    let mut ended = [0; 3];
    eventually(LIMIT, "all three are overdue", async || {
        let page = pool.counted.stack.picker.metrics().await?;
        let count = |name: &str, labels: &[(&str, &str)]| page.count(name, labels).unwrap_or_default();
        let of = |outcome: &str| count("llm_d_epp_flow_control_revocations_total", &[("outcome", outcome)]);
        ended = [count("llm_d_epp_flow_control_revocations_issued_total", &[]), of("timed_out"), of("confirmed")];
        Ok((ended == [3, 3, 0]).then_some(()))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}: {ended:?}"));
    // They still hold their slots.
    assert_eq!(pool.counted.open(), SLOTS);
    assert_eq!(pool.counted.waiting().await.unwrap(), 1);

    pool.counted.stack.envoy.process_mut().resume().unwrap();
    for _ in 0..SLOTS {
        let (tag, seen) = pool.next_end().await;
        assert!(tag.starts_with("batch-") && seen.status == 200 && seen.end == End::Cut, "{tag}: {seen}");
    }
    pool.wait_for(1, 0).await;
    assert_eq!(pool.counted.servers[0].tags().last().unwrap(), "interactive");
}

#[tokio::test]
async fn after_an_eviction_the_pool_is_as_full_as_before() {
    let mut pool = Pool::start_with(2, &evicting(4, &json!({})), envoy().unwrap()).await;
    for round in 0..5 {
        pool.fill("batch", 8).await;
        let arrived = pool.arrived();
        pool.burst("interactive", 8);
        pool.wait_for_arrivals(arrived + 8, 8, 0).await;
        assert_eq!(pool.issued(None).await, 8 * (round + 1));
        let open: Vec<usize> = pool.counted.servers.iter().map(CountingUpstream::open).collect();
        assert_eq!(open, [4, 4], "round {round}");
        pool.hang_up().await;
    }
    let page = pool.counted.stack.picker.metrics().await.unwrap();
    let ended = |outcome: &str| page.count("llm_d_epp_flow_control_revocations_total", &[("outcome", outcome)]);
    assert_eq!((ended("confirmed"), ended("timed_out").unwrap_or_default()), (Some(40), 0));
    let page = pool.counted.stack.picker.flow().await.unwrap();
    let endpoints = page["endpoints"].as_array().unwrap();
    assert!(endpoints.iter().all(|endpoint| endpoint["inFlight"]["requests"] == 0), "{page}");
}
