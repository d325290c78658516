use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A file by its path, which may lead through links.
#[derive(Clone, Debug)]
pub struct FollowedFile {
    path: PathBuf,
    what: &'static str,
    max_bytes: usize,
}

/// What tells one content of a file from another without reading it. The time of the last change of status is part
/// of it, because copying tools set the time of modification back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Why a file has no content.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{what} {}: {source}", absolute(path))]
    Read { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{what} {}: not a regular file", absolute(path))]
    NotRegular { what: &'static str, path: PathBuf },
}

/// Never waits for the other end of a pipe, which may have taken the place of a file a moment ago.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Up to one byte more than `max_bytes`, so that whoever judges the content can tell that it is too much.
pub fn read_at_most(from: impl io::Read, max_bytes: usize) -> io::Result<Vec<u8>> {
    let most = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    from.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

impl FollowedFile {
    /// `what` it is called in messages; more than `max_bytes` is of no use to whoever reads it.
    pub const fn new(path: PathBuf, what: &'static str, max_bytes: usize) -> Self {
        Self { path, what, max_bytes }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For messages: whoever reads them may not know at which directory a relative path starts.
    pub fn absolute_path(&self) -> String {
        absolute(&self.path)
    }

    pub(crate) const fn what(&self) -> &'static str {
        self.what
    }

    /// As [`read_at_most`] reads it.
    pub fn read(&self) -> Result<Vec<u8>, FileError> {
        self.read_stamped().map(|(bytes, _)| bytes)
    }

    /// The same, with the stamp of the file when reading began.
    pub(crate) fn read_stamped(&self) -> Result<(Vec<u8>, Stamp), FileError> {
        // Before it is opened, since that means something to a device, and again of what has been opened: another file may
        // stand there by then.
        self.stamp()?;
        let file = open(&self.path).map_err(|source| self.unreadable(source))?;
        let stamp = self.stamp_of(file.metadata())?;
        let bytes = read_at_most(file, self.max_bytes).map_err(|source| self.unreadable(source))?;
        Ok((bytes, stamp))
    }

    /// The stamp of the file now, without opening it. Only a regular file has one.
    pub(crate) fn stamp(&self) -> Result<Stamp, FileError> {
        self.stamp_of(std::fs::metadata(&self.path))
    }

    fn stamp_of(&self, metadata: io::Result<Metadata>) -> Result<Stamp, FileError> {
        let metadata = metadata.map_err(|source| self.unreadable(source))?;
        if !metadata.is_file() {
            return Err(FileError::NotRegular { what: self.what, path: self.path.clone() });
        }
        Ok(Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    fn unreadable(&self, source: io::Error) -> FileError {
        FileError::Read { what: self.what, path: self.path.clone(), source }
    }
}
