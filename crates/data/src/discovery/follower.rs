use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::DiscoveryError;
use super::bell::{Bell, Wake};
use super::file::{Loaded, Source, Stamp};
use super::watch::Watch;
use crate::EndpointTable;

/// Changes within this time are taken over together: editors and ConfigMap updates touch a file several times.
pub(super) const DEBOUNCE: Duration = Duration::from_millis(50);
/// The file is looked at this often whatever the watch says: file systems exist that tell nothing.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Takes over each change of the file; one that cannot be read or has a bad entry leaves the endpoints as they are.
#[derive(Debug)]
pub(super) struct Follower {
    source: Source,
    bell: Arc<Bell>,
    watch: Watch,
    table: Arc<EndpointTable>,
    seen: Seen,
    /// The content that is the pool.
    taken: Vec<u8>,
    /// What is wrong with the file at present, as it was logged.
    trouble: Option<String>,
}

impl Follower {
    /// Watches `path` from now on.
    pub(super) fn new(path: PathBuf, bell: Arc<Bell>, table: Arc<EndpointTable>) -> Self {
        let watch = Watch::new(path.clone(), Arc::clone(&bell));
        Self { source: Source::new(path), bell, watch, table, seen: Seen::default(), taken: Vec::new(), trouble: None }
    }

    /// `file` is what the table holds.
    pub(super) fn has_taken(&mut self, file: Loaded) {
        self.seen.read(file.text.stamp);
        self.taken = file.text.bytes;
    }

    /// Until the bell is stopped.
    pub(super) fn run(mut self) {
        while self.bell.wait(CHECK_EVERY, DEBOUNCE) != Wake::Stopped {
            self.watch.follow();
            self.look();
        }
    }

    fn look(&mut self) {
        match self.news() {
            Ok(None) => {}
            Ok(Some(file)) => {
                self.take_over(file);
                self.trouble = None;
            }
            Err(error) => {
                let error = error.to_string();
                if self.trouble.as_ref() != Some(&error) {
                    tracing::error!(error, "endpoints not reloaded, the previous ones stay");
                    self.trouble = Some(error);
                }
            }
        }
    }

    /// A good content that has not been looked at yet.
    fn news(&mut self) -> Result<Option<Loaded>, DiscoveryError> {
        let text = match self.source.stamp() {
            Ok(stamp) if !self.seen.is_news(&stamp) => return Ok(None),
            Ok(_) => self.source.read(),
            Err(error) => Err(error),
        };
        let text = text.inspect_err(|_| self.seen = Seen::default())?;
        self.seen.read(text.stamp);
        if self.trouble.is_none() && text.bytes == self.taken {
            return Ok(None);
        }
        let specs = self.source.parse(&text.bytes)?;
        Ok(Some(Loaded { text, specs }))
    }

    fn take_over(&mut self, file: Loaded) {
        let path = self.source.path();
        if file.text.bytes == self.taken {
            tracing::info!(path = %path.display(), "endpoint file is good again, endpoints as before");
            return;
        }
        file.fill(path, &self.table);
        let endpoints = self.table.snapshot().endpoints().len();
        if endpoints == 0 {
            tracing::warn!(path = %path.display(), "endpoints reloaded, and there are none: nothing can be served");
        } else {
            tracing::info!(path = %path.display(), endpoints, "endpoints reloaded");
        }
        self.taken = file.text.bytes;
    }
}

/// Which content has been read.
#[derive(Debug, Default)]
struct Seen {
    stamp: Option<Stamp>,
    /// Whether a second reading, later than the first by at least [`DEBOUNCE`], found the same stamp. Until then there
    /// may have been a change that left no trace, since file systems count time in steps of some milliseconds.
    settled: bool,
}

impl Seen {
    fn is_news(&self, stamp: &Stamp) -> bool {
        !self.settled || self.stamp.as_ref() != Some(stamp)
    }

    fn read(&mut self, stamp: Stamp) {
        self.settled = self.stamp == Some(stamp);
        self.stamp = Some(stamp);
    }
}

#[cfg(test)]
#[path = "follower_tests.rs"]
mod tests;
