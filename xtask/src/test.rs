//! `cargo xtask test`: everything that a change must hold, with a summary at the end.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use sluice_core::{Clock, SystemClock};
use sluice_testkit::workspace;

use crate::console::say;
use crate::tools::Tool;
use crate::{deploy, fuzz, structure};

const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

/// A check of the workspace at a path; returns what it has found to be right.
type Step = fn(&Path) -> Result<String>;

/// The steps in the order of how fast they fail.
const STEPS: [(&str, Step); 8] = [
    ("format", check_format),
    ("structure", check_structure),
    ("lints", check_lints),
    ("licences", check_dependencies),
    ("deploy", deploy::check),
    ("engine", run_engine),
    ("session", run_session),
    ("tests", run_tests),
];

/// Takes longer than all others where its dependencies have not been built yet.
const LOOM: (&str, Step) = ("loom", run_loom);

/// Random operations of the admission engine that every change has to survive: the same ones each time, so that a change
/// is blamed for what it breaks, and others each time, so that many runs see more than one.
const ENGINE_OPERATIONS: u64 = 1_000_000;
const FRESH_OPERATIONS: u64 = 250_000;
const SEED: u64 = 20_260;

/// Rounds of streams on which anything comes: about half a minute.
const SESSION_ROUNDS: u64 = 2_000;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Also try every interleaving of the calls into admission that can meet (builds its dependencies a second time)
    #[arg(long)]
    loom: bool,
}

/// Runs every step, also after one has failed, so that one run shows all there is to repair.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let root = workspace::root();
    let clock = SystemClock::start();
    let mut outcomes = Vec::new();
    let steps = STEPS.into_iter().chain(arguments.loom.then_some(LOOM));
    for (name, step) in steps {
        say(format_args!("\n==== {name}"));
        let started = clock.now();
        let result = step(&root);
        if let Err(error) = &result {
            say(format_args!("{name} failed: {error:#}"));
        }
        outcomes.push((name, result, clock.now().saturating_since(started)));
    }

    say(format_args!("\n==== summary"));
    for (name, result, took) in &outcomes {
        say(format_args!("{}", SummaryLine { name, result, took: *took }));
    }
    let failed: Vec<&str> = outcomes.iter().filter(|(_, result, _)| result.is_err()).map(|(name, ..)| *name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} of {} steps failed: {}", failed.len(), outcomes.len(), failed.join(", "))
}

struct SummaryLine<'a> {
    name: &'a str,
    result: &'a Result<String>,
    took: Duration,
}

impl fmt::Display for SummaryLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, detail) = match self.result {
            Ok(detail) => ("ok", detail.clone()),
            Err(error) => ("FAILED", error.to_string()),
        };
        write!(f, "{:<10} {verdict:<7} {:>6.1} s  {detail}", self.name, self.took.as_secs_f64())
    }
}

fn check_format(root: &Path) -> Result<String> {
    let mut command = cargo(root);
    command.args(["fmt", "--all", "--", "--check"]);
    succeed(&mut command, "run `cargo fmt --all`")?;
    Ok("rustfmt has nothing to change".to_owned())
}

fn check_structure(root: &Path) -> Result<String> {
    let findings = structure::findings(root)?;
    for finding in &findings {
        say(format_args!("{finding}"));
    }
    if !findings.is_empty() {
        bail!("{} rules are broken, see above", findings.len());
    }
    Ok("directions of crates, sizes of files".to_owned())
}

fn check_lints(root: &Path) -> Result<String> {
    let mut command = cargo(root);
    command.args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    succeed(&mut command, "see the warnings above")?;
    Ok("no warning from clippy".to_owned())
}

fn check_dependencies(root: &Path) -> Result<String> {
    let mut command = Command::new(cargo_deny()?);
    command.current_dir(root).args(["--locked", "check", "bans", "licenses", "sources"]);
    succeed(&mut command, "see deny.toml")?;
    Ok("bans, licences and sources of dependencies".to_owned())
}

/// cargo-deny from the PATH, in whatever version, else the pinned one.
fn cargo_deny() -> Result<PathBuf> {
    let probe = Command::new("cargo-deny").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if probe.is_ok_and(|status| status.success()) { Ok("cargo-deny".into()) } else { CARGO_DENY.program() }
}

fn run_engine(_root: &Path) -> Result<String> {
    fuzz::flow(ENGINE_OPERATIONS, SEED)?;
    let fresh = RandomState::new().hash_one(SEED) >> 32;
    say(format_args!("a fresh seed: cargo xtask fuzz flow --ops {FRESH_OPERATIONS} --seed {fresh}"));
    fuzz::flow(FRESH_OPERATIONS, fresh)?;
    let operations = ENGINE_OPERATIONS + FRESH_OPERATIONS;
    Ok(format!("{operations} random operations agree with the oracle and keep the invariants"))
}

