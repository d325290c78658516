use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::exposition::Exposition;
use crate::process::Process;

const START_LIMIT: Duration = Duration::from_secs(20);

/// A running `model-server-sim`.
#[derive(Debug)]
pub struct Simulator {
    process: Process,
    address: SocketAddr,
}

impl Simulator {
    /// Starts `program` on a port of its own with further `arguments`.
    pub async fn start(program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["--port", "0"]).args(arguments);
        let process = Process::spawn("model-server-sim", &command)?;
        let address =
            process.find_in_output(START_LIMIT, |line| line.strip_prefix("listening on ")?.trim().parse().ok()).await?;
        Ok(Self { process, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    pub async fn metrics(&self) -> Result<Exposition> {
        Exposition::scrape(&format!("http://{}/metrics", self.address)).await
    }
}
