//! What the manifests grant is what the picker uses. That it uses nothing else, each test in Kubernetes shows: the API
//! server refuses what they do not grant.

use std::collections::BTreeSet;

use sluice_testkit::apiserver::{granted, objective, pool, rewrite};
use sluice_testkit::{ApiServer, Picker, Resource, client, eventually};

use super::cluster::{POOL, config, labels};
use crate::support::{LIMIT, picker};

#[tokio::test]
async fn a_picker_with_all_features_uses_every_right_that_the_manifests_grant() {
    let server = ApiServer::start().unwrap();
    server.apply(Resource::POOL, pool(POOL, &labels(), &[8000]));
    for resource in [Resource::OBJECTIVE, Resource::OLDER_OBJECTIVE] {
        server.apply(resource, objective(resource.group, POOL, 1));
    }
    for resource in [Resource::REWRITE, Resource::OLDER_REWRITE] {
        server.apply(resource, rewrite(resource.group, POOL, "m", &[("t", 1)]));
    }
    server.set_user("token", "prometheus");
    server.allow("prometheus", "get", "/metrics");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("picker.json");
    std::fs::write(&path, config(1).to_string()).unwrap();
    let arguments = ["--pool-name", POOL, "--metrics-endpoint-auth", "--ha-enable-leader-election"];
    let picker = Picker::start_in_cluster(picker(), &path, &server.kubeconfig(), &arguments).await.unwrap();
    let metrics = client::http1().unwrap().get(picker.page("/metrics")).bearer_auth("token").send().await.unwrap();
    metrics.error_for_status().unwrap();

    let granted = granted().unwrap();
    let unused = || granted.difference(&server.requests()).cloned().collect::<BTreeSet<_>>();
    let all_used = eventually(LIMIT, "every right is used", async || Ok(unused().is_empty().then_some(()))).await;
    assert!(all_used.is_ok(), "granted and not used: {:?}", unused());
}
