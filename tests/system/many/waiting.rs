use std::time::Duration;

use serde_json::{Value, json};
use sluice_testkit::{EnvoyConfig, Template};
use tokio::task::JoinSet;

use super::crowd::{Crowd, all_served};
use crate::flow::support::{Counted, config, streamed};

/// So many may wait.
pub(super) fn roomy(slots: u32) -> Value {
    config(slots, &json!({"defaultPriorityBand": {"maxRequests": 100_000}}), &json!({}))
}

async fn wait_and_be_served(template: Template) {
    const WAITING: usize = 3_000;
    const REQUESTS: usize = WAITING + 8;
    let envoy = EnvoyConfig::from_template(template).unwrap();
    let pool = Counted::start_with(2, &roomy(4), &[], envoy).await.unwrap();
    let mut crowd = Crowd::new(REQUESTS, |path| pool.stack.envoy.url(path)).unwrap();
    crowd.send(REQUESTS, |request| request);
    pool.wait_for(8, WAITING as u64).await.unwrap();

    for server in &pool.servers {
        server.release(REQUESTS);
    }
    assert_eq!(crowd.outcomes().await, all_served(REQUESTS));
    assert!(pool.servers.iter().all(|server| server.peak() == 4));
    pool.wait_for(0, 0).await.unwrap();
}

#[tokio::test]
async fn three_thousand_requests_wait_at_once_and_all_are_served() {
    wait_and_be_served(Template::FullDuplex).await;
}

#[tokio::test]
async fn three_thousand_requests_wait_with_their_headers_alone() {
    wait_and_be_served(Template::PerRequest).await;
}

/// How two thousand clients leave.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// From the queue.
    Queued,
    /// So soon after they came that the picker has not heard of them all.
    After(Duration),
    /// While the picker hears nothing.
    Unheard,
}

#[tokio::test]
async fn two_thousand_clients_that_leave_at_once_cost_no_other_stream() {
    const LEAVING: usize = 2_000;
    const STAYING: usize = 200;
    for leaving in [
        Leaving::Queued,
        Leaving::After(Duration::from_millis(1)),
        Leaving::After(Duration::from_millis(20)),
        Leaving::Unheard,
    ] {
        let mut pool = Counted::start(2, &roomy(25)).await.unwrap();
        let mut running: JoinSet<_> =
            (0..50).map(|index| streamed(pool.chat(&format!("running-{index}"))).send()).collect();
        pool.wait_for(50, 0).await.unwrap();
        let mut staying = Crowd::new(STAYING, |path| pool.stack.envoy.url(path)).unwrap();
        staying.send(STAYING, |request| request);
        pool.wait_for(50, 200).await.unwrap();

        let mut crowd = Crowd::new(LEAVING, |path| pool.stack.envoy.url(path)).unwrap();
        match leaving {
            Leaving::Queued => {
                crowd.send(LEAVING, |request| request);
                pool.wait_for(50, 2_200).await.unwrap();
                drop(crowd);
            }
            Leaving::After(time) => {
                crowd.send(LEAVING, |request| request);
                tokio::time::sleep(time).await;
                drop(crowd);
            }
            Leaving::Unheard => {
                let picker = pool.stack.picker.process_mut();
                picker.freeze().unwrap();
                crowd.send(LEAVING, |request| request);
                tokio::time::sleep(Duration::from_millis(750)).await;
                drop(crowd);
                tokio::time::sleep(Duration::from_millis(750)).await;
                picker.resume().unwrap();
            }
        }
        pool.wait_for(50, 200).await.unwrap();

        for server in &pool.servers {
            server.release(STAYING + 50);
        }
        assert_eq!(staying.outcomes().await, all_served(STAYING), "{leaving:?}");
        while let Some(response) = running.join_next().await {
            let text = response.unwrap().unwrap().text().await.unwrap();
            assert_eq!(text, "data: 0\n\ndata: [DONE]\n\n", "{leaving:?}");
        }
        pool.wait_for(0, 0).await.unwrap();
    }
}
