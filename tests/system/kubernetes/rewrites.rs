//! Rewrites in Kubernetes replace the models of the requests that come after.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sluice_testkit::apiserver::{pod, pool, rewrite};
use sluice_testkit::{RecordedRequest, RecordingUpstream, Reply, Resource, eventually};

use super::cluster::{Cluster, POOL, labels};
use crate::support::{CHAT, LIMIT, MODEL, chat, post};

/// Within which a change of a rewrite counts.
const SOON: Duration = Duration::from_secs(1);

/// The model that `server` is asked for when a client asks for [`MODEL`].
async fn asked_for(cluster: &Cluster, server: &RecordingUpstream) -> Result<String> {
    let request = post(&reqwest::Client::new(), &cluster.envoy.url(CHAT), &chat("hello", 1, false));
    request.send().await?.error_for_status()?;
    let requests = server.requests();
    let body = requests.last().and_then(RecordedRequest::body).context("no request came")?;
    let body: Value = serde_json::from_slice(body)?;
    Ok(body["model"].as_str().context("it names no model")?.to_owned())
}

#[tokio::test]
async fn a_change_of_a_rewrite_counts_for_new_requests_within_a_second() {
    let cluster = Cluster::start(8).await.unwrap();
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    cluster.server.apply(Resource::POOL, pool(POOL, &labels(), &[server.address().port()]));
    cluster.server.apply(Resource::POD, pod("a", "127.0.0.1", &labels()));
    cluster.wait_for_endpoints(1).await.unwrap();
    assert_eq!(asked_for(&cluster, &server).await.unwrap(), MODEL);

    let mut second = rewrite("second", POOL, MODEL, &[("b", 1)]);
    second["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:01Z");
    cluster.server.apply(Resource::REWRITE, second);
    tokio::time::sleep(SOON).await;
    assert_eq!(asked_for(&cluster, &server).await.unwrap(), "b");

    let mut first = rewrite("zero", POOL, MODEL, &[("a", 1)]);
    first["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    cluster.server.apply(Resource::OLDER_REWRITE, first);
    tokio::time::sleep(SOON).await;
    assert_eq!(asked_for(&cluster, &server).await.unwrap(), "a", "the older object counts");
    eventually(LIMIT, "the status of the younger one says so", async || {
        let object = cluster.server.object(Resource::REWRITE, "second").context("it is gone")?;
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let mut reasons = conditions.filter(|condition| condition["type"] == "Accepted");
        Ok(reasons.any(|condition| condition["reason"] == "Conflicted").then_some(()))
    })
    .await
    .unwrap();

    cluster.server.apply(Resource::REWRITE, rewrite("zero", "another-pool", MODEL, &[("c", 1)]));
    cluster.server.delete(Resource::OLDER_REWRITE, "zero");
    tokio::time::sleep(SOON).await;
    assert_eq!(asked_for(&cluster, &server).await.unwrap(), "b");
    cluster.server.delete(Resource::REWRITE, "second");
    tokio::time::sleep(SOON).await;
    assert_eq!(asked_for(&cluster, &server).await.unwrap(), MODEL);
}
