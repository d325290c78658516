use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use sluice_testkit::apiserver::pool;
use sluice_testkit::{ApiServer, Envoy, EnvoyConfig, Picker, Resource, Template, eventually};
use tempfile::TempDir;
use tonic_health::pb::health_check_response::ServingStatus;

use super::cluster::{POOL, health, labels, shared_port};
use crate::support::{LIMIT, picker};

/// The most pickers of a fleet, those that stop and those that start included.
const PLACES: u8 = 4;

/// Pickers of the pool [`POOL`] of one API server that come and go, at addresses that Envoy asks for their health, as it
/// finds them behind a headless Service.
pub(super) struct Fleet {
    pub(super) envoy: Envoy,
    pub(super) server: ApiServer,
    places: Vec<SocketAddr>,
    dir: TempDir,
}

impl Fleet {
    /// Nobody serves yet. The pods of the pool listen on `port`. Envoy is configured for two pickers.
    pub(super) async fn start(port: u16, config: &Value) -> Result<Self> {
        let server = ApiServer::start()?;
        server.apply(Resource::POOL, pool(POOL, &labels(), &[port]));
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("picker.json"), config.to_string())?;
        let ext_proc = shared_port()?;
        let place = |host: u8| SocketAddr::from((Ipv4Addr::new(127, 0, 2, host), ext_proc));
        let places: Vec<SocketAddr> = (1..=PLACES).map(place).collect();
        let envoy = start_envoy(EnvoyConfig::from_template(Template::Ha)?, &places).await?;
        Ok(Self { envoy, server, places, dir })
    }

    /// Another Envoy that asks the same pickers.
    pub(super) async fn start_envoy(&self, envoy: EnvoyConfig) -> Result<Envoy> {
        start_envoy(envoy, &self.places).await
    }

    /// A picker at one of the places, from 0 on, which nobody else has now.
    pub(super) async fn start_picker(&self, place: usize, arguments: &[&str]) -> Result<Picker> {
        let place = self.places.get(place).context("no such place")?;
        let (host, port) = (place.ip().to_string(), place.port().to_string());
        let own = ["--pool-name", POOL, "--listen-address", &host, "--grpc-port", &port];
        let config = self.dir.path().join("picker.json");
        Picker::start_in_cluster(picker(), &config, &self.server.kubeconfig(), &[&own, arguments].concat()).await
    }
}

/// Waits until Envoy would ask so many pickers.
pub(super) async fn wait_for_healthy(envoy: &Envoy, count: i64) -> Result<()> {
    eventually(LIMIT, "the health of the pickers", async || {
        let labels = [("envoy_cluster_name", "picker")];
        let healthy = envoy.stats().await?.count("envoy_cluster_membership_healthy", &labels);
        Ok((healthy == Some(count)).then_some(()))
    })
    .await
}

async fn start_envoy(mut envoy: EnvoyConfig, pickers: &[SocketAddr]) -> Result<Envoy> {
    envoy.set_pickers(pickers)?;
    Envoy::start(&envoy).await
}

/// Waits, for longer than a lease lasts, until a picker is ready or until it is not.
pub(super) async fn wait_for_readiness(picker: &Picker, expected: ServingStatus) -> Result<()> {
    let answers = async || Ok((health(picker, "readiness").await? == expected).then_some(()));
    eventually(LIMIT + Duration::from_secs(10), "the readiness", answers).await
}

/// Waits until a picker has so many endpoints in the pool.
pub(super) async fn wait_for_endpoints(picker: &Picker, count: usize) -> Result<()> {
    eventually(LIMIT, "the picker knows the pods", async || {
        let page = picker.flow().await?;
        let endpoints = page["endpoints"].as_array().into_iter().flatten();
        Ok((endpoints.filter(|endpoint| endpoint["inPool"] == true).count() == count).then_some(()))
    })
    .await
}
