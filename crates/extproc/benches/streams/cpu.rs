use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The processor time that the threads of a process have used so far, as the scheduler counts it: in nanoseconds,
/// where `/proc/PID/stat` has hundredths of a second.
pub(crate) fn time_of(process: u32) -> Result<Duration> {
    let mut total = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let path = thread?.path().join("schedstat");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let running = text.split_ascii_whitespace().next().and_then(|nanos| nanos.parse().ok());
        total += Duration::from_nanos(running.with_context(|| format!("{} says {text:?}", path.display()))?);
    }
    Ok(total)
}
