use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::document::Document;
use crate::workspace;

/// A picker's configuration: one of `config/` or a test's own, with another endpoint file.
#[derive(Clone, Debug)]
pub struct PickerConfig {
    document: Document,
}

impl PickerConfig {
    pub fn standalone(endpoints: &Path) -> Result<Self> {
        Self::example("standalone.yaml", endpoints)
    }

    /// A file of `config/`.
    pub fn example(name: &str, endpoints: &Path) -> Result<Self> {
        let path = workspace::root().join("config").join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Self::of(&path.display().to_string(), &text, endpoints)
    }

    /// `config` must declare a `file-discovery` plugin with a path, which is replaced.
    pub fn custom(config: &Value, endpoints: &Path) -> Result<Self> {
        Self::of("the configuration", &config.to_string(), endpoints)
    }

    fn of(origin: &str, text: &str, endpoints: &Path) -> Result<Self> {
        let mut document = Document::parse(origin, text)?;
        document
            .set("plugins/[type=file-discovery]/parameters/path", endpoints.to_str().context("a path in UTF-8")?)?;
        Ok(Self { document })
    }

    /// Replaces the value at a path of keys and of list entries chosen by a field, for example
    /// `plugins/[type=file-discovery]/parameters/path`. The place must exist.
    pub fn set(&mut self, path: &str, value: impl Into<Value>) -> Result<()> {
        self.document.set(path, value)
    }

    /// Adds the field `key` to the object at `path`, which must not have it yet.
    pub fn add(&mut self, path: &str, key: &str, value: impl Into<Value>) -> Result<()> {
        self.document.add(path, key, value)
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
        let entry = |(index, server): (usize, &SocketAddr)| Self::entry(&format!("server-{index}"), *server);
        self.replace_entries(&servers.iter().enumerate().map(entry).collect::<Vec<_>>())
    }

    /// An entry of the list, to which a test may add labels.
    pub fn entry(name: &str, server: SocketAddr) -> Value {
        json!({"name": name, "address": server.ip().to_string(), "port": server.port().to_string()})
    }

    /// Replaces the whole list by these entries.
    pub fn replace_entries(&self, endpoints: &[Value]) -> Result<()> {
        let draft = self.path.with_extension("draft");
        fs::write(&draft, json!({ "endpoints": endpoints }).to_string())?;
        fs::rename(&draft, &self.path).with_context(|| format!("writing {}", self.path.display()))
    }
}
