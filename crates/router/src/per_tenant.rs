use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The series that were made for each value of `fairness_id`: found without making strings, and dropped with the tenant.
#[derive(Debug)]
pub struct PerTenant<K, S>(Mutex<BTreeMap<Arc<str>, BTreeMap<K, S>>>);

impl<K: Ord, S: Clone> PerTenant<K, S> {
    /// The series `key` of `tenant`, made if it is not there. Whoever calls keeps the tenant from being forgotten
    /// meanwhile.
    pub fn find(&self, tenant: &str, key: K, make: impl FnOnce() -> S) -> S {
        let mut all = self.lock();
        let series = match all.get_mut(tenant) {
            Some(series) => series,
            None => all.entry(tenant.into()).or_default(),
        };
        series.entry(key).or_insert_with(make).clone()
    }

    /// Takes out what was made for `tenant`.
    pub fn forget(&self, tenant: &str) -> BTreeMap<K, S> {
        self.lock().remove(tenant).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, BTreeMap<K, S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, S> Default for PerTenant<K, S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}
