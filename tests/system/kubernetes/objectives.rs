//! Objectives in Kubernetes give their priority to the requests that come after.

use std::time::Duration;

use sluice_testkit::apiserver::objective;
use sluice_testkit::{Resource, eventually};

use super::cluster::{Cluster, POOL};
use crate::support::LIMIT;

/// Within which a change of an objective counts.
const SOON: Duration = Duration::from_secs(1);
/// As long as a test takes.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_change_of_an_objective_counts_for_new_requests_within_a_second() {
    let cluster = Cluster::start(1).await.unwrap();
    let _pod = cluster.serve(1).await.unwrap();
    cluster.add_pod("a", 1);
    cluster.wait_for_endpoints(1).await.unwrap();
    let mut sent = tokio::task::JoinSet::new();
    let mut send = |request: reqwest::RequestBuilder| drop(sent.spawn(async move { drop(request.send().await) }));
    send(cluster.chat("running", LONG));
    eventually(
        LIMIT,
        "the slot is taken",
        async || Ok((cluster.flow().await?["leases"]["started"] == 1).then_some(())),
    )
    .await
    .unwrap();

    let mut expected = Vec::new();
    for priority in [500, -7, 3] {
        cluster.server.apply(Resource::OBJECTIVE, objective("urgent", POOL, priority));
        tokio::time::sleep(SOON).await;
        send(cluster.chat_for("urgent", LONG));
        expected.push((i64::from(priority), 1));
        expected.sort_unstable();
        eventually(LIMIT, "it waits in the band of its objective", async || {
            let mut waiting = cluster.waiting().await?;
            waiting.sort_unstable();
            Ok((waiting == expected).then_some(()))
        })
        .await
        .unwrap();
    }
    cluster.server.delete(Resource::OBJECTIVE, "urgent");
    tokio::time::sleep(SOON).await;
    send(cluster.chat_for("urgent", LONG));
    eventually(LIMIT, "without its objective it has no priority", async || {
        Ok(cluster.waiting().await?.contains(&(0, 1)).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_objective_in_kubernetes_counts_before_one_of_the_configuration() {
    let cluster = Cluster::start(1).await.unwrap();
    // The pool is empty: everything waits.
    cluster.server.apply(Resource::OBJECTIVE, objective("batch", POOL, 40));
    let told = "the objective is in sluice.objectives and in Kubernetes";
    eventually(LIMIT, "the log tells", async || {
        Ok(cluster.picker.process().output().tail().contains(told).then_some(()))
    })
    .await
    .unwrap();
    let mut sent = tokio::task::JoinSet::new();
    for name in ["batch", "interactive"] {
        let request = cluster.chat_for(name, LONG);
        sent.spawn(async move { drop(request.send().await) });
    }
    eventually(LIMIT, "each waits in its band", async || {
        let mut waiting = cluster.waiting().await?;
        waiting.sort_unstable();
        Ok((waiting == [(40, 1), (100, 1)]).then_some(()))
    })
    .await
    .unwrap();
}
