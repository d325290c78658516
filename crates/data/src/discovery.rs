use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use sluice_core::{Criticality, Tasks};
use tokio::sync::Notify;

use crate::{EndpointFileError, EndpointSpec, EndpointTable, parse_endpoint_file};

/// Changes within this time are taken over together: editors and ConfigMap updates touch a file several times.
const DEBOUNCE: Duration = Duration::from_millis(50);

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
    #[error("endpoint file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("endpoint file {}: {source}", path.display())]
    Content { path: PathBuf, source: EndpointFileError },
    #[error("cannot watch {}: {source}", path.display())]
    Watch { path: PathBuf, source: notify::Error },
}

impl Discovery {
    /// Fills `table`, and keeps it true from then on if the source can change.
    pub fn start(self, table: &Arc<EndpointTable>, tasks: &Tasks) -> Result<(), DiscoveryError> {
        match self {
            Self::File(file) => file.start(table, tasks),
        }
    }
}

impl FileDiscovery {
    fn start(self, table: &Arc<EndpointTable>, tasks: &Tasks) -> Result<(), DiscoveryError> {
        // The watch comes first, so that no change between reading and watching is missed.
        let watch = self.watch.then(|| Watch::new(&self.path)).transpose()?;
        let text = read(&self.path)?;
        table.replace(parse(&self.path, &text)?);
        tracing::info!(path = %self.path.display(), endpoints = table.snapshot().endpoints().len(), "endpoints loaded");
        if let Some(watch) = watch {
            let table = Arc::clone(table);
            tasks.spawn("file-discovery", Criticality::Critical, follow(self.path, watch, table, text));
        }
        Ok(())
    }
}

/// Takes over each change of the file; one that cannot be read or has a bad entry leaves the endpoints as they are.
async fn follow(path: PathBuf, watch: Watch, table: Arc<EndpointTable>, mut last: String) {
    loop {
        watch.changed.notified().await;
        tokio::time::sleep(DEBOUNCE).await;
        match read(&path) {
            Ok(text) if text == last => {}
            Ok(text) => {
                match parse(&path, &text) {
                    Ok(specs) => {
                        table.replace(specs);
                        let endpoints = table.snapshot().endpoints().len();
                        tracing::info!(path = %path.display(), endpoints, "endpoints reloaded");
                    }
                    Err(error) => tracing::error!(%error, "endpoints not reloaded, the previous ones stay"),
                }
                last = text;
            }
            Err(error) => tracing::error!(%error, "endpoints not reloaded, the previous ones stay"),
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<EndpointSpec>, DiscoveryError> {
    parse_endpoint_file(text).map_err(|source| DiscoveryError::Content { path: path.to_owned(), source })
}

fn read(path: &Path) -> Result<String, DiscoveryError> {
    let limit = parse_limit();
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(limit).read_to_string(&mut text))
        .map_err(|source| DiscoveryError::Read { path: path.to_owned(), source })?;
    Ok(text)
}

/// One byte more than the parser accepts, so that it can tell.
const fn parse_limit() -> u64 {
    crate::endpoint_file::MAX_BYTES as u64 + 1
}

/// Tells that something happened in the directories that hold the file and what it links to. The directory is
/// watched rather than the file, because editors and ConfigMaps replace the file.
struct Watch {
    changed: Arc<Notify>,
    _watcher: RecommendedWatcher,
}

impl Watch {
    fn new(path: &Path) -> Result<Self, DiscoveryError> {
        let changed = Arc::new(Notify::new());
        let on_event = {
            let changed = Arc::clone(&changed);
            move |event: notify::Result<notify::Event>| match event {
                Ok(event) if event.kind.is_access() => {}
                Ok(_) => changed.notify_one(),
                Err(error) => tracing::warn!(%error, "watching the endpoint file"),
            }
        };
        let watch_error = |source| DiscoveryError::Watch { path: path.to_owned(), source };
        let mut watcher = notify::recommended_watcher(on_event).map_err(watch_error)?;
        let mut directories = vec![parent(path)];
        if let Ok(target) = path.canonicalize() {
            let target = parent(&target);
            if parent(path).canonicalize().ok().as_ref() != Some(&target) {
                directories.push(target);
            }
        }
        for directory in directories {
            watcher.watch(&directory, RecursiveMode::NonRecursive).map_err(watch_error)?;
        }
        Ok(Self { changed, _watcher: watcher })
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
#[path = "discovery_tests.rs"]
mod tests;
