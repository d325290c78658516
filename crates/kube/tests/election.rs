//! An election among real clients of a server that is made for it, and somebody who writes leases as other programs do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock, Time};
use sluice_kube::{Kubernetes, Timings};
use sluice_testkit::{ApiServer, Resource, eventually};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

const LEASE: &str = "lease";
/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// A tenth of the usual ones but for what is said in whole seconds.
const TIMINGS: Timings = Timings {
    lease: Duration::from_secs(2),
    renew_deadline: Duration::from_millis(1_500),
    renew: Duration::from_millis(200),
    look: Duration::from_millis(100),
};

struct Running {
    leads: watch::Receiver<bool>,
    leave: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    #[expect(clippy::disallowed_methods, reason = "a test ends its tasks itself")]
    fn start(server: &ApiServer, identity: &str) -> Result<Self> {
        let kubernetes = Kubernetes::at(kube::Config::new(server.url().parse()?))?;
        let clock = Arc::new(SystemClock::start());
        let candidate = kubernetes.candidate("test", LEASE.into(), identity.into(), TIMINGS, clock);
        let (changed, leads) = watch::channel(false);
        let (leave, left) = oneshot::channel();
        let run = candidate.run(move |leads| _ = changed.send_replace(leads), async { left.await.unwrap_or(()) });
        Ok(Self { leads, leave: Some(leave), task: tokio::spawn(run) })
    }

    async fn wait(&mut self, leads: bool) -> Result<()> {
        let waited = tokio::time::timeout(LIMIT, self.leads.wait_for(|now| *now == leads)).await;
        waited.with_context(|| format!("waiting for leads={leads}"))??;
        Ok(())
    }

    fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    async fn leave(mut self) -> Result<()> {
        drop(self.leave.take());
        Ok(tokio::time::timeout(LIMIT, &mut self.task).await??)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn spec(server: &ApiServer) -> Result<Value> {
    Ok(server.object(Resource::LEASE, LEASE).context("there is no lease")?["spec"].take())
}

/// Writes into the lease as a program does that knows the present version.
async fn put(server: &ApiServer, holder: &str) -> Result<()> {
    let url = format!("{}/apis/coordination.k8s.io/v1/namespaces/test/leases/{LEASE}", server.url());
    let client = reqwest::Client::new();
    let mut lease: Value = client.get(&url).send().await?.error_for_status()?.json().await?;
    lease["spec"]["holderIdentity"] = holder.into();
    // By a clock that is wrong.
    lease["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z".into();
    client.put(&url).json(&lease).send().await?.error_for_status()?;
    Ok(())
}

#[tokio::test]
async fn one_of_several_leads_and_another_one_after_it_at_once() {
    let server = ApiServer::start().unwrap();
    let mut first = Running::start(&server, "first").unwrap();
    first.wait(true).await.unwrap();
    let mut others = [Running::start(&server, "second").unwrap(), Running::start(&server, "third").unwrap()];
    tokio::time::sleep(TIMINGS.lease).await;
    assert!(first.leads() && others.iter().all(|other| !other.leads()));
    let before = spec(&server).unwrap();
    assert_eq!((&before["holderIdentity"], &before["leaseDurationSeconds"]), (&json!("first"), &json!(2)));
    assert_eq!(before["leaseTransitions"], 0);

    first.leave().await.unwrap();
    eventually(LIMIT, "another leader", async || Ok(others.iter().any(Running::leads).then_some(()))).await.unwrap();
    assert_eq!(others.iter().filter(|other| other.leads()).count(), 1);
    assert_eq!(spec(&server).unwrap()["leaseTransitions"], 1);
    for other in &mut others {
        other.task.abort();
    }
}

#[tokio::test]
async fn what_is_given_up_is_written_as_others_expect_it() {
    let server = ApiServer::start().unwrap();
    let mut only = Running::start(&server, "only").unwrap();
    only.wait(true).await.unwrap();
    only.leave().await.unwrap();
    let spec = spec(&server).unwrap();
    assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&json!(""), &json!(1)));
    assert_eq!(
        server.requests().into_iter().collect::<Vec<_>>(),
        ["create coordination.k8s.io/leases", "get coordination.k8s.io/leases", "update coordination.k8s.io/leases"]
    );
}

#[tokio::test]
async fn a_dead_leader_is_followed_when_its_lease_has_expired() {
    let server = ApiServer::start().unwrap();
    let mut first = Running::start(&server, "first").unwrap();
    first.wait(true).await.unwrap();
    let mut second = Running::start(&server, "second").unwrap();
    let (clock, died) = (SystemClock::start(), Time::ZERO);
    drop(first);
    second.wait(true).await.unwrap();
    let waited = clock.now().saturating_since(died);
    assert!(waited >= TIMINGS.lease - TIMINGS.renew - TIMINGS.look, "{waited:?}");
}

#[tokio::test]
async fn a_holder_that_writes_by_itself_is_waited_for_and_lost_to() {
    let server = ApiServer::start().unwrap();
    let mut own = Running::start(&server, "own").unwrap();
    own.wait(true).await.unwrap();
    put(&server, "foreign").await.unwrap();
    own.wait(false).await.unwrap();
    assert_eq!(spec(&server).unwrap()["holderIdentity"], "foreign");
    own.wait(true).await.unwrap();
    let spec = spec(&server).unwrap();
    assert_eq!((&spec["holderIdentity"], &spec["leaseTransitions"]), (&json!("own"), &json!(1)));
}

/// Makes the lease as a program does that finds none, and waits for nobody.
async fn post(server: &ApiServer, holder: &str) -> Result<()> {
    let url = format!("{}/apis/coordination.k8s.io/v1/namespaces/test/leases", server.url());
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 2, "renewTime": "2001-01-01T00:00:00.000000Z"});
    let lease = json!({"metadata": {"name": LEASE}, "spec": spec});
    reqwest::Client::new().post(&url).json(&lease).send().await?.error_for_status()?;
    Ok(())
}

