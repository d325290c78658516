use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::OTHER;

/// The series that were made for each value of `fairness_id`: found without making strings, and dropped with the tenant.
///
/// How many there are is bounded as a whole, since bounds on each label that clients choose leave their product:
///
/// ```text
/// series:    0 ──────────────> max / 2 ─────────────> max ─────────────>
/// newcomers:   as they are       folded by the caller    the same, of tenant `other`
/// ```
///
/// What is there already keeps counting where it does. Beyond `max` there is what the operator's own values make: one
/// series of `other` for each folded key.
#[derive(Debug)]
pub struct PerTenant<K, S> {
    max: usize,
    all: Mutex<All<K, S>>,
}

#[derive(Debug)]
struct All<K, S> {
    by_tenant: BTreeMap<Arc<str>, BTreeMap<K, S>>,
    count: usize,
}

impl<K: Ord, S: Clone> PerTenant<K, S> {
    pub const fn at_most(max: usize) -> Self {
        Self { max, all: Mutex::new(All { by_tenant: BTreeMap::new(), count: 0 }) }
    }

    /// The series `key` of `tenant`, made if it is not there. `fold` drops from the key what clients choose; `make` gets
    /// the tenant and the key that are left. Whoever calls keeps the tenant from being forgotten meanwhile.
    pub fn find(&self, tenant: &str, key: K, fold: impl FnOnce(K) -> K, make: impl FnOnce(&str, &K) -> S) -> S {
        let mut all = self.lock();
        if let Some(series) = all.get(tenant, &key) {
            return series;
        }
        if all.count < self.max / 2 {
            return all.add(tenant, key, make);
        }
        let key = fold(key);
        if let Some(series) = all.get(tenant, &key) {
            return series;
        }
        if all.count < self.max {
            return all.add(tenant, key, make);
        }
        all.get(OTHER, &key).unwrap_or_else(|| all.add(OTHER, key, make))
    }

    /// Takes out what was made for `tenant`.
    pub fn forget(&self, tenant: &str) -> BTreeMap<K, S> {
        let mut all = self.lock();
        let series = all.by_tenant.remove(tenant).unwrap_or_default();
        all.count -= series.len();
        series
    }

    fn lock(&self) -> MutexGuard<'_, All<K, S>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord, S: Clone> All<K, S> {
    fn get(&self, tenant: &str, key: &K) -> Option<S> {
        self.by_tenant.get(tenant)?.get(key).cloned()
    }

    /// `key` is not there yet.
    fn add(&mut self, tenant: &str, key: K, make: impl FnOnce(&str, &K) -> S) -> S {
        let made = make(tenant, &key);
        self.by_tenant.entry(tenant.into()).or_default().insert(key, made.clone());
        self.count += 1;
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Series = PerTenant<(u32, &'static str), String>;

    fn find(all: &Series, tenant: &str, model: u32) -> String {
        let make = |tenant: &str, key: &(u32, &str)| format!("{tenant} {}", key.0);
        all.find(tenant, (model, "outcome"), |(_, outcome)| (0, outcome), make)
    }

    #[test]
    fn the_model_is_folded_first_and_then_the_tenant() {
        let all = Series::at_most(6);
        let found = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|tenant| find(&all, tenant, 7));
        assert_eq!(found, ["a 7", "b 7", "c 7", "d 0", "e 0", "f 0", "other 0", "other 0"]);
        assert_eq!(find(&all, "a", 7), "a 7", "what is there stays");
        assert_eq!(find(&all, "d", 8), "d 0");
        assert_eq!(find(&all, "a", 8), "other 0");
    }

    #[test]
    fn a_forgotten_tenant_frees_its_places() {
        let all = Series::at_most(6);
        for model in 1..=3 {
            find(&all, "a", model);
        }
        assert_eq!(find(&all, "b", 1), "b 0");
        assert_eq!(all.forget("a").len(), 3);
        assert_eq!(find(&all, "b", 1), "b 1");
        assert_eq!(find(&all, "b", 2), "b 2");
        assert_eq!(find(&all, "b", 3), "b 0");
    }
}
