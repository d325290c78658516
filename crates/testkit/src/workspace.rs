//! Where the workspace lies and where cargo puts what it builds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The directory of the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(crate_dir).to_owned()
}

/// Cargo's target directory and profile directory, told from where this program lies: `target/debug/deps/test-1` or
/// `target/debug/xtask`.
fn build_dirs() -> Result<(PathBuf, PathBuf)> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut profile_dir = program.parent();
    if let Some(dir) = profile_dir.filter(|dir| dir.ends_with("deps") || dir.ends_with("examples")) {
        profile_dir = dir.parent();
    }
    let profile_dir = profile_dir.context("this program lies in no build directory")?;
    let target_dir = profile_dir.parent().context("this program lies in no target directory")?;
    Ok((target_dir.to_owned(), profile_dir.to_owned()))
}

/// Cargo's target directory, where tools are kept between runs.
pub fn target_dir() -> Result<PathBuf> {
    build_dirs().map(|(target_dir, _)| target_dir)
}

/// Builds programs, each the binary of a package of the same name, with the profile of this program, and returns their
/// paths. Fast if nothing has changed. Compiler messages go to standard error.
pub fn build_programs<const N: usize>(packages: [&str; N]) -> Result<[PathBuf; N]> {
    build(packages, &["--quiet"])
}

/// The same with cargo's progress on standard error, for whoever sits in front of it.
pub fn build_programs_in_sight<const N: usize>(packages: [&str; N]) -> Result<[PathBuf; N]> {
    build(packages, &[])
}

fn build<const N: usize>(packages: [&str; N], options: &[&str]) -> Result<[PathBuf; N]> {
    let (target_dir, profile_dir) = build_dirs()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root()).args(["build", "--locked"]).args(options).arg("--target-dir").arg(&target_dir);
    for package in packages {
        command.args(["--package", package, "--bin", package]);
    }
    if profile_dir.ends_with("release") {
        command.arg("--release");
    }
    let status = command.stdin(Stdio::null()).status().context("starting cargo")?;
    let programs = packages.map(|package| profile_dir.join(package));
    if !status.success() {
        bail!("cargo could not build {}: {status}", packages.join(" and "));
    }
    match programs.iter().find(|program| !program.is_file()) {
        Some(missing) => bail!("cargo has built everything, but there is no {}", missing.display()),
        None => Ok(programs),
    }
}
