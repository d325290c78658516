use std::time::Duration;

use serde_json::{Value, json};
use sluice_testkit::{EnvoyConfig, Part, Template};
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

/// More than Envoy lets wait by itself, and more than the picker lets wait.
#[tokio::test]
async fn every_template_brings_more_requests_to_the_picker_than_envoy_would_by_default() {
    const WAITING: usize = 1_200;
    const REFUSED: usize = 300;
    for template in Template::ALL {
        let config = config(4, &json!({"defaultPriorityBand": {"maxRequests": WAITING}}), &json!({}));
        let envoy = EnvoyConfig::from_template(template).unwrap();
        let pool = Counted::start_with(2, &config, &[], envoy).await.unwrap();
        let mut crowd = Crowd::new(WAITING + 8, |path| pool.stack.envoy.url(path)).unwrap();
        crowd.send(WAITING + 8, |request| request);
        pool.wait_for(8, WAITING as u64).await.unwrap_or_else(|error| panic!("{template:?}: {error:#}"));
        let mut late = Crowd::new(REFUSED, |path| pool.stack.envoy.url(path)).unwrap();
        late.send(REFUSED, |request| request);
        assert_eq!(late.outcomes().await, [("429".to_owned(), REFUSED)].into(), "{template:?}");

        for server in &pool.servers {
            server.release(WAITING + 8);
        }
        assert_eq!(crowd.outcomes().await, all_served(WAITING + 8), "{template:?}");
        pool.wait_for(0, 0).await.unwrap_or_else(|error| panic!("{template:?}: {error:#}"));
    }
}

/// An Envoy without the limits that the templates raise. What runs counts as well as what waits.
#[tokio::test]
async fn by_its_defaults_envoy_itself_refuses_what_is_beyond_1024_requests_and_the_others_are_served() {
    const REQUESTS: usize = 1_500;
    const DEFAULT: usize = 1_024;
    let mut envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    for cluster in [Part::Picker, Part::ModelServers] {
        envoy.put(cluster, "circuit_breakers", Value::Null).unwrap();
    }
    let pool = Counted::start_with(2, &roomy(4), &[], envoy).await.unwrap();
    let mut crowd = Crowd::new(REQUESTS, |path| pool.stack.envoy.url(path)).unwrap();
    crowd.send(REQUESTS, |request| request);
    pool.wait_for(8, (DEFAULT - 8) as u64).await.unwrap();

    for server in &pool.servers {
        server.release(REQUESTS);
    }
    let expected = [("200".to_owned(), DEFAULT), ("500".to_owned(), REQUESTS - DEFAULT)];
    assert_eq!(crowd.outcomes().await, expected.into());
    pool.wait_for(0, 0).await.unwrap();
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
