//! Pickers without leader election that are replaced one by one, as a Deployment replaces them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, ensure};
use reqwest::RequestBuilder;
use sluice_testkit::apiserver::pod;
use sluice_testkit::{CountingUpstream, HOLD_HEADER, Protocol, Resource, STREAM_HEADER};
use tokio::task::JoinSet;
use tonic_health::pb::health_check_response::ServingStatus;

use super::cluster::{address, config, labels, shared_port};
use super::fleet::{Fleet, wait_for_endpoints, wait_for_healthy, wait_for_readiness};
use crate::support::{CHAT, LIMIT, chat, post};

const PODS: u8 = 3;
/// More than two pickers with a slot for each pod have room for: some wait.
const CLIENTS: usize = 12;
/// Milliseconds that model servers work, one after the other: short requests, and some that outlast what comes between.
const HOLDS: [u64; 4] = [20, 100, 400, 1_500];
/// Envoy notices after two looks, 2 s apart, that a picker wants no more requests.
const DRAIN: [&str; 4] = ["--drain-timeout", "6s", "--stream-drain-timeout", "10s"];

/// Sends the request and reads the answer to its end.
async fn served(request: RequestBuilder) -> Result<()> {
    let response = request.send().await?;
    let status = response.status();
    let body = response.text().await?;
    ensure!(status == 200, "{status}: {body}");
    Ok(())
}

#[tokio::test]
async fn a_rolling_update_of_two_pickers_costs_no_request() {
    let port = shared_port().unwrap();
    let fleet = Fleet::start(port, &config(1)).await.unwrap();
    let mut servers = Vec::new();
    for host in 1..=PODS {
        servers.push(CountingUpstream::start_at((address(host), port).into()).unwrap());
        fleet.server.apply(Resource::POD, pod(&format!("pod-{host}"), &address(host).to_string(), &labels()));
    }
    let mut pickers = Vec::new();
    for place in [0, 1] {
        let picker = fleet.start_picker(place, &DRAIN).await.unwrap();
        wait_for_endpoints(&picker, PODS.into()).await.unwrap();
        pickers.push(picker);
    }
    wait_for_healthy(&fleet.envoy, 2).await.unwrap();

    let (done, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (client, url) = (Protocol::ALL[number % Protocol::ALL.len()].client().unwrap(), fleet.envoy.url(CHAT));
        let (done, answered) = (Arc::clone(&done), Arc::clone(&answered));
        clients.spawn(async move {
            let mut failed = Vec::new();
            for turn in (number..).take_while(|_| !done.load(Ordering::Relaxed)) {
                let hold = HOLDS[turn % HOLDS.len()].to_string();
                let mut request = post(&client, &url, &chat("hello", 1, false)).header(HOLD_HEADER, hold);
                if turn % 2 == 0 {
                    request = request.header(STREAM_HEADER, "1");
                }
                match served(request).await {
                    Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => failed.push(format!("{error:#}")),
                }
            }
            failed
        });
    }
    // One more than there are to be, and none less, as `maxSurge: 1` and `maxUnavailable: 0` say.
    let mut replaced = Vec::new();
    for (place, mut old) in [2, 3].into_iter().zip(pickers) {
        let before = answered.load(Ordering::Relaxed);
        let new = fleet.start_picker(place, &DRAIN).await.unwrap();
        wait_for_readiness(&new, ServingStatus::Serving).await.unwrap();
        assert!(old.process_mut().terminate(LIMIT).await.unwrap().success());
        assert!(answered.load(Ordering::Relaxed) > before, "there was load all the while");
        replaced.push(new);
    }
    done.store(true, Ordering::Relaxed);
    let failed: Vec<String> = clients.join_all().await.concat();
    println!("{} requests served through two replacements, {} failed", answered.load(Ordering::Relaxed), failed.len());
    assert_eq!(failed, [""; 0]);
    wait_for_healthy(&fleet.envoy, 2).await.unwrap();
}
