//! The pool comes and goes, and so does the API server.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use sluice_core::{Clock as _, SystemClock, Time};
use sluice_testkit::apiserver::{pod, pool};
use sluice_testkit::{ApiServer, Resource};
use tonic_health::pb::health_check_response::ServingStatus;

use super::cluster::{Cluster, POOL, address, config, labels, shared_port};

const SHORT: Duration = Duration::from_millis(1);
/// Between two requests while the API server is away.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the API server is away.
const AWAY: Duration = Duration::from_secs(5);
/// The same for a soak.
const LONG_AWAY: Duration = Duration::from_secs(60);

/// Sends a request and waits for its answer.
async fn serve_one(cluster: &Cluster) -> reqwest::Result<()> {
    cluster.chat("served", SHORT).send().await?.error_for_status().map(drop)
}

#[tokio::test]
async fn it_is_ready_once_the_pool_is_known_be_it_empty_and_alive_all_the_while() {
    let (server, port) = (ApiServer::start().unwrap(), shared_port().unwrap());
    let cluster = Cluster::start_with(server, port, &config(1), &["--pool-name", POOL]).await.unwrap();
    cluster.wait_for_readiness(ServingStatus::NotServing).await.unwrap();
    cluster.server.apply(Resource::POOL, pool("another", &labels(), &[port]));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let lines = cluster.picker.process().output().lines();
    let told = lines.iter().filter(|line| line.contains("there is no such InferencePool") && line.contains(POOL));
    assert_eq!(told.count(), 1);
    cluster.wait_for_readiness(ServingStatus::NotServing).await.unwrap();
    cluster.server.apply(Resource::POOL, pool(POOL, &labels(), &[port]));
    cluster.wait_for_readiness(ServingStatus::Serving).await.unwrap();
}

#[tokio::test]
async fn a_pool_that_is_deleted_and_made_anew_is_followed() {
    let cluster = Cluster::start(4).await.unwrap();
    let _pods = [cluster.serve(1).await.unwrap(), cluster.serve(2).await.unwrap()];
    cluster.add_pod("a", 1);
    cluster.wait_for_readiness(ServingStatus::Serving).await.unwrap();
    cluster.wait_for_endpoints(1).await.unwrap();
    serve_one(&cluster).await.unwrap();

    cluster.server.delete(Resource::POOL, POOL);
    cluster.wait_for_endpoints(0).await.unwrap();
    cluster.wait_for_readiness(ServingStatus::NotServing).await.unwrap();
    cluster.add_pod("b", 2);
    cluster.server.apply(Resource::POOL, pool(POOL, &labels(), &[cluster.port]));
    cluster.wait_for_endpoints(2).await.unwrap();
    cluster.wait_for_readiness(ServingStatus::Serving).await.unwrap();
    serve_one(&cluster).await.unwrap();
}

#[tokio::test]
async fn while_the_api_server_is_away_routing_goes_on_from_what_was_last_known() {
    outage(AWAY).await.unwrap();
}

#[tokio::test]
#[ignore = "takes a minute: cargo xtask soak --kubernetes"]
async fn while_the_api_server_is_away_for_long_routing_goes_on_from_what_was_last_known() {
    outage(LONG_AWAY).await.unwrap();
}

#[expect(clippy::print_stderr, reason = "the result of a soak is for whoever ran the command")]
async fn outage(duration: Duration) -> Result<()> {
    let mut cluster = Cluster::start(4).await?;
    let pods = [cluster.serve(1).await?, cluster.serve(2).await?];
    cluster.add_pod("a", 1);
    cluster.wait_for_readiness(ServingStatus::Serving).await?;
    cluster.wait_for_endpoints(1).await?;
    cluster.server.go_away();
    let clock = SystemClock::start();
    let mut served = 0;
    while clock.now() < Time::ZERO.saturating_add(duration) {
        serve_one(&cluster).await?;
        served += 1;
        assert_eq!(cluster.health("readiness").await?, ServingStatus::Serving);
        tokio::time::sleep(PAUSE).await;
    }
    cluster.add_pod("b", 2);
    cluster.server.delete(Resource::POD, "a");
    cluster.server.come_back().await?;
    let back = clock.now();
    sluice_testkit::eventually(crate::support::LIMIT, "the other pod serves", async || {
        serve_one(&cluster).await?;
        Ok((pods[1].visits().len() > 1).then_some(()))
    })
    .await?;
    let caught_up = clock.now().saturating_since(back);
    eprintln!(
        "{duration:?} without an API server: {served} requests served, none refused; up to date {caught_up:.1?} after it"
    );
    Ok(())
}

#[tokio::test]
async fn pods_can_be_chosen_by_their_labels_without_a_pool() {
    let (server, port) = (ApiServer::start().unwrap(), shared_port().unwrap());
    for kind in [Resource::POOL, Resource::OBJECTIVE, Resource::OLDER_OBJECTIVE] {
        server.set_installed(kind, false);
    }
    let ports = port.to_string();
    let arguments = ["--endpoint-selector", "app in (vllm,sglang)", "--endpoint-target-ports", &ports];
    let mut config = config(4);
    config["sluice"] = json!({});
    let cluster = Cluster::start_with(server, port, &config, &arguments).await.unwrap();
    let pods = [cluster.serve(1).await.unwrap()];
    cluster.add_pod("a", 1);
    cluster.wait_for_endpoints(1).await.unwrap();
    cluster.wait_for_readiness(ServingStatus::Serving).await.unwrap();
    serve_one(&cluster).await.unwrap();
    assert_eq!(pods[0].tags(), ["served"]);
    assert_eq!(cluster.server.requests().into_iter().collect::<Vec<_>>(), ["list /pods", "watch /pods"]);
}

#[tokio::test]
async fn pods_of_others_in_the_namespace_cost_nothing() {
    const OTHERS: u32 = 5_000;
    const OWN: u8 = 100;
    const MOST_MEMORY: u64 = 100 << 20;
    let (server, port) = (ApiServer::start().unwrap(), shared_port().unwrap());
    for number in 0..OTHERS {
        let mut other = pod(&format!("other-{number}"), "10.1.0.1", &json!({"app": "other"}));
        other["metadata"]["annotations"] = json!({"text": "x".repeat(2_000)});
        server.apply(Resource::POD, other);
    }
    for host in 1..=OWN {
        server.apply(Resource::POD, pod(&format!("own-{host}"), &address(host).to_string(), &labels()));
    }
    server.apply(Resource::POOL, pool(POOL, &labels(), &[port]));
    let cluster = Cluster::start_with(server, port, &config(1), &["--pool-name", POOL]).await.unwrap();
    cluster.wait_for_endpoints(OWN.into()).await.unwrap();
    cluster.wait_for_readiness(ServingStatus::Serving).await.unwrap();
    let peak = 1_024 * cluster.picker.process().peak_resident_kilobytes().unwrap();
    assert!(peak < MOST_MEMORY, "{peak}");
}
