//! When nothing is evicted: work that could not be served by it, and pools without a shortage.

use std::time::Duration;

use serde_json::json;
use sluice_core::{Clock as _, SystemClock, Time};
use sluice_testkit::{CountingUpstream, eventually};

use super::rig::{Pool, Revocations, evicting, with_ceilings};
use super::seen::{End, Ending};
use crate::flow::support::{AT_ONCE, SUBSET, TTL, envoy, vouching_envoy};
use crate::support::LIMIT;

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

#[tokio::test]
async fn a_victim_that_does_not_end_in_time_is_counted_and_the_next_one_taken() {
    const SLOTS: usize = 3;
    let mut pool = Pool::start(&evicting(3, &json!({"confirmationTimeout": "300ms"}))).await;
    pool.fill("batch", SLOTS).await;
    let other = pool.freeze_behind_another_envoy().await;
    pool.send("interactive", pool.stream_through(&other, "interactive", "interactive"));
    pool.wait_for_revocations(Revocations { issued: 3, timed_out: 3, confirmed: 0 }).await;
    // They still hold their slots.
    assert_eq!(pool.counted.open(), SLOTS);
    assert_eq!(pool.counted.waiting().await.unwrap(), 1);
    assert_eq!(pool.counted.stack.picker.flow().await.unwrap()["leases"]["revoked"], 3);

    pool.counted.stack.envoy.process_mut().resume().unwrap();
    for _ in 0..SLOTS {
        let (tag, seen) = pool.next_end().await;
        assert!(tag.starts_with("batch-") && seen.status == 200 && seen.end == End::Cut, "{tag}: {seen}");
    }
    pool.wait_for(1, 0).await;
    assert_eq!(pool.counted.servers[0].tags().last().unwrap(), "interactive");
}

/// The picker gives nothing up that the proxy may still have, however long it takes.
#[tokio::test]
async fn a_victim_whose_stream_does_not_end_holds_its_slot() {
    const SLOTS: usize = 3;
    let mut pool = Pool::start(&evicting(3, &json!({"confirmationTimeout": "8s"}))).await;
    pool.fill("batch", SLOTS).await;
    let other = pool.freeze_behind_another_envoy().await;
    pool.send("interactive", pool.stream_through(&other, "interactive", "interactive"));
    pool.wait_for_revocations(Revocations { issued: 1, timed_out: 0, confirmed: 0 }).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(pool.revocations().await.unwrap(), Revocations { issued: 1, timed_out: 0, confirmed: 0 });
    let page = pool.counted.stack.picker.flow().await.unwrap();
    assert_eq!((&page["leases"]["revoked"], &page["waiting"]["requests"]), (&json!(1), &json!(1)), "{page}");
    let logs = pool.counted.stack.logs();
    assert!(logs.contains("the proxy does not end streams that it was told to cut off"), "{logs}");
    // Then it is overdue, and another one is told.
    pool.wait_for_revocations(Revocations { issued: 2, timed_out: 1, confirmed: 0 }).await;
    assert_eq!(pool.counted.open(), SLOTS);

    pool.counted.stack.envoy.process_mut().resume().unwrap();
    for _ in 0..2 {
        let (tag, seen) = pool.next_end().await;
        assert!(tag.starts_with("batch-") && seen.status == 200 && seen.end == End::Cut, "{tag}: {seen}");
    }
    pool.wait_for(2, 0).await;
}

/// Of the time in which the picker asks it for a sign of life most is waiting for silence.
#[tokio::test]
async fn a_proxy_that_is_dead_is_given_up_with_all_its_streams() {
    let mut pool = Pool::start(&evicting(3, &json!({}))).await;
    pool.fill("batch", 3).await;
    pool.counted.stack.envoy.process_mut().freeze().unwrap();
    let clock = SystemClock::start();
    eventually(LIMIT * 3, "nothing is booked any more", async || {
        Ok((pool.counted.stack.picker.flow().await?["leases"]["started"] == 0).then_some(()))
    })
    .await
    .unwrap();
    let after = clock.now().saturating_since(Time::ZERO);
    println!("given up after {after:?}");
    assert!(after > Duration::from_secs(15), "{after:?}: it may have been busy");
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
