use std::collections::BTreeMap;

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

    pub(crate) const fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn insert(&mut self, name: String, declared: Declared) {
        self.by_name.insert(name, declared);
    }

    /// Every declared plugin is an instance.
    pub(crate) fn all_usable(&self) -> bool {
        self.complete && self.by_name.values().all(|declared| matches!(declared, Declared::Instance(_)))
    }

    pub(crate) fn find(&self, name: &str) -> Option<Declared> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}
