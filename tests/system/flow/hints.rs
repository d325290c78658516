//! Requests that may use some endpoints only, and endpoints that leave.

use std::time::Duration;

use serde_json::json;
use sluice_core::{Clock, SystemClock};
use sluice_testkit::{Process, eventually};

use super::support::{AT_ONCE, Counted, SUBSET, assert_refused, config, for_millis, vouching_envoy};
use crate::support::LIMIT;

/// Seconds of CPU that a process has used, to a hundredth.
fn cpu_seconds(process: &Process) -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    // The second field is a name in parentheses, which may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

#[tokio::test]
async fn requests_hinted_to_a_full_endpoint_wait_without_delaying_others() {
    const SLOTS: u32 = 2;
    let config = config(SLOTS, &json!({}), &json!({}));
    let mut pool = Counted::start_with(2, &config, &[], vouching_envoy().unwrap()).await.unwrap();
    let hint = pool.servers[0].address().to_string();
    for tag in ["hinted-0", "hinted-1", "hinted-2", "hinted-3", "hinted-4", "hinted-5", "hinted-6", "hinted-7"] {
        let request = pool.chat(tag).header(SUBSET, &hint);
        pool.send(request);
    }
    pool.wait_for(2, 6).await.unwrap();
    assert_eq!(pool.servers[0].open(), 2);
    assert_eq!(pool.band(0).await.unwrap()["parked"], 6);

    // They cost nothing while they wait.
    let before = cpu_seconds(pool.stack.picker.process());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = cpu_seconds(pool.stack.picker.process()) - before;
    println!("CPU of the picker in 2 s with six parked requests: {used:.2} s");
    assert!(used <= 0.1, "{used} s of CPU in two idle seconds");

    let clock = SystemClock::start();
    let unhinted = async {
        let mut slowest = Duration::ZERO;
        for index in 0..200 {
            let sent = clock.now();
            let response = for_millis(pool.chat(&format!("free-{index}")), 1).send().await.unwrap();
            assert_eq!(response.status(), 200);
            slowest = slowest.max(clock.now().saturating_since(sent));
        }
        slowest
    };
    let hinted = async {
        for served in 3..=8 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            pool.servers[0].release(1);
            eventually(LIMIT, "the next hinted request", async || {
                Ok((pool.servers[0].visits().len() == served).then_some(()))
            })
            .await
            .unwrap();
        }
    };
    let (slowest, ()) = tokio::join!(unhinted, hinted);
    println!("slowest of 200 unhinted requests: {slowest:?}");
    assert!(slowest < AT_ONCE, "{slowest:?}");
    assert_eq!(pool.servers[1].visits().len(), 200, "a place that is freed is for those who can use no other");
    pool.wait_for(2, 0).await.unwrap();
    assert_eq!((pool.servers[0].peak(), pool.servers[0].visits().len()), (2, 8));
}

#[tokio::test]
async fn a_hint_that_names_no_endpoint_of_the_pool_is_a_503_at_once() {
    let config = config(2, &json!({}), &json!({}));
    let pool = Counted::start_with(1, &config, &[], vouching_envoy().unwrap()).await.unwrap();
    for hint in ["127.0.0.1:1", "nonsense"] {
        let response = pool.chat("lost").header(SUBSET, hint).send().await.unwrap();
        let message = "no endpoints available: request rejected pre-queue: no endpoints available";
        assert_refused(response, 503, "rejected-no-endpoints", message).await;
    }
}

#[tokio::test]
async fn work_goes_on_when_a_full_pool_loses_an_endpoint() {
    const SLOTS: u32 = 2;
    let mut pool = Counted::start(4, &config(SLOTS, &json!({}), &json!({}))).await.unwrap();
    for index in 0..8 {
        let request = pool.chat(&format!("running-{index}"));
        pool.send(request);
    }
    pool.wait_for(8, 0).await.unwrap();
    for index in 0..4 {
        let request = pool.chat(&format!("queued-{index}"));
        pool.send(request);
    }
    pool.wait_for(8, 4).await.unwrap();

    let rest: Vec<_> = pool.servers[..3].iter().map(sluice_testkit::CountingUpstream::address).collect();
    pool.stack.endpoints.replace(&rest).unwrap();
    pool.wait_for_endpoints(3).await.unwrap();
    assert_eq!(pool.waiting().await.unwrap(), 4, "the three are still full");

    // What runs on the endpoint that left holds nobody back: one slot freed is one request let in.
    for freed in 1..=4 {
        let server = &pool.servers[(freed - 1) % 3];
        server.release(1);
        eventually(AT_ONCE, "a freed slot is taken at once", async || {
            let arrived: usize = pool.servers[..3].iter().map(|server| server.visits().len()).sum();
            Ok((arrived == 6 + freed).then_some(()))
        })
        .await
        .unwrap();
    }
    pool.wait_for(8, 0).await.unwrap();
    assert_eq!(pool.servers[3].open(), 2, "what runs there goes on");
    assert!(pool.servers.iter().all(|server| server.peak() == 2));
}
