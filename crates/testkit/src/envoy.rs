use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::envoy_config::EnvoyConfig;
use crate::envoy_install::envoy_binary;
use crate::exposition::Exposition;
use crate::process::Process;
use crate::{client, eventually, guardian};

const START_LIMIT: Duration = Duration::from_secs(60);

/// A running Envoy. Its ports are its own: it binds port 0 and tells.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    inference: SocketAddr,
    admin: SocketAddr,
    _dir: TempDir,
}

impl Envoy {
    /// Starts Envoy with one worker and waits until it serves. It may wait for its first health check of the picker,
    /// so start that before.
    pub async fn start(config: &EnvoyConfig) -> Result<Self> {
        Self::start_with_workers(config, 1).await
    }

    /// The same with `workers` worker threads.
    pub async fn start_with_workers(config: &EnvoyConfig, workers: u32) -> Result<Self> {
        let binary = envoy_binary()?;
        let dir = guardian::temporary_dir("envoy-")?;
        let mut config = config.clone();
        config.bind_anywhere()?;
        let config_path = dir.path().join("envoy.json");
        config.write(&config_path)?;
        let admin_path = dir.path().join("admin");

        let mut command = Command::new(binary);
        command.arg("--config-path").arg(&config_path);
        command.arg("--admin-address-path").arg(&admin_path);
        command.args(["--concurrency", &workers.to_string(), "--log-level", "warning"]);
        // The access log comes in batches of 10 s otherwise, too late for a test that fails.
        command.args(["--file-flush-interval-msec", "100"]);
        // Hot restart takes a number that is unique on the machine; nobody restarts here.
        command.arg("--disable-hot-restart");
        let mut process = Process::spawn("envoy", &command)?;

        let ready = wait_until_ready(&mut process, &admin_path).await;
        let (admin, inference) =
            ready.with_context(|| format!("Envoy did not start; its output:\n{}", process.output().tail()))?;
        Ok(Self { process, inference, admin, _dir: dir })
    }

    /// Runs `envoy --mode validate` on a file.
    pub fn validate(path: &Path) -> Result<()> {
        let mut command = Command::new(envoy_binary()?);
        command.args(["--mode", "validate", "--log-level", "warning", "--disable-hot-restart", "--config-path"]);
        let output = command.arg(path).output().context("starting Envoy")?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if !output.status.success() {
            bail!("Envoy refuses {}: {said}", path.display());
        }
        if said.contains("[warning]") {
            bail!("Envoy warns about {}: {said}", path.display());
        }
        Ok(())
    }

    /// Where clients send their requests.
    pub fn address(&self) -> SocketAddr {
        self.inference
    }

    /// The URL of `path` (which begins with a slash) for a client.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.inference)
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Envoy's own statistics.
    pub async fn stats(&self) -> Result<Exposition> {
        Exposition::scrape(&format!("http://{}/stats/prometheus", self.admin)).await
    }
}

async fn wait_until_ready(process: &mut Process, admin_path: &Path) -> Result<(SocketAddr, SocketAddr)> {
    let http = client::http1()?;
    eventually(START_LIMIT, "Envoy is ready", async || {
        if let Some(status) = process.exit_status()? {
            bail!("it ended: {status}");
        }
        let Ok(admin) = std::fs::read_to_string(admin_path).unwrap_or_default().trim().parse::<SocketAddr>() else {
            return Ok(None);
        };
        let get = async |path: &str| {
            let response = http.get(format!("http://{admin}{path}")).send().await.ok()?;
            response.error_for_status().ok()?.text().await.ok()
        };
        if get("/ready").await.is_none() {
            return Ok(None);
        }
        let listeners = get("/listeners?format=json").await.and_then(|text| serde_json::from_str(&text).ok());
        Ok(listeners.as_ref().and_then(inference_address).map(|inference| (admin, inference)))
    })
    .await
}

/// The bound address of the listener `inference` in the answer of `/listeners?format=json`.
fn inference_address(listeners: &Value) -> Option<SocketAddr> {
    let listener =
        listeners["listener_statuses"].as_array()?.iter().find(|listener| listener["name"] == "inference")?;
    let address = &listener["local_address"]["socket_address"];
    let port = u16::try_from(address["port_value"].as_u64()?).ok()?;
    Some(SocketAddr::new(address["address"].as_str()?.parse().ok()?, port))
}
