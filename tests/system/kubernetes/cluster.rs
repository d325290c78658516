use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sluice_testkit::apiserver::{pod, pool};
use sluice_testkit::{
    ApiServer, CountingUpstream, Envoy, HOLD_HEADER, Picker, Protocol, Resource, TAG_HEADER, eventually, flow_config,
};
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::flow::support::{OBJECTIVE, envoy};
use crate::support::{CHAT, LIMIT, chat, picker, post};

pub(crate) const POOL: &str = "chat";

/// A picker that follows the pool [`POOL`] of an API server, and an Envoy that asks it.
pub(crate) struct Cluster {
    // Dropped in this order: the proxy first, so that it does not complain about its picker.
    pub(crate) envoy: Envoy,
    pub(crate) picker: Picker,
    pub(crate) server: ApiServer,
    /// Every pod listens on it, at an address of its own.
    pub(crate) port: u16,
    client: Client,
    _dir: TempDir,
}

impl Cluster {
    /// Flow control with `slots` per pod. The pool is there, without pods.
    pub(crate) async fn start(slots: u32) -> Result<Self> {
        let server = ApiServer::start()?;
        let port = shared_port()?;
        server.apply(Resource::POOL, pool(POOL, &labels(), &[port]));
        Self::start_with(server, port, &config(slots), &["--pool-name", POOL]).await
    }

    pub(crate) async fn start_with(server: ApiServer, port: u16, config: &Value, arguments: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("picker.json");
        std::fs::write(&path, config.to_string())?;
        let picker = Picker::start_in_cluster(program(), &path, &server.kubeconfig(), arguments).await?;
        let mut envoy = envoy()?;
        envoy.set_pickers(&[picker.ext_proc()])?;
        let envoy = Envoy::start(&envoy).await?;
        Ok(Self { envoy, picker, server, port, client: Protocol::Http2.client()?, _dir: dir })
    }

    /// A model server at 127.0.1.`host`, which is no pod yet.
    pub(crate) async fn serve(&self, host: u8) -> Result<CountingUpstream> {
        // A process that starts just now may hold an old listener for a moment, until it runs its own program.
        let start = async || Ok(CountingUpstream::start_at(SocketAddr::from((address(host), self.port))).ok());
        eventually(LIMIT, "the address is free", start).await
    }

    /// Makes the model server at 127.0.1.`host` a ready pod.
    pub(crate) fn add_pod(&self, name: &str, host: u8) {
        self.server.apply(Resource::POD, pod(name, &address(host).to_string(), &labels()));
    }

    /// A chat that a model server holds for so long.
    pub(crate) fn chat(&self, tag: &str, hold: Duration) -> RequestBuilder {
        let request = post(&self.client, &self.envoy.url(CHAT), &chat("hello", 1, false)).header(TAG_HEADER, tag);
        request.header(HOLD_HEADER, hold.as_millis().to_string())
    }

    pub(crate) fn chat_for(&self, objective: &str, hold: Duration) -> RequestBuilder {
        self.chat(objective, hold).header(OBJECTIVE, objective)
    }

    pub(crate) async fn flow(&self) -> Result<Value> {
        self.picker.flow().await
    }

    /// How many requests wait in each band, by priority.
    pub(crate) async fn waiting(&self) -> Result<Vec<(i64, u64)>> {
        let page = self.flow().await?;
        let bands = page["bands"].as_array().context("bands")?.iter();
        let counts = bands.map(|band| Some((band["priority"].as_i64()?, band["waiting"]["requests"].as_u64()?)));
        let counts: Vec<_> = counts.collect::<Option<_>>().context("a band without numbers")?;
        Ok(counts.into_iter().filter(|(_, waiting)| *waiting > 0).collect())
    }

    /// Waits until the picker has so many endpoints in the pool.
    pub(crate) async fn wait_for_endpoints(&self, count: usize) -> Result<()> {
        eventually(LIMIT, "the picker knows the pods", async || {
            let page = self.flow().await?;
            let endpoints = page["endpoints"].as_array().into_iter().flatten();
            Ok((endpoints.filter(|endpoint| endpoint["inPool"] == true).count() == count).then_some(()))
        })
        .await
    }

    /// Waits until the picker answers so for its readiness; it is alive all the while.
    pub(crate) async fn wait_for_readiness(&self, expected: ServingStatus) -> Result<()> {
        eventually(LIMIT, "the readiness", async || {
            ensure!(self.health("liveness").await? == ServingStatus::Serving, "not alive");
            Ok((self.health("readiness").await? == expected).then_some(()))
        })
        .await
    }

    pub(crate) async fn health(&self, service: &str) -> Result<ServingStatus> {
        health(&self.picker, service).await
    }
}

/// What `picker` says of the service on its health port.
pub(crate) async fn health(picker: &Picker, service: &str) -> Result<ServingStatus> {
    let endpoint = Endpoint::from_shared(format!("http://{}", picker.health()))?;
    let mut client = HealthClient::new(endpoint.connect().await?);
    Ok(client.check(HealthCheckRequest { service: service.to_owned() }).await?.into_inner().status())
}

fn program() -> &'static Path {
    picker()
}

/// Flow control without a file of endpoints.
pub(crate) fn config(slots: u32) -> Value {
    let mut config = flow_config(slots);
    config["plugins"]
        .as_array_mut()
        .into_iter()
        .for_each(|plugins| plugins.retain(|plugin| plugin["name"] != "endpoints"));
    config["dataLayer"] = json!({});
    config
}

/// Of the pods of the pool.
pub(crate) fn labels() -> Value {
    json!({"app": "vllm"})
}

pub(crate) fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, host)
}

/// A port that is free at every address of [`address`]: below those that the system hands out by itself.
pub(crate) fn shared_port() -> Result<u16> {
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let own = u16::try_from(std::process::id() % 97)? * 100;
    let mut candidates = (0..100).map(|_| 20_000 + own + NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 100);
    // On all addresses at once: nobody else can have it at one of them.
    candidates.find(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok()).context("no free port")
}
