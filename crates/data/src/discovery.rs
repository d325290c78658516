//! Endpoints from a file: read once at the start, which fails if the file is no good, and followed from then on.

use std::path::PathBuf;
use std::sync::Arc;

use sluice_core::Tasks;
use sluice_follow::{Consumer, FileError, FollowedFile, Follower, Verdict};

use crate::endpoint_file::MAX_BYTES;
use crate::{EndpointFile, EndpointFileError, EndpointFileWarning, EndpointTable, parse_endpoint_file};

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
    #[error(transparent)]
    File(#[from] FileError),
    #[error("endpoint file {path}: {source}")]
    Content { path: String, source: EndpointFileError },
    #[error("starting the thread that follows the endpoint file: {0}")]
    Thread(std::io::Error),
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
        let file = self.file();
        let content = file.read()?;
        let pool = Pool { file, table: Arc::clone(table) };
        pool.fill(parse(&pool.file, &content)?);
        let (path, endpoints) = (pool.file.path().display(), table.snapshot().endpoints().len());
        tracing::info!(%path, endpoints, "endpoints loaded");
        if self.watch {
            let mut follower = Follower::new(pool.file.clone());
            follower.has_taken(content);
            follower.start("file-discovery", pool, tasks).map_err(DiscoveryError::Thread)?;
        }
        Ok(())
    }

    /// Reads the file, and says what there is to say of it.
    pub fn check(&self) -> Result<Vec<EndpointFileWarning>, DiscoveryError> {
        let file = self.file();
        parse(&file, &file.read()?).map(|content| content.warnings)
    }

    fn file(&self) -> FollowedFile {
        FollowedFile::new(self.path.clone(), "endpoint file", MAX_BYTES)
    }
}

fn parse(file: &FollowedFile, bytes: &[u8]) -> Result<EndpointFile, DiscoveryError> {
    let content = |source| DiscoveryError::Content { path: file.absolute_path(), source };
    if bytes.len() > MAX_BYTES {
        return Err(content(EndpointFileError::TooLarge));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| content(EndpointFileError::NotUtf8 { byte: error.valid_up_to() }))?;
    parse_endpoint_file(text).map_err(content)
}

/// The pool that a file describes. A file that cannot be read or has a bad entry leaves it as it is.
#[derive(Debug)]
struct Pool {
    file: FollowedFile,
    table: Arc<EndpointTable>,
}

impl Pool {
    fn fill(&self, content: EndpointFile) {
        let EndpointFile { endpoints, warnings } = content;
        let path = self.file.path().display();
        for warning in warnings.iter().take(MOST_WARNINGS) {
            tracing::warn!(%path, "endpoint file: {warning}");
        }
        if let Some(more) = warnings.len().checked_sub(MOST_WARNINGS).filter(|more| *more > 0) {
            tracing::warn!(%path, more, "endpoint file: there are more warnings");
        }
        self.table.replace(endpoints);
    }
}

/// More than this many are not logged one by one.
const MOST_WARNINGS: usize = 20;

impl Consumer for Pool {
    fn changed(&mut self, content: &[u8]) -> Verdict {
        let content = match parse(&self.file, content) {
            Ok(content) => content,
            Err(error) => {
                not_reloaded(&error);
                return Verdict::Refused;
            }
        };
        self.fill(content);
        let (path, endpoints) = (self.file.path().display(), self.table.snapshot().endpoints().len());
        if endpoints == 0 {
            tracing::warn!(%path, "endpoints reloaded, and there are none: nothing can be served");
        } else {
            tracing::info!(%path, endpoints, "endpoints reloaded");
        }
        Verdict::Taken
    }

    fn unreadable(&mut self, error: &FileError) {
        not_reloaded(error);
    }

    fn as_before(&mut self) {
        tracing::info!(path = %self.file.path().display(), "endpoint file is good again, endpoints as before");
    }
}

fn not_reloaded(error: &dyn std::error::Error) {
    tracing::error!(%error, "endpoints not reloaded, the previous ones stay");
}

#[cfg(test)]
#[path = "discovery_tests.rs"]
mod tests;
