//! Files that a configuration names. Reading a configuration does not touch them: it may be meant for another machine.

use std::fmt;
use std::sync::Arc;

use crate::diagnostics::{Diagnostic, Diagnostics, Place, Remark};

/// What there is to say of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileReport {
    /// The process could not start with it.
    pub mistakes: Vec<String>,
    pub warnings: Vec<String>,
}

impl FileReport {
    /// There is nothing to say, or this is wrong.
    pub fn of<E: fmt::Display>(result: Result<(), E>) -> Self {
        Self { mistakes: result.err().map(|error| error.to_string()).into_iter().collect(), warnings: Vec::new() }
    }
}

type Check = dyn Fn() -> FileReport + Send + Sync;

/// A file, and the setting that names it.
#[derive(Clone)]
pub(crate) struct NamedFile {
    place: Place,
    check: Arc<Check>,
}

impl NamedFile {
    pub(crate) fn new(place: Place, check: impl Fn() -> FileReport + Send + Sync + 'static) -> Self {
        Self { place, check: Arc::new(check) }
    }
}

impl fmt::Debug for NamedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedFile").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The files that the plugins in use read.
#[derive(Clone, Debug)]
pub struct Files {
    pub(crate) source: Arc<str>,
    pub(crate) named: Vec<NamedFile>,
}

impl Files {
    /// Reads them, and says what there is to say of each at the setting that names it, in the order of the text.
    pub fn check(&self) -> Vec<Diagnostic> {
        let mut diagnostics = Diagnostics::new(Arc::clone(&self.source));
        for NamedFile { place, check } in &self.named {
            let FileReport { mistakes, warnings } = check();
            mistakes.into_iter().for_each(|mistake| diagnostics.error(place.clone(), Remark::new(mistake)));
            warnings.into_iter().for_each(|warning| diagnostics.warn(place.clone(), Remark::new(warning)));
        }
        diagnostics.sort();
        diagnostics.into_list()
    }
}
