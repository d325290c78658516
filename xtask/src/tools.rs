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

/// A program from the Python package index, named like its package.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PythonTool {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
}

impl PythonTool {
    /// Where the program is: in a virtual environment of its own under `target/tools`, made the first time.
    pub(crate) fn program(self) -> Result<PathBuf> {
        let Self { package, version } = self;
        let place = workspace::target_dir()?.join("tools").join(format!("{package}-{version}"));
        let program = place.join("bin").join(package);
        if program.is_file() {
            return Ok(program);
        }
        say(format_args!("installing {package} {version} into {}, once", place.display()));
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))
            .context("making a virtual environment needs python3 with its module venv")?;
        let mut pip = Command::new(place.join("bin/python3"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &format!("{package}=={version}")]);
        succeed(&mut pip).with_context(|| format!("installing {package} {version} needs the Python package index"))?;
        if !program.is_file() {
            bail!("the package {package} {version} has no program {package}");
        }
        Ok(program)
    }
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}
