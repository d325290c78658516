//! Programs of others that the commands need, each in one version.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sluice_testkit::workspace;

use crate::console::say;

/// A program from the crates registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

impl Tool {
    /// Where the program is: under `target/tools`, where it is installed the first time.
    pub(crate) fn program(self) -> Result<PathBuf> {
        let Self { name, version } = self;
        let place = workspace::target_dir()?.join("tools").join(format!("{name}-{version}"));
        let program = place.join("bin").join(name);
        if program.is_file() {
            return Ok(program);
        }
        say(format_args!("installing {name} {version} into {}, once", place.display()));
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(workspace::root()).stdin(Stdio::null());
        command.args(["install", "--locked", "--quiet", "--version", version, "--root"]).arg(&place).arg(name);
        let status = command.status().context("cargo does not start")?;
        if !status.success() {
            bail!("installing {name} {version} ended with {status}: it needs the crates registry");
        }
        Ok(program)
    }
}
