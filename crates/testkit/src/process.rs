use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::output::Output;
use crate::{eventually, guardian};

/// Waits for a go-ahead on standard input before it becomes the program, so that the guardian knows the process
/// before it can do anything. Without a parent the go-ahead never comes and nothing is started.
const LAUNCHER: &str = r#"read -r _ && exec "$0" "$@" </dev/null"#;

/// A child process that does not outlive its parent: killed when dropped, and by the [guardian](crate::guardian)
/// when this process dies first. If a test fails, the end of its output is printed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    group: Pid,
    output: Output,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` (program, arguments, environment, working directory) in a process group of its own. `name`
    /// stands in messages.
    pub fn spawn(name: impl Into<String>, command: &Command) -> Result<Self> {
        let name = name.into();
        let mut launcher = Command::new("sh");
        launcher.args(["-c", LAUNCHER]).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => launcher.env(key, value),
                None => launcher.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            launcher.current_dir(dir);
        }
        launcher.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = launcher.spawn().with_context(|| format!("starting {name}"))?;

        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let group = Pid::from_child(&child);
        let process = Self { name, child, group, output: Output::new(), status: None };
        if let Some(stdout) = stdout {
            process.output.capture(stdout);
        }
        if let Some(stderr) = stderr {
            process.output.capture(stderr);
        }
        guardian::guard(process.child.id())?;
        let mut go_ahead = stdin.context("a child without standard input")?;
        std::io::Write::write_all(&mut go_ahead, b"go\n").with_context(|| format!("starting {}", process.name))?;
        Ok(process)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn output(&self) -> &Output {
        &self.output
    }

    /// The first value that `read` finds in a line of the output; the error holds the end of the output.
    pub async fn find_in_output<T>(&self, limit: Duration, read: impl Fn(&str) -> Option<T>) -> Result<T> {
        self.output
            .find(limit, read)
            .await
            .with_context(|| format!("waiting for {}; its output:\n{}", self.name, self.output.tail()))
    }

    /// `Some` once the process has ended.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
            if self.status.is_some() {
                guardian::release(self.child.id())?;
            }
        }
        Ok(self.status)
    }

    /// Stops the process where it is (SIGSTOP), as if it hung, until [`resume`](Self::resume).
    pub fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a frozen process go on.
    pub fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.exit_status()? {
            bail!("{} has ended already: {status}; its output:\n{}", self.name, self.output.tail());
        }
        kill_process(self.group, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Asks the process to end (SIGTERM) and waits at most `grace` for it. An error if it does not; it is then killed
    /// when dropped.
    pub async fn terminate(&mut self, grace: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(grace).await
    }

    /// Waits at most `limit` for the process to end by itself.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        eventually(limit, &format!("end of {name}"), async || self.exit_status()).await
    }

    /// Kills the process and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        if self.exit_status()?.is_some() {
            return Ok(());
        }
        kill_process_group(self.group, Signal::KILL).with_context(|| format!("killing {}", self.name))?;
        guardian::release(self.child.id())?;
        self.status = Some(self.child.wait()?);
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            report(&format!("---- output of {} ----\n{}", self.name, self.output.tail()));
        }
        if let Err(error) = self.kill() {
            report(&format!("{} may still run: {error:#}", self.name));
        }
    }
}

#[expect(clippy::print_stderr, reason = "the test harness shows it beside the failed test")]
fn report(message: &str) {
    eprintln!("{message}");
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
