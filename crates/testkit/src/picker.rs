use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::address::reachable;
use crate::apiserver::ApiServer;
use crate::client;
use crate::exposition::Exposition;
use crate::private_mount::PrivateMount;
use crate::process::Process;

/// Whether the metrics port asks for tokens.
const AUTH_FLAG: &str = "--metrics-endpoint-auth";
const START_LIMIT: Duration = Duration::from_secs(20);

/// A running `epp`.
#[derive(Debug)]
pub struct Picker {
    process: Process,
    addresses: Addresses,
}

/// Where it listens, as told in its log line `serving`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Addresses {
    ext_proc: SocketAddr,
    health: SocketAddr,
    metrics: SocketAddr,
}

impl Picker {
    /// Starts `program` with a configuration file and further `arguments`, on ports of its own unless they name one, and
    /// waits until it serves.
    pub async fn start(program: &Path, config: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("--config-file").arg(config);
        command.args(["--pool-name", "test-pool", "--pool-namespace", "test"]);
        command.args(arguments);
        Self::start_command(command).await
    }

    /// The same with the API server that `kubeconfig` names, where `arguments` name the pool. Everybody may read its metrics
    /// port unless they name the flag `--metrics-endpoint-auth`.
    pub async fn start_in_cluster(
        program: &Path,
        config: &Path,
        kubeconfig: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(in_cluster(config, arguments));
        command.env("KUBECONFIG", kubeconfig).env_remove("NAMESPACE").env_remove("POD_NAME");
        Self::start_command(command).await
    }

    /// The same as the process of a pod, which finds the API server by its environment and its service account.
    pub async fn start_in_pod(
        program: &Path,
        config: &Path,
        server: &ApiServer,
        mount: PrivateMount,
        arguments: &[&str],
    ) -> Result<Self> {
        let account = server.service_account()?;
        let mut command = mount.command(account, program.as_os_str());
        command.args(in_cluster(config, arguments));
        for other in ["KUBECONFIG", "NAMESPACE", "POD_NAME"] {
            command.env_remove(other);
        }
        // Without the kubeconfig of whoever runs the tests.
        command.env("HOME", account);
        command.env("KUBERNETES_SERVICE_HOST", server.address().ip().to_string());
        command.env("KUBERNETES_SERVICE_PORT", server.address().port().to_string());
        Self::start_command(command).await
    }

    async fn start_command(mut command: Command) -> Result<Self> {
        for port in ["--grpc-port", "--grpc-health-port", "--metrics-port"] {
            if command.get_args().all(|argument| argument != port) {
                command.args([port, "0"]);
            }
        }
        let process = Process::spawn("epp", &command)?;
        let addresses = process.find_in_output(START_LIMIT, Addresses::in_log_line).await?;
        Ok(Self { process, addresses })
    }

    /// The port that Envoy asks.
    pub fn ext_proc(&self) -> SocketAddr {
        self.addresses.ext_proc
    }

    /// The port of the gRPC health service.
    pub fn health(&self) -> SocketAddr {
        self.addresses.health
    }

    /// The URL of a page on the metrics port.
    pub fn page(&self, path: &str) -> String {
        format!("http://{}{path}", self.addresses.metrics)
    }

    pub async fn metrics(&self) -> Result<Exposition> {
        Exposition::scrape(&self.page("/metrics")).await
    }

    /// The page `/debug/flow`: the state of flow control.
    pub async fn flow(&self) -> Result<Value> {
        Ok(client::http1()?.get(self.page("/debug/flow")).send().await?.error_for_status()?.json().await?)
    }

    /// The page `/debug/config`: the configuration in force.
    pub async fn configuration(&self) -> Result<Value> {
        Ok(client::http1()?.get(self.page("/debug/config")).send().await?.error_for_status()?.json().await?)
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The arguments of a picker that asks an API server.
fn in_cluster(config: &Path, arguments: &[&str]) -> Vec<OsString> {
    let mut all = vec!["--config-file".into(), config.into()];
    all.extend(arguments.iter().map(OsString::from));
    if !arguments.iter().any(|argument| argument.starts_with(AUTH_FLAG)) {
        all.push(format!("{AUTH_FLAG}=false").into());
    }
    all
}

impl Addresses {
    fn in_log_line(line: &str) -> Option<Self> {
        let entry: Value = serde_json::from_str(line).ok()?;
        let fields = entry.get("fields").unwrap_or(&entry);
        if fields.get("message")? != "serving" {
            return None;
        }
        let address = |field: &str| Some(reachable(fields.get(field)?.as_str()?.parse().ok()?));
        Some(Self { ext_proc: address("ext_proc")?, health: address("health")?, metrics: address("metrics")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_addresses_and_makes_them_reachable() {
        let line = r#"{"level":"INFO","fields":{"message":"serving","ext_proc":"0.0.0.0:1","health":"127.0.0.1:2","metrics":"[::]:3"}}"#;
        let expected = Addresses {
            ext_proc: "127.0.0.1:1".parse().unwrap(),
            health: "127.0.0.1:2".parse().unwrap(),
            metrics: "127.0.0.1:3".parse().unwrap(),
        };
        assert_eq!(Addresses::in_log_line(line), Some(expected));
    }

    #[test]
    fn other_lines_are_not_an_announcement() {
        for line in
            ["serving", r#"{"message":"serving"}"#, r#"{"fields":{"message":"starting","ext_proc":"0.0.0.0:1"}}"#]
        {
            assert_eq!(Addresses::in_log_line(line), None, "{line}");
        }
    }
}
