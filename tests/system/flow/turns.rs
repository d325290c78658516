//! Who is served next.

use std::time::Duration;

use serde_json::json;
use sluice_core::{Clock, SystemClock};
use tokio::task::JoinSet;

use super::support::{Counted, config, for_millis, of_tenant};

#[tokio::test]
async fn while_the_pool_is_full_higher_bands_are_served_first_each_in_order_of_arrival() {
    let mut pool = Counted::start(1, &config(1, &json!({}), &json!({}))).await.unwrap();
    let request = pool.chat("first");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    let mut waiting = 0;
    for round in 0..4 {
        for objective in ["batch", "interactive", "standard"] {
            let request = pool.chat_for(objective, &format!("{objective}-{round}"));
            pool.send(request);
            waiting += 1;
            // One after the other, so that the order of arrival is known.
            pool.wait_for(1, waiting).await.unwrap();
        }
    }
    pool.servers[0].release(13);
    pool.wait_for(0, 0).await.unwrap();
    let mut expected = vec!["first".to_owned()];
    for objective in ["interactive", "standard", "batch"] {
        expected.extend((0..4).map(|round| format!("{objective}-{round}")));
    }
    assert_eq!(pool.servers[0].tags(), expected);
}

#[tokio::test]
async fn tenants_take_turns_one_request_each() {
    let mut pool = Counted::start(1, &config(1, &json!({}), &json!({}))).await.unwrap();
    let request = pool.chat("first");
    pool.send(request);
    pool.wait_for(1, 0).await.unwrap();
    let mut waiting = 0;
    for tenant in ["burst", "burst", "burst", "burst", "a", "b", "a"] {
        let request = of_tenant(pool.chat(tenant), tenant);
        pool.send(request);
        waiting += 1;
        pool.wait_for(1, waiting).await.unwrap();
    }
    pool.servers[0].release(8);
    pool.wait_for(0, 0).await.unwrap();
    let tags = pool.servers[0].tags();
    let place = |tenant: &str| tags.iter().position(|tag| tag == tenant).unwrap();
    assert!(place("a") <= 3 && place("b") <= 3, "{tags:?}");
    assert_eq!(tags[6..], ["burst", "burst"], "those who have more wait longer: {tags:?}");
}

/// How long the requests of two peers wait in the picker in the mean, while a third tenant has `clients` clients and
/// they have four.
async fn mean_wait_of_peers(clients: usize) -> Duration {
    const RUN: Duration = Duration::from_millis(2_500);
    let pool = Counted::start(1, &config(4, &json!({}), &json!({}))).await.unwrap();
    let clock = SystemClock::start();
    let mut loops = JoinSet::new();
    for (tenant, clients) in [("burst", clients), ("a", 4), ("b", 4)] {
        for _ in 0..clients {
            let request = for_millis(of_tenant(pool.chat(tenant), tenant), 20);
            loops.spawn(async move {
                while clock.now().saturating_since(sluice_core::Time::ZERO) < RUN {
                    let response = request.try_clone().unwrap().send().await.unwrap();
                    assert_eq!(response.status(), 200);
                }
            });
        }
    }
    loops.join_all().await;
    let page = pool.stack.picker.metrics().await.unwrap();
    let of_peers = |part: &str| -> f64 {
        let name = format!("llm_d_epp_flow_control_request_queue_duration_seconds_{part}");
        ["a", "b"].map(|tenant| page.sum(&name, &[("fairness_id", tenant)]).unwrap()).iter().sum()
    };
    Duration::from_secs_f64(of_peers("sum") / of_peers("count"))
}

#[tokio::test]
async fn a_tenant_with_ten_times_the_clients_does_not_delay_its_peers() {
    // At the same time, so that whatever else the machine does concerns both.
    let (alike, beside_a_burst) = tokio::join!(mean_wait_of_peers(4), mean_wait_of_peers(40));
    println!("mean wait of the peers' requests: {alike:?} among equals, {beside_a_burst:?} beside a burst");
    assert!(beside_a_burst < alike * 2, "{alike:?}, then {beside_a_burst:?}");
}
