use std::collections::BTreeMap;

use crate::catalog;
use crate::diagnostics::{Diagnostics, Remark};
use crate::document::{Document, Located};
use crate::suggest::nearest;

/// The plugins of a configuration by name.
#[derive(Debug)]
pub(crate) struct Names {
    by_name: BTreeMap<String, Declared>,
    /// Every declaration could be read. Otherwise a name that is not here may have been meant by one that
    /// could not.
    complete: bool,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Declared {
    /// The instance with this index.
    Instance(usize),
    /// An instance that cannot be made, which is noted where it is declared.
    Broken,
}

impl Names {
    pub(crate) const fn new(complete: bool) -> Self {
        Self { by_name: BTreeMap::new(), complete }
    }

    pub(crate) fn mark_incomplete(&mut self) {
        self.complete = false;
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn insert(&mut self, name: String, declared: Declared) {
        self.by_name.insert(name, declared);
    }

    /// Every declared plugin is an instance.
    pub(crate) fn all_usable(&self) -> bool {
        self.complete && self.by_name.values().all(|declared| matches!(declared, Declared::Instance(_)))
    }

    /// The instance called `reference`; notes an error if there is none and that is not the fault of an
    /// earlier error.
    pub(crate) fn find(
        &self,
        reference: &Located<String>,
        document: &Document,
        diagnostics: &mut Diagnostics,
    ) -> Option<usize> {
        match self.by_name.get(&reference.value) {
            Some(Declared::Instance(index)) => Some(*index),
            Some(Declared::Broken) => None,
            None => {
                if self.complete && !diagnostics.is_full() {
                    diagnostics.error(document.place(reference.node), self.unknown(&reference.value));
                }
                None
            }
        }
    }

    fn unknown(&self, name: &str) -> Remark {
        let remark = Remark::new(format!("there is no plugin {name:?}"));
        match nearest(name, self.by_name.keys().map(String::as_str)) {
            Some(suggestion) => remark.suggest(suggestion),
            None if catalog::is_known(name) => remark.hint("declare it under plugins"),
            None => remark,
        }
    }
}
