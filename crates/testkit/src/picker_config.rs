use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::document::Document;
use crate::workspace;

/// The picker's configuration `config/standalone.yaml` with another endpoint file.
#[derive(Clone, Debug)]
pub struct PickerConfig {
    document: Document,
}

impl PickerConfig {
    pub fn standalone(endpoints: &Path) -> Result<Self> {
        let path = workspace::root().join("config/standalone.yaml");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut document = Document::parse(&path.display().to_string(), &text)?;
        document
            .set("plugins/[type=file-discovery]/parameters/path", endpoints.to_str().context("a path in UTF-8")?)?;
        Ok(Self { document })
    }

    /// Replaces the value at a path of keys and of list entries chosen by a field, for example
    /// `plugins/[type=file-discovery]/parameters/path`. The place must exist.
    pub fn set(&mut self, path: &str, value: impl Into<Value>) -> Result<()> {
        self.document.set(path, value)
    }

    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.document.write(path)
    }
}

/// The file that lists the endpoints of the pool.
#[derive(Clone, Debug)]
pub struct EndpointsFile {
    path: PathBuf,
}

impl EndpointsFile {
    /// Writes the file `endpoints.yaml` in `dir`.
    pub fn create(dir: &Path, servers: &[SocketAddr]) -> Result<Self> {
        let file = Self { path: dir.join("endpoints.yaml") };
        file.replace(servers)?;
        Ok(file)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the whole list in one step, so that a reader sees the old or the new one. Endpoints are called
    /// `server-0`, `server-1` and so on.
    pub fn replace(&self, servers: &[SocketAddr]) -> Result<()> {
        let endpoints: Vec<Value> = servers
            .iter()
            .enumerate()
            .map(|(index, server)| {
                json!({
                    "name": format!("server-{index}"),
                    "address": server.ip().to_string(),
                    "port": server.port().to_string(),
                })
            })
            .collect();
        let draft = self.path.with_extension("draft");
        fs::write(&draft, json!({ "endpoints": endpoints }).to_string())?;
        fs::rename(&draft, &self.path).with_context(|| format!("writing {}", self.path.display()))
    }
}
