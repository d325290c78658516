//! Pods come and go under load.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use sluice_core::{Clock as _, SystemClock, Time};
use sluice_testkit::apiserver::pod;
use sluice_testkit::{CountingUpstream, Resource, eventually};
use tokio::task::JoinSet;

use super::cluster::{Cluster, address, labels};
use crate::support::LIMIT;

const PODS: u8 = 50;
const CLIENTS: usize = 16;
const HOLD: Duration = Duration::from_millis(50);
/// Between two pods that begin to terminate.
const STEP: Duration = Duration::from_millis(100);
/// After which a pod that terminates gets no new request.
const GRACE: Duration = Duration::from_secs(1);
/// How long pods come and go.
const DURATION: Duration = Duration::from_secs(30);
/// The same for a soak.
const LONG: Duration = Duration::from_secs(300);

/// A pod that has begun to terminate.
struct Leaving {
    host: u8,
    server: CountingUpstream,
    /// Steps until it ends.
    steps: u32,
}

#[tokio::test]
async fn pods_that_come_and_go_get_no_request_that_is_not_theirs_and_leave_nothing_behind() {
    churn(DURATION).await.unwrap();
}

#[tokio::test]
#[ignore = "takes five minutes: cargo xtask soak --kubernetes"]
async fn pods_that_come_and_go_for_long_get_no_request_that_is_not_theirs_and_leave_nothing_behind() {
    churn(LONG).await.unwrap();
}

#[expect(clippy::print_stderr, reason = "the result of a soak is for whoever ran the command")]
async fn churn(duration: Duration) -> Result<()> {
    let cluster = Arc::new(Cluster::start(4).await?);
    let mut serving: VecDeque<(u8, CountingUpstream)> = VecDeque::new();
    for host in 1..=PODS {
        serving.push_back((host, cluster.serve(host).await?));
        cluster.add_pod(&format!("pod-{host}"), host);
    }
    cluster.wait_for_endpoints(usize::from(PODS)).await?;
    let (done, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (cluster, done, served) = (Arc::clone(&cluster), Arc::clone(&done), Arc::clone(&served));
        clients.spawn(async move {
            let mut refused = Vec::new();
            while !done.load(Ordering::Relaxed) {
                match cluster.chat("load", HOLD).send().await {
                    Ok(response) if response.status() == 200 => drop(served.fetch_add(1, Ordering::Relaxed)),
                    other => refused.push(format!("{other:?}")),
                }
            }
            refused
        });
    }

    let steps_of_grace = u32::try_from(GRACE.as_millis() / STEP.as_millis())?;
    let mut leaving: VecDeque<Leaving> = VecDeque::new();
    let (mut late, mut replaced) = (0, 0);
    let clock = SystemClock::start();
    while clock.now() < Time::ZERO.saturating_add(duration) {
        if let Some((host, server)) = serving.pop_front() {
            let mut terminating = pod(&format!("pod-{host}"), &address(host).to_string(), &labels());
            terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            cluster.server.apply(Resource::POD, terminating);
            // It goes on for a while, as pods do, and is then watched for as long again.
            leaving.push_back(Leaving { host, server, steps: 2 * steps_of_grace });
        }
        tokio::time::sleep(STEP).await;
        for pod in &mut leaving {
            pod.steps -= 1;
            if pod.steps == steps_of_grace {
                cluster.server.delete(Resource::POD, &format!("pod-{}", pod.host));
            }
        }
        while let Some(Leaving { host, server, .. }) = leaving.pop_front_if(|pod| pod.steps == 0) {
            let now = server.now();
            late += server.visits().iter().filter(|visit| now.saturating_since(visit.began) < GRACE).count();
            drop(server);
            // Another pod, with another uid, at the same address.
            serving.push_back((host, cluster.serve(host).await?));
            cluster.add_pod(&format!("pod-{host}"), host);
            replaced += 1;
        }
    }
    done.store(true, Ordering::Relaxed);
    let refused: Vec<String> = clients.join_all().await.concat();
    assert_eq!(refused, [""; 0]);
    assert_eq!(late, 0, "requests that went to pods long after they had begun to terminate");
    let served = served.load(Ordering::Relaxed);
    assert!(replaced >= 10 && served >= 100, "{replaced} pods, {served} requests");
    eventually(LIMIT, "nothing is booked any more", async || {
        let page = cluster.flow().await?;
        let leases = &page["leases"];
        Ok((leases["started"] == 0 && leases["granted"] == 0 && page["waiting"]["requests"] == 0).then_some(()))
    })
    .await?;
    eprintln!(
        "{duration:?}: {replaced} pods replaced, {served} requests served, none refused, none late, nothing left booked"
    );
    Ok(())
}
