//! Several pickers of one pool, of which one is ready: who follows whom, how soon, and what becomes of requests.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock, Time};
use sluice_testkit::apiserver::pool;
use sluice_testkit::{ApiServer, Picker, Resource, eventually};
use tempfile::TempDir;
use tonic_health::pb::health_check_response::ServingStatus;

use super::cluster::{Cluster, POOL, config, health, labels, shared_port};
use crate::support::{LIMIT, picker};

const ELECT: &str = "--ha-enable-leader-election";
pub(super) const LEASE: &str = "epp-test-chat.llm-d.ai";
const GAUGE: &str = "llm_d_epp_leader";

/// Pickers that follow the pool [`POOL`] of one API server.
struct Replicas {
    server: ApiServer,
    dir: TempDir,
}

impl Replicas {
    fn new(config: &Value) -> Result<Self> {
        let server = ApiServer::start()?;
        server.apply(Resource::POOL, pool(POOL, &labels(), &[shared_port()?]));
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("picker.json"), config.to_string())?;
        Ok(Self { server, dir })
    }

    async fn start(&self, arguments: &[&str]) -> Result<Picker> {
        let arguments = [&["--pool-name", POOL, ELECT], arguments].concat();
        let config = self.dir.path().join("picker.json");
        Picker::start_in_cluster(picker(), &config, &self.server.kubeconfig(), &arguments).await
    }
}

async fn wait_for_readiness(picker: &Picker, expected: ServingStatus) -> Result<()> {
    eventually(LIMIT, "the readiness", async || Ok((health(picker, "readiness").await? == expected).then_some(())))
        .await
}

async fn leads(picker: &Picker) -> Result<bool> {
    let page = picker.metrics().await?;
    Ok(page.count(GAUGE, &[]).context(GAUGE)? == 1)
}

fn lease(server: &ApiServer) -> Result<Value> {
    Ok(server.object(Resource::LEASE, LEASE).context("there is no lease")?["spec"].take())
}

/// Writes into the lease what a holder does that knows nothing of the picker.
fn write_lease(server: &ApiServer, holder: &str, seconds: u32) {
    let mut lease = server.object(Resource::LEASE, LEASE).unwrap_or_else(|| json!({"metadata": {"name": LEASE}}));
    lease["spec"]["holderIdentity"] = holder.into();
    lease["spec"]["leaseDurationSeconds"] = seconds.into();
    // By a clock that is wrong.
    lease["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z".into();
    server.apply(Resource::LEASE, lease);
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_within_eighteen_seconds() {
    const FOLLOWED_WITHIN: Duration = Duration::from_secs(18);
    let replicas = Replicas::new(&config(4)).unwrap();
    let mut leader = replicas.start(&[]).await.unwrap();
    wait_for_readiness(&leader, ServingStatus::Serving).await.unwrap();
    let standby = replicas.start(&[]).await.unwrap();
    // Readiness and liveness as charts ask for them with several replicas; a standby is alive and waits.
    for (picker, expected) in [(&leader, ServingStatus::Serving), (&standby, ServingStatus::NotServing)] {
        for name in ["readiness", "", "envoy.service.ext_proc.v3.ExternalProcessor"] {
            assert_eq!(health(picker, name).await.unwrap(), expected, "{name:?}");
        }
        assert_eq!(health(picker, "liveness").await.unwrap(), ServingStatus::Serving);
        assert_eq!(health(picker, "inference-extension").await.unwrap(), ServingStatus::ServiceUnknown);
        assert_eq!(leads(picker).await.unwrap(), expected == ServingStatus::Serving);
    }
    let before = lease(&replicas.server).unwrap();

    leader.process_mut().kill().unwrap();
    let clock = SystemClock::start();
    wait_for_readiness(&standby, ServingStatus::Serving).await.unwrap();
    let gap = clock.now().saturating_since(Time::ZERO);
    println!("killed: ready again after {gap:?}");
    assert!(gap < FOLLOWED_WITHIN, "{gap:?}");
    assert!(leads(&standby).await.unwrap());
    let after = lease(&replicas.server).unwrap();
    assert_ne!(after["holderIdentity"], before["holderIdentity"]);
    assert_eq!((&after["leaseTransitions"], &after["leaseDurationSeconds"]), (&json!(1), &json!(15)));
}

#[tokio::test]
async fn a_leader_that_is_told_to_stop_is_followed_within_three_seconds() {
    const FOLLOWED_WITHIN: Duration = Duration::from_secs(3);
    let replicas = Replicas::new(&config(4)).unwrap();
    let mut leader = replicas.start(&["--drain-timeout", "4s"]).await.unwrap();
    wait_for_readiness(&leader, ServingStatus::Serving).await.unwrap();
    let standby = replicas.start(&[]).await.unwrap();
    wait_for_readiness(&standby, ServingStatus::NotServing).await.unwrap();

    let clock = SystemClock::start();
    let followed = async {
        wait_for_readiness(&standby, ServingStatus::Serving).await.unwrap();
        clock.now().saturating_since(Time::ZERO)
    };
    let (stopped, gap) = tokio::join!(leader.process_mut().terminate(LIMIT), followed);
    println!("told to stop: ready again after {gap:?}");
    assert!(gap < FOLLOWED_WITHIN, "{gap:?}");
    assert!(stopped.unwrap().success());
}

#[tokio::test]
async fn a_picker_that_stops_at_once_gives_the_lease_up_nevertheless_and_one_that_waits_leaves_it_alone() {
    let replicas = Replicas::new(&config(4)).unwrap();
    let mut leader = replicas.start(&["--drain-timeout", "0s"]).await.unwrap();
    wait_for_readiness(&leader, ServingStatus::Serving).await.unwrap();
    let holder = lease(&replicas.server).unwrap()["holderIdentity"].take();
    let mut standby = replicas.start(&["--drain-timeout", "0s"]).await.unwrap();
    assert!(standby.process_mut().terminate(LIMIT).await.unwrap().success());
    assert_eq!(lease(&replicas.server).unwrap()["holderIdentity"], holder);

    assert!(leader.process_mut().terminate(LIMIT).await.unwrap().success());
    let spec = lease(&replicas.server).unwrap();
    assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&json!(""), &json!(1)));
}

