use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::envoy::Envoy;
use crate::envoy_config::{EnvoyConfig, Template};
use crate::guardian;
use crate::picker::Picker;
use crate::picker_config::{EndpointsFile, PickerConfig};

const PICKER_CONFIG: &str = "picker.json";

/// A picker and an Envoy that asks it, over TLS unless configured otherwise.
///
/// ```text
/// client ──> envoy ──> server-0, server-1, ...
///              │ ext_proc
///           picker <── endpoints.yaml
/// ```
#[derive(Debug)]
pub struct Stack {
    // Dropped in this order: the proxy first, so that it does not complain about its picker.
    pub envoy: Envoy,
    pub picker: Picker,
    pub endpoints: EndpointsFile,
    dir: TempDir,
}

impl Stack {
    /// Starts the picker `program` with `config/standalone.yaml` and these model servers, and Envoy with `template`.
    pub async fn start(program: &Path, template: Template, servers: &[SocketAddr]) -> Result<Self> {
        let envoy = EnvoyConfig::from_template(template)?;
        Self::start_configured(program, &[], PickerConfig::standalone, envoy, servers).await
    }

    /// The same with further arguments for the picker, a configuration made for the endpoint file at a path, and
    /// another configuration of Envoy, whose pickers are set here.
    pub async fn start_configured(
        program: &Path,
        arguments: &[&str],
        picker_config: impl FnOnce(&Path) -> Result<PickerConfig>,
        mut envoy_config: EnvoyConfig,
        servers: &[SocketAddr],
    ) -> Result<Self> {
        let dir = guardian::temporary_dir("picker-")?;
        let endpoints = EndpointsFile::create(dir.path(), servers)?;
        let config = dir.path().join(PICKER_CONFIG);
        picker_config(endpoints.path())?.write(&config)?;
        let picker = Picker::start(program, &config, arguments).await?;

        envoy_config.set_pickers(&[picker.ext_proc()])?;
        let envoy = Envoy::start(&envoy_config).await?;
        Ok(Self { envoy, picker, endpoints, dir })
    }

    /// Replaces the picker's configuration file in one step by `text`, which may be anything.
    pub fn replace_picker_config(&self, text: &str) -> Result<()> {
        let (draft, path) = (self.dir.path().join("picker.draft"), self.dir.path().join(PICKER_CONFIG));
        fs::write(&draft, text)?;
        fs::rename(&draft, &path).with_context(|| format!("writing {}", path.display()))
    }

    /// The ends of the logs of both, for a test that has failed.
    pub fn logs(&self) -> String {
        let logs = [self.picker.process(), self.envoy.process()];
        logs.map(|process| format!("---- output of {} ----\n{}", process.name(), process.output().tail())).concat()
    }
}
