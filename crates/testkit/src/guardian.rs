//! Ends child processes whose parent died without a chance to do it itself.
//!
//! [`Process`](crate::Process) kills its child when it is dropped. That covers a failed test, a panic and an orderly
//! end, but not a test binary that is killed, nor a value in a `static`. For those there is one shell per test
//! process, the guardian. It reads from a pipe which only this process holds open, is told the group of every child,
//! and kills what it still knows when the pipe ends, as it does at the end of this process however that comes. Then it
//! removes the directory that the process has its temporary files in.
//!
//! ```text
//! this process ──"guard 41"──> guardian ──(pipe closed)──> kill -KILL -- -41; rm -rf scratch
//! ```
//!
//! A parent-death signal (`prctl`, `setpriv --pdeathsig`) would not do: it fires when the *thread* that started the
//! child ends, and a test harness runs each test on a thread of its own.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;

const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
groups=
while read -r verb group; do
  case $verb in
  guard)
    groups="$groups $group" ;;
  release)
    kept=
    for known in $groups; do
      [ "$known" = "$group" ] || kept="$kept $known"
    done
    groups=$kept ;;
  esac
done
for group in $groups; do
  kill -s KILL -- "-$group"
done
rm -rf -- "$1"
"#;

static GUARDIAN: LazyLock<Result<Guardian, String>> =
    LazyLock::new(|| Guardian::start().map_err(|error| format!("{error:#}")));

/// Has the process group `group` killed when this process ends.
pub(crate) fn guard(group: u32) -> Result<()> {
    tell("guard", group)
}

/// Takes [`guard`] back. To be called before the group's leader is reaped: afterwards its number may belong to
/// somebody else.
pub(crate) fn release(group: u32) -> Result<()> {
    tell("release", group)
}

/// A new directory, removed when the value is dropped, and also when this process ends without dropping it.
pub(crate) fn temporary_dir(prefix: &str) -> Result<TempDir> {
    let scratch = &guardian()?.scratch;
    tempfile::Builder::new().prefix(prefix).tempdir_in(scratch).context("making a temporary directory")
}

fn tell(verb: &str, group: u32) -> Result<()> {
    let guardian = guardian()?;
    let mut pipe = guardian.pipe.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(pipe, "{verb} {group}").context("the guardian of child processes is gone")
}

fn guardian() -> Result<&'static Guardian> {
    GUARDIAN.as_ref().map_err(|error| anyhow!("{error}"))
}

struct Guardian {
    pipe: Mutex<ChildStdin>,
    scratch: PathBuf,
}

impl Guardian {
    fn start() -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("sluice-").tempdir()?;
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "guardian"])
            .arg(scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of a Ctrl-C, which goes to the terminal's foreground group.
            .process_group(0)
            .spawn()
            .context("starting a shell as guardian of child processes")?;
        let pipe = child.stdin.take().context("the guardian has no standard input")?;
        // From here on the guardian removes it.
        Ok(Self { pipe: Mutex::new(pipe), scratch: scratch.keep() })
    }
}
