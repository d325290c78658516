//! Endpoints from a file: read once at the start, which fails if the file is no good, and followed from then on by a
//! thread of its own. A file can block whoever reads it for as long as it likes (a dead mount), so no thread that
//! serves requests ever touches it.
//!
//! ```text
//! notify ──ring──> Bell ──> Follower ── stat ──differs?──> read, parse ──> EndpointTable
//!                   ^          │ once a second, whatever the bell says
//! process ends ─stop┘          └─ arms the watch anew when other directories hold the file
//! ```

mod bell;
mod file;
mod follower;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_core::{Criticality, Tasks};
use tokio::sync::oneshot;

use self::bell::Bell;
use self::file::Source;
use self::follower::Follower;
use crate::{EndpointFileError, EndpointTable};

/// Where the endpoints of the pool come from when it is not Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    File(FileDiscovery),
}

/// Endpoints listed in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiscovery {
    pub path: PathBuf,
    /// Follow changes of the file; otherwise it is read once.
    pub watch: bool,
}

/// Why discovery could not start.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error("endpoint file {}: {source}", absolute(path))]
    Read { path: PathBuf, source: std::io::Error },
    #[error("endpoint file {}: not a regular file", absolute(path))]
    NotRegular { path: PathBuf },
    #[error("endpoint file {}: {source}", absolute(path))]
    Content { path: PathBuf, source: EndpointFileError },
    #[error("starting the thread that follows the endpoint file: {0}")]
    Thread(std::io::Error),
}

/// A relative path starts at the working directory, which who reads the log may not know.
fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

impl Discovery {
    /// Fills `table`, and keeps it true from then on if the source can change: until the process or `tasks` end.
    pub fn start(self, table: &Arc<EndpointTable>, tasks: &Tasks) -> Result<(), DiscoveryError> {
        match self {
            Self::File(file) => file.start(table, tasks),
        }
    }
}

impl FileDiscovery {
    fn start(self, table: &Arc<EndpointTable>, tasks: &Tasks) -> Result<(), DiscoveryError> {
        let Self { path, watch } = self;
        let bell = Arc::new(Bell::default());
        // The watch comes first, so that no change between reading and watching is missed.
        let follower = watch.then(|| Follower::new(path.clone(), Arc::clone(&bell), Arc::clone(table)));
        let file = Source::new(path.clone()).load()?;
        file.fill(&path, table);
        tracing::info!(path = %path.display(), endpoints = table.snapshot().endpoints().len(), "endpoints loaded");
        let Some(mut follower) = follower else { return Ok(()) };

        follower.has_taken(file);
        let (ended, end) = oneshot::channel::<()>();
        let body = move || {
            // Dropped when the thread ends, by panic too.
            let _ended = ended;
            follower.run();
        };
        std::thread::Builder::new().name("file-discovery".to_owned()).spawn(body).map_err(DiscoveryError::Thread)?;
        let stop = StopOnDrop(bell);
        tasks.spawn("file-discovery", Criticality::Critical, async move {
            let _stop = stop;
            // Nothing is ever sent: this waits for the end of the thread.
            end.await.unwrap_or_default();
        });
        Ok(())
    }
}

/// Ends the thread with the task that stands for it.
struct StopOnDrop(Arc<Bell>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
#[path = "discovery_tests.rs"]
mod tests;