#[tokio::test]
async fn a_lease_that_is_deleted_stays_with_its_leader() {
    let server = ApiServer::start().unwrap();
    let mut first = Running::start(&server, "first").unwrap();
    first.wait(true).await.unwrap();
    let mut second = Running::start(&server, "second").unwrap();
    tokio::time::sleep(TIMINGS.look * 5).await;
    for _ in 0..3 {
        server.delete(Resource::LEASE, LEASE);
        eventually(LIMIT, "the lease", async || Ok(server.object(Resource::LEASE, LEASE))).await.unwrap();
        assert_eq!(spec(&server).unwrap()["holderIdentity"], "first");
        assert!(!second.leads());
        tokio::time::sleep(TIMINGS.lease).await;
    }
    assert!(!first.leads.has_changed().unwrap(), "it led all the while");
    drop(first);
    second.wait(true).await.unwrap();
}

#[tokio::test]
async fn a_lease_of_a_dead_leader_that_is_deleted_is_made_anew_when_it_would_have_expired() {
    let server = ApiServer::start().unwrap();
    let mut first = Running::start(&server, "first").unwrap();
    first.wait(true).await.unwrap();
    let mut second = Running::start(&server, "second").unwrap();
    tokio::time::sleep(TIMINGS.look * 5).await;
    drop(first);
    let clock = SystemClock::start();
    server.delete(Resource::LEASE, LEASE);
    second.wait(true).await.unwrap();
    let waited = clock.now().saturating_since(Time::ZERO);
    assert!(waited >= TIMINGS.lease, "{waited:?}");
}

#[tokio::test]
async fn a_deleted_lease_of_a_holder_that_writes_by_itself_is_left_to_it_or_to_whoever_makes_it_first() {
    let server = ApiServer::start().unwrap();
    let mut own = Running::start(&server, "own").unwrap();
    own.wait(true).await.unwrap();
    put(&server, "foreign").await.unwrap();
    own.wait(false).await.unwrap();
    server.delete(Resource::LEASE, LEASE);
    tokio::time::sleep(TIMINGS.lease / 2).await;
    assert!(!own.leads() && server.object(Resource::LEASE, LEASE).is_none());
    post(&server, "foreign").await.unwrap();
    tokio::time::sleep(TIMINGS.lease * 3 / 4).await;
    assert!(!own.leads());
    own.wait(true).await.unwrap();

    // The others do not wait, and nobody is faster.
    server.delete(Resource::LEASE, LEASE);
    if post(&server, "foreign").await.is_ok() {
        own.wait(false).await.unwrap();
        assert_eq!(spec(&server).unwrap()["holderIdentity"], "foreign");
    }
}

#[tokio::test]
async fn without_a_server_leadership_ends_by_itself_and_comes_back_with_it() {
    let mut server = ApiServer::start().unwrap();
    let mut own = Running::start(&server, "own").unwrap();
    own.wait(true).await.unwrap();
    server.go_away();
    own.wait(false).await.unwrap();
    server.come_back().await.unwrap();
    own.wait(true).await.unwrap();
    assert_eq!(spec(&server).unwrap()["leaseTransitions"], 0, "it was its own all along");
}

#[tokio::test]
async fn renewals_that_are_done_and_never_answered_do_not_count() {
    let server = ApiServer::start().unwrap();
    let mut own = Running::start(&server, "own").unwrap();
    own.wait(true).await.unwrap();
    server.set_mute(true);
    own.wait(false).await.unwrap();
    server.set_mute(false);
    own.wait(true).await.unwrap();
}

#[tokio::test]
async fn rights_that_are_missing_are_waited_for() {
    let server = ApiServer::start().unwrap();
    server.set_allowed(Resource::LEASE, false);
    let mut own = Running::start(&server, "own").unwrap();
    let asked = async || Ok(server.requests().contains("get coordination.k8s.io/leases").then_some(()));
    eventually(LIMIT, "the first request", asked).await.unwrap();
    assert!(!own.leads());
    server.set_allowed(Resource::LEASE, true);
    own.wait(true).await.unwrap();
}

#[tokio::test]
async fn whoever_leaves_without_having_led_leaves_the_lease_alone() {
    let server = ApiServer::start().unwrap();
    let mut first = Running::start(&server, "first").unwrap();
    first.wait(true).await.unwrap();
    let second = Running::start(&server, "second").unwrap();
    tokio::time::sleep(TIMINGS.look * 3).await;
    second.leave().await.unwrap();
    assert_eq!(spec(&server).unwrap()["holderIdentity"], "first");
    assert!(first.leads());
}
