//! Who is served next.

use std::time::Duration;

use serde_json::json;
use sluice_core::{Clock, SystemClock};
use sluice_testkit::Protocol;
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

/// What two tenants with ten clients each get out of four slots. A request takes so long that the machine has little to
/// do: its speed is not what is measured.
#[derive(Clone, Copy, Debug)]
struct Peers {
    /// How long their requests wait in the picker, in the mean.
    wait: Duration,
    /// How often one of them is served.
    rate: f64,
}

/// Measures the two, beside a third tenant that sends `burst` requests a second, whatever becomes of them.
async fn peers(burst: Option<f64>) -> Peers {
    const RUN: Duration = Duration::from_secs(6);
    const CLIENTS: usize = 10;
    const WORK_MILLIS: u64 = 200;
    let pool = Counted::start(1, &config(4, &json!({}), &json!({}))).await.unwrap();
    let request = |tenant: &str| for_millis(of_tenant(pool.chat(tenant), tenant), WORK_MILLIS);
    let clock = SystemClock::start();
    let mut bursting = JoinSet::new();
    if let Some(rate) = burst {
        // On connections of its own: Envoy takes 1,024 streams on one.
        let clients = [(); 2].map(|()| Protocol::Http2.client().unwrap());
        let chats = clients.map(|client| pool.chat_from(&client, "burst"));
        let requests = chats.map(|chat| for_millis(of_tenant(chat, "burst"), WORK_MILLIS));
        bursting.spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
            let mut sent = JoinSet::new();
            for request in requests.iter().cycle() {
                // Ticks that were missed follow at once.
                ticks.tick().await;
                sent.spawn(request.try_clone().unwrap().send());
            }
        });
    }
    let mut loops = JoinSet::new();
    for tenant in ["a", "b"] {
        for _ in 0..CLIENTS {
            let request = request(tenant);
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
    let queued = |part: &str, tenant| {
        let name = format!("llm_d_epp_flow_control_request_queue_duration_seconds_{part}");
        page.sum(&name, &[("fairness_id", tenant)]).unwrap()
    };
    let [waited, served] = ["sum", "count"].map(|part| queued(part, "a") + queued(part, "b"));
    if let Some(rate) = burst {
        let came = queued("count", "burst") + pool.waiting().await.unwrap() as f64;
        assert!(came >= 0.8 * rate * RUN.as_secs_f64(), "a burst of only {came} requests");
    }
    Peers { wait: Duration::from_secs_f64(waited / served), rate: served / 2.0 / RUN.as_secs_f64() }
}

/// With round robin a third tenant takes a third of the slots, whatever it sends: the two others wait half as long again.
#[tokio::test]
async fn a_tenant_with_ten_times_the_rate_at_most_doubles_the_wait_of_its_peers() {
    let alone = peers(None).await;
    let beside_a_burst = peers(Some(10.0 * alone.rate)).await;
    println!("the peers alone: {alone:?}; beside one with ten times the rate: {beside_a_burst:?}");
    assert!(beside_a_burst.wait < alone.wait * 2, "{alone:?}, then {beside_a_burst:?}");
}
