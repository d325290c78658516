//! What a process takes of the machine, as the kernel of Linux tells it.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::Process;

impl Process {
    /// The processor time that its threads have used so far, as the scheduler counts it: in nanoseconds,
    /// where `/proc/PID/stat` has hundredths of a second.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut total = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let path = thread?.path().join("schedstat");
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let running = text.split_ascii_whitespace().next().and_then(|nanos| nanos.parse().ok());
            total += Duration::from_nanos(running.with_context(|| format!("{} says {text:?}", path.display()))?);
        }
        Ok(total)
    }

    /// Kilobytes of its memory that are in use.
    pub fn resident_kilobytes(&self) -> Result<u64> {
        self.kilobytes("VmRSS:")
    }

    /// The most that were ever in use.
    pub fn peak_resident_kilobytes(&self) -> Result<u64> {
        self.kilobytes("VmHWM:")
    }

    fn kilobytes(&self, field: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.id());
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        kilobytes.with_context(|| format!("{path} does not tell {field}"))
    }
}