fn run_session(_root: &Path) -> Result<String> {
    fuzz::session(SESSION_ROUNDS, SEED)?;
    Ok(format!("{SESSION_ROUNDS} rounds of streams with arbitrary messages leave nothing behind"))
}

fn run_tests(root: &Path) -> Result<String> {
    let mut command = cargo(root);
    command.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    Ok(tally(&mut command)?.to_string())
}

/// In a target directory of its own, because everything is built with other flags.
fn run_loom(root: &Path) -> Result<String> {
    let mut command = cargo(root);
    command.args(["test", "--locked", "--package", "sluice-router", "--lib", "loom_tests", "--target-dir"]);
    command.arg(workspace::target_dir()?.join("loom")).env("RUSTFLAGS", "--cfg loom");
    let tally = tally(&mut command)?;
    if tally.passed == 0 {
        bail!("no test was found");
    }
    Ok(format!("every interleaving in {} tests of the lock around admission", tally.passed))
}

/// Runs tests and shows their output.
fn tally(command: &mut Command) -> Result<Tally> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting cargo")?;
    let mut tally = Tally::default();
    let mut output = BufReader::new(child.stdout.take().context("cargo has no standard output")?);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        drop(std::io::stdout().lock().write_all(&line));
        tally.count(&String::from_utf8_lossy(&line));
        line.clear();
    }
    let status = child.wait()?;
    if !tally.failed_tests.is_empty() {
        say(format_args!("\n==== what the failed tests said"));
        for line in tally.failures.lines() {
            say(format_args!("{line}"));
        }
        bail!("{tally}: {}", tally.failed_tests.join(", "));
    }
    if !status.success() {
        bail!("cargo test: {status}, with {tally}");
    }
    Ok(tally)
}

/// What the test programs have reported, summed up.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    failed_tests: Vec<String>,
    failures: Failures,
}

impl Tally {
    fn count(&mut self, line: &str) {
        let line = line.trim_end();
        self.failures.read(line);
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed_tests.push(name.to_owned());
        }
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// The last lines that each failed test has printed: in a long log nobody finds them otherwise.
#[derive(Debug, Default, PartialEq, Eq)]
struct Failures {
    reading: bool,
    tests: Vec<VecDeque<String>>,
}

impl Failures {
    const LINES_PER_TEST: usize = 40;

    /// Understands what libtest prints after all tests of a program.
    ///
    /// ```text
    /// failures:
    ///
    /// ---- name::of::a::test stdout ----
    /// …
    ///
    /// failures:
    ///     name::of::a::test
    ///
    /// test result: FAILED. …
    /// ```
    fn read(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.reading = true;
            self.tests.push(VecDeque::new());
        } else if line == "failures:" {
            self.reading = false;
        }
        let Some(test) = self.tests.last_mut().filter(|_| self.reading) else { return };
        if test.len() > Self::LINES_PER_TEST {
            // Behind the name.
            test.remove(1);
        }
        test.push_back(line.to_owned());
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.tests.iter().flatten().map(String::as_str)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} ignored", self.passed, self.failed, self.ignored)
    }
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root);
    command
}

fn succeed(command: &mut Command, advice: &str) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        bail!("`{}` ended with {status}: {advice}", words.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tally_sums_all_test_programs_and_names_failures() {
        let mut tally = Tally::default();
        for line in [
            "test queue::tests::holds ... ok\n",
            "test queue::tests::drops ... FAILED\n",
            "\n",
            "failures:\n",
            "\n",
            "---- queue::tests::drops stdout ----\n",
            "left: 1\n",
            "\n",
            "\n",
            "failures:\n",
            "    queue::tests::drops\n",
            "\n",
            "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.00s\n",
        ] {
            tally.count(line);
        }
        assert_eq!(tally.to_string(), "43 passed, 1 failed, 2 ignored");
        assert_eq!(tally.failed_tests, ["queue::tests::drops"]);
        let said: Vec<_> = tally.failures.lines().collect();
        assert_eq!(said, ["---- queue::tests::drops stdout ----", "left: 1", "", ""]);
    }

    #[test]
    fn of_a_failed_test_the_last_lines_are_kept_with_its_name() {
        let mut failures = Failures::default();
        failures.read("---- talks stdout ----");
        for number in 0..1_000 {
            failures.read(&number.to_string());
        }
        let said: Vec<_> = failures.lines().collect();
        assert_eq!(said.len(), 1 + Failures::LINES_PER_TEST);
        assert_eq!((said[0], *said.last().unwrap()), ("---- talks stdout ----", "999"));
    }

    #[test]
    fn a_command_that_fails_is_named_with_advice() {
        let message = succeed(Command::new("sh").args(["-c", "exit 4"]), "do better").unwrap_err().to_string();
        assert!(message.contains("sh -c exit 4") && message.contains("do better"), "{message}");
    }
}
