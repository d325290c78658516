//! Who may read the metrics port of a picker in Kubernetes.

use std::time::Duration;

use anyhow::Result;
use reqwest::{Client, Response, StatusCode};
use sluice_testkit::apiserver::{ReviewCounts, pool};
use sluice_testkit::{ApiServer, Picker, Resource, client};
use tempfile::TempDir;

use super::cluster::{POOL, config, labels};
use crate::support::picker;

/// It must not stand anywhere in the log.
const TOKEN: &str = "header.payload.a-signature-that-is-secret";

/// A picker as the manifests start it, which asks an API server, and a client of its metrics port.
struct Guarded {
    picker: Picker,
    server: ApiServer,
    client: Client,
    _dir: TempDir,
}

impl Guarded {
    async fn start(arguments: &[&str]) -> Result<Self> {
        let server = ApiServer::start()?;
        server.apply(Resource::POOL, pool(POOL, &labels(), &[8000]));
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("picker.json");
        std::fs::write(&path, config(1).to_string())?;
        let arguments = [&["--pool-name", POOL], arguments].concat();
        let picker = Picker::start_in_cluster(picker(), &path, &server.kubeconfig(), &arguments).await?;
        Ok(Self { picker, server, client: client::http1()?, _dir: dir })
    }

    async fn get(&self, path: &str, token: Option<&str>) -> Result<Response> {
        // A connection that is kept may end just as it is used again.
        let mut request = self.client.get(self.picker.page(path)).header("connection", "close");
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        Ok(request.send().await?)
    }

    async fn status(&self, path: &str, token: Option<&str>) -> Result<StatusCode> {
        Ok(self.get(path, token).await?.status())
    }
}

#[tokio::test]
async fn by_default_pages_are_for_those_whom_the_api_server_lets_get_them() {
    // An empty value counts as not given.
    let guarded = Guarded::start(&["--metrics-endpoint-auth=", "-v", "5"]).await.unwrap();
    guarded.server.set_user(TOKEN, "system:serviceaccount:monitoring:prometheus");
    guarded.server.allow("system:serviceaccount:monitoring:prometheus", "get", "/metrics");
    for path in ["/metrics", "/debug/flow", "/debug/config"] {
        assert_eq!(guarded.status(path, None).await.unwrap(), StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(guarded.status(path, Some("another")).await.unwrap(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let page = guarded.get("/metrics", Some(TOKEN)).await.unwrap();
    assert_eq!(page.status(), StatusCode::OK);
    assert!(page.text().await.unwrap().contains("llm_d_epp_"));
    for path in ["/debug/flow", "/debug/config"] {
        assert_eq!(guarded.status(path, Some(TOKEN)).await.unwrap(), StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(guarded.status("/elsewhere", Some(TOKEN)).await.unwrap(), StatusCode::NOT_FOUND);
    guarded.server.fail_reviews(Some(503));
    assert_eq!(guarded.status("/metrics", Some("a-third")).await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(guarded.status("/metrics", Some(TOKEN)).await.unwrap(), StatusCode::OK, "the answer is still fresh");
    let log = guarded.picker.process().output().lines().join("\n");
    assert!(log.contains("cannot tell who may read the metrics port"), "{log}");
    assert!(!log.contains(TOKEN), "{log}");
}

#[tokio::test]
async fn a_token_that_is_revoked_opens_nothing_ten_seconds_later() {
    let guarded = Guarded::start(&["--metrics-endpoint-auth=true"]).await.unwrap();
    guarded.server.set_user(TOKEN, "prometheus");
    guarded.server.allow("prometheus", "get", "/metrics");
    assert_eq!(guarded.status("/metrics", Some(TOKEN)).await.unwrap(), StatusCode::OK);
    guarded.server.revoke_token(TOKEN);
    assert_eq!(guarded.status("/metrics", Some(TOKEN)).await.unwrap(), StatusCode::OK);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(guarded.status("/metrics", Some(TOKEN)).await.unwrap(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_picker_that_is_told_so_lets_everybody_read_and_asks_nobody() {
    let guarded = Guarded::start(&["--metrics-endpoint-auth=false"]).await.unwrap();
    for path in ["/metrics", "/debug/flow", "/debug/config"] {
        assert_eq!(guarded.status(path, None).await.unwrap(), StatusCode::OK, "{path}");
    }
    assert_eq!(guarded.server.review_counts(), ReviewCounts::default());
}
