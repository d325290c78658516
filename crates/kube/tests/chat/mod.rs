//! The pool `chat` at a server that is made for it, and how to come to it.

use anyhow::Result;
use kube::Config;
use serde_json::json;
use sluice_kube::PoolId;
use sluice_testkit::apiserver::pool;
use sluice_testkit::{ApiServer, Resource};

const NAMESPACE: &str = "test";

/// With a pool of `app=vllm` on port 8000, and nothing else.
pub(crate) fn server() -> Result<ApiServer> {
    let server = ApiServer::start()?;
    server.apply(Resource::POOL, pool("chat", &json!({"app": "vllm"}), &[8000]));
    Ok(server)
}

pub(crate) fn config(server: &ApiServer) -> Result<Config> {
    let mut config = Config::new(server.url().parse()?);
    config.default_namespace = NAMESPACE.into();
    Ok(config)
}

pub(crate) fn id() -> PoolId {
    PoolId { namespace: NAMESPACE.into(), name: "chat".into(), group: "inference.networking.k8s.io".into() }
}