#[tokio::test]
async fn a_holder_of_another_kind_is_waited_for_and_lost_to_and_what_runs_goes_on() {
    let (server, port) = (ApiServer::start().unwrap(), shared_port().unwrap());
    server.apply(Resource::POOL, pool(POOL, &labels(), &[port]));
    write_lease(&server, "another-epp", 3);
    let cluster = Cluster::start_with(server, port, &config(4), &["--pool-name", POOL, ELECT]).await.unwrap();
    assert_eq!(cluster.health("readiness").await.unwrap(), ServingStatus::NotServing);
    let _pod = cluster.serve(1).await.unwrap();
    cluster.add_pod("a", 1);
    cluster.wait_for_endpoints(1).await.unwrap();
    assert_eq!(lease(&cluster.server).unwrap()["holderIdentity"], "another-epp", "not before it has expired");
    cluster.wait_for_readiness(ServingStatus::Serving).await.unwrap();
    assert_eq!(lease(&cluster.server).unwrap()["leaseTransitions"], 1);

    let running = cluster.chat("running", Duration::from_secs(6)).send();
    let lost = async {
        eventually(LIMIT, "the request runs", async || {
            let page = cluster.flow().await?;
            let endpoints = page["endpoints"].as_array().into_iter().flatten();
            Ok(endpoints.into_iter().any(|endpoint| endpoint["inFlight"]["requests"] == 1).then_some(()))
        })
        .await?;
        write_lease(&cluster.server, "another-epp", 3);
        cluster.wait_for_readiness(ServingStatus::NotServing).await?;
        // A request that comes nevertheless is served.
        cluster.chat("stray", Duration::from_millis(1)).send().await?.error_for_status()?;
        cluster.wait_for_readiness(ServingStatus::Serving).await
    };
    let (response, lost) = tokio::join!(running, lost);
    lost.unwrap();
    response.unwrap().error_for_status().unwrap();
}

#[tokio::test]
async fn a_leader_whose_api_server_is_away_is_not_ready_and_leads_again_when_it_is_back() {
    let mut replicas = Replicas::new(&config(4)).unwrap();
    let leader = replicas.start(&[]).await.unwrap();
    wait_for_readiness(&leader, ServingStatus::Serving).await.unwrap();
    replicas.server.go_away();
    wait_for_readiness(&leader, ServingStatus::NotServing).await.unwrap();
    assert_eq!(health(&leader, "liveness").await.unwrap(), ServingStatus::Serving);
    replicas.server.come_back().await.unwrap();
    wait_for_readiness(&leader, ServingStatus::Serving).await.unwrap();
}

#[tokio::test]
async fn standbys_that_are_not_to_be_populated_ask_for_the_lease_only() {
    let mut config = config(4);
    config["featureGates"] = json!(["flowControl", "haPopulateNonLeaderDatastore=false"]);
    let replicas = Replicas::new(&config).unwrap();
    write_lease(&replicas.server, "another-epp", 600);
    let standby = replicas.start(&[]).await.unwrap();
    let asks = async || Ok((!replicas.server.requests().is_empty()).then_some(()));
    eventually(LIMIT, "the standby asks for something", asks).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked: Vec<_> = replicas.server.requests().into_iter().collect();
    assert_eq!(asked, ["get coordination.k8s.io/leases"]);
    write_lease(&replicas.server, "", 1);
    wait_for_readiness(&standby, ServingStatus::Serving).await.unwrap();
    // It is ready with the list, before it watches.
    let watches = async || Ok(replicas.server.requests().contains("watch /pods").then_some(()));
    eventually(LIMIT, "the leader watches pods", watches).await.unwrap();
}
