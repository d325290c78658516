use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::DiscoveryError;
use crate::endpoint_file::{MAX_BYTES, repeated};
use crate::{EndpointFileError, EndpointSpec, EndpointTable, parse_endpoint_file};

/// An endpoint file by its path, which may lead through links.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
}

/// What tells one content of a file from another without reading it. The time of the last change of status is part
/// of it, because copying tools set the time of modification back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A file's content, with the stamp it had when reading began.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) stamp: Stamp,
    pub(super) bytes: Vec<u8>,
}

/// A good endpoint file.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) text: Text,
    pub(super) specs: Vec<EndpointSpec>,
}

impl Source {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The stamp of the file now, without opening it. Only a regular file has one: opening a pipe would wait for its
    /// other end.
    pub(super) fn stamp(&self) -> Result<Stamp, DiscoveryError> {
        self.stamp_of(std::fs::metadata(&self.path))
    }

    /// Reads at most one byte more than is accepted, so that [`Source::parse`] can tell.
    pub(super) fn read(&self) -> Result<Text, DiscoveryError> {
        // Before it is opened, and again of what has been opened: another file may stand there by then.
        self.stamp()?;
        let file = File::open(&self.path).map_err(|source| self.unreadable(source))?;
        let stamp = self.stamp_of(file.metadata())?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|source| self.unreadable(source))?;
        Ok(Text { stamp, bytes })
    }

    pub(super) fn parse(&self, bytes: &[u8]) -> Result<Vec<EndpointSpec>, DiscoveryError> {
        let content = |source| DiscoveryError::Content { path: self.path.clone(), source };
        if bytes.len() > MAX_BYTES {
            return Err(content(EndpointFileError::TooLarge));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|error| content(EndpointFileError::NotUtf8 { byte: error.valid_up_to() }))?;
        parse_endpoint_file(text).map_err(content)
    }

    pub(super) fn load(&self) -> Result<Loaded, DiscoveryError> {
        let text = self.read()?;
        let specs = self.parse(&text.bytes)?;
        Ok(Loaded { text, specs })
    }

    fn stamp_of(&self, metadata: std::io::Result<Metadata>) -> Result<Stamp, DiscoveryError> {
        let metadata = metadata.map_err(|source| self.unreadable(source))?;
        if !metadata.is_file() {
            return Err(DiscoveryError::NotRegular { path: self.path.clone() });
        }
        Ok(Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    fn unreadable(&self, source: std::io::Error) -> DiscoveryError {
        DiscoveryError::Read { path: self.path.clone(), source }
    }
}

impl Loaded {
    /// Makes the content the pool.
    pub(super) fn fill(&self, path: &Path, table: &EndpointTable) {
        let repeated = repeated(&self.specs);
        if !repeated.is_empty() {
            let endpoints = repeated.join(", ");
            tracing::warn!(path = %path.display(), endpoints, "listed more than once, the last entry of each counts");
        }
        table.replace(self.specs.iter().cloned());
    }
}
