//! A picker finds the API server as in a pod: by its environment and by the files of its service account, which change.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use sluice_testkit::apiserver::{pod, pool};
use sluice_testkit::{ApiServer, Picker, PrivateMount, Resource, eventually};
use tempfile::TempDir;
use tonic_health::pb::health_check_response::ServingStatus;

use super::cluster::{POOL, config, health, labels};
use super::leading::LEASE;
use crate::support::{LIMIT, picker};

/// A few renewals of a lease. A token that is kept for a minute lasts longer.
const A_FEW_RENEWALS: Duration = Duration::from_secs(8);

/// A picker in a pod.
struct InPod {
    picker: Picker,
    server: ApiServer,
    _dir: TempDir,
}

impl InPod {
    /// None, with the reason printed, where a test cannot put files where pods have them.
    #[expect(clippy::print_stdout, reason = "the reason is for whoever runs the test")]
    async fn start(server: ApiServer, arguments: &[&str]) -> Result<Option<Self>> {
        let Some(mount) = PrivateMount::find() else {
            println!("skipped: nobody may have mounts of their own here, so there is no place for a service account");
            return Ok(None);
        };
        server.apply(Resource::POOL, pool(POOL, &labels(), &[8000]));
        let dir = tempfile::tempdir()?;
        let config_file = dir.path().join("picker.json");
        std::fs::write(&config_file, config(1).to_string())?;
        let arguments = [&["--pool-name", POOL], arguments].concat();
        let picker = Picker::start_in_pod(picker(), &config_file, &server, mount, &arguments).await?;
        Ok(Some(Self { picker, server, _dir: dir }))
    }

    async fn wait_for_readiness(&self, expected: ServingStatus) -> Result<()> {
        let answers = async || Ok((health(&self.picker, "readiness").await? == expected).then_some(()));
        eventually(LIMIT, "the readiness", answers).await
    }

    async fn wait_for_endpoints(&self, count: usize, limit: Duration) -> Result<()> {
        eventually(limit, "the picker knows the pods", async || {
            let page = self.picker.flow().await?;
            Ok((page["endpoints"].as_array().map(Vec::len) == Some(count)).then_some(()))
        })
        .await
    }

    fn renewed(&self) -> Result<Value> {
        let lease = self.server.object(Resource::LEASE, LEASE).context("there is no lease")?;
        Ok(lease["spec"]["renewTime"].clone())
    }

    /// The lines of its log that say so.
    fn said(&self, what: &str) -> Vec<String> {
        let lines = self.picker.process().output().lines();
        lines.into_iter().filter(|line| line.contains(what)).collect()
    }
}

#[tokio::test]
async fn in_a_pod_a_picker_needs_its_service_account_only() {
    let server = ApiServer::start_for_pods().unwrap();
    let Some(in_pod) = InPod::start(server, &[]).await.unwrap() else { return };
    in_pod.wait_for_readiness(ServingStatus::Serving).await.unwrap();
    in_pod.server.apply(Resource::POD, pod("a", "127.0.0.1", &labels()));
    in_pod.wait_for_endpoints(1, LIMIT).await.unwrap();
    assert_eq!(in_pod.said("\"namespace\":\"test\"").len(), 1, "the namespace is that of the service account");
    assert!(!Path::new("/run/secrets/kubernetes.io/serviceaccount").exists(), "nobody else sees the files");
}

#[tokio::test]
async fn a_token_that_is_replaced_leaves_no_gap() {
    let server = ApiServer::start_for_pods().unwrap();
    let Some(in_pod) = InPod::start(server, &["--ha-enable-leader-election"]).await.unwrap() else { return };
    in_pod.wait_for_readiness(ServingStatus::Serving).await.unwrap();
    for (count, token) in [(1, "the-second-token"), (2, "the-third-token")] {
        in_pod.server.rotate_token(token).await.unwrap();
        // Whoever watches has to show the token again.
        in_pod.server.end_watches();
        in_pod.server.apply(Resource::POD, pod(token, &format!("127.0.0.{count}"), &labels()));
        in_pod.wait_for_endpoints(count, A_FEW_RENEWALS).await.unwrap();
        for _ in 0..2 {
            let before = in_pod.renewed().unwrap();
            let renewed = async || Ok((in_pod.renewed()? != before).then_some(()));
            eventually(A_FEW_RENEWALS, "the lease is renewed", renewed).await.unwrap();
            assert_eq!(health(&in_pod.picker, "readiness").await.unwrap(), ServingStatus::Serving);
        }
    }
    assert_eq!(in_pod.said("the API server is not heard"), [""; 0]);
    assert_eq!(in_pod.said("the API server refuses"), [""; 0]);
}

#[tokio::test]
async fn a_server_of_an_unknown_authority_is_named_as_such_and_asked_again() {
    let server = ApiServer::start_for_pods().unwrap();
    server.set_impostor(true).unwrap();
    let Some(in_pod) = InPod::start(server, &[]).await.unwrap() else { return };
    eventually(
        LIMIT,
        "it has been asked several times",
        async || Ok((in_pod.server.handshakes()? >= 12).then_some(())),
    )
    .await
    .unwrap();
    let said = in_pod.said("InferencePool");
    assert!(said.iter().any(|line| line.contains("invalid peer certificate: UnknownIssuer")), "{said:?}");
    assert_eq!(in_pod.said("UnknownIssuer").len(), 5, "once for each kind that is watched");
    assert_eq!(health(&in_pod.picker, "readiness").await.unwrap(), ServingStatus::NotServing);
    assert_eq!(health(&in_pod.picker, "liveness").await.unwrap(), ServingStatus::Serving);
    in_pod.server.set_impostor(false).unwrap();
    in_pod.wait_for_readiness(ServingStatus::Serving).await.unwrap();
}
