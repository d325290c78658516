use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::bell::Bell;

/// Device and inode: what stays the same when a directory is renamed, and differs when another takes its name.
type DirectoryId = (u64, u64);

/// Rings when something happens in a directory that holds the file or what it links to. The directory is watched
/// rather than the file, because editors and ConfigMaps replace the file.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    /// What the file is called in messages.
    what: &'static str,
    bell: Arc<Bell>,
    armed: BTreeMap<DirectoryId, PathBuf>,
    watcher: Option<RecommendedWatcher>,
    /// Whether it was said that watching does not work, since it last did.
    complained: bool,
}

impl Watch {
    pub(crate) fn new(path: PathBuf, what: &'static str, bell: Arc<Bell>) -> Self {
        let mut watch = Self { path, what, bell, armed: BTreeMap::new(), watcher: None, complained: false };
        watch.follow();
        watch
    }

    /// Watches other directories if others hold the file now, and tries again what did not work. Without a watch the
    /// file is still looked at once in a while, so that a failure only means that changes are noticed later.
    pub(crate) fn follow(&mut self) {
        // Told apart before they are watched: one that is replaced in between differs the next time.
        let directories = directories(&self.path);
        if self.watcher.is_some() && directories.keys().eq(self.armed.keys()) {
            return;
        }
        match arm(directories.values(), Arc::clone(&self.bell)) {
            Ok(watcher) => {
                self.watcher = Some(watcher);
                self.complained = false;
            }
            Err(error) => {
                self.watcher = None;
                if !self.complained {
                    let path = self.path.display();
                    tracing::warn!(what = self.what, %path, %error, "cannot watch the file, looking at it every second");
                    self.complained = true;
                }
            }
        }
        self.armed = directories;
    }
}

/// The directory of `path` and that of what it links to, as far as there are any.
fn directories(path: &Path) -> BTreeMap<DirectoryId, PathBuf> {
    let target = path.canonicalize().ok();
    [Some(path), target.as_deref()]
        .into_iter()
        .flatten()
        .map(parent)
        .filter_map(|directory| {
            let metadata = std::fs::metadata(directory).ok()?;
            Some(((metadata.dev(), metadata.ino()), directory.to_owned()))
        })
        .collect()
}

fn arm<'a>(directories: impl Iterator<Item = &'a PathBuf>, bell: Arc<Bell>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| match event {
        // Reading the file is one of these.
        Ok(event) if event.kind.is_access() => {}
        Ok(_) => bell.ring(),
        Err(error) => {
            tracing::debug!(%error, "watching a file");
            bell.ring();
        }
    })?;
    for directory in directories {
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
