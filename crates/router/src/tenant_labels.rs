//! Label values for tenants. Clients choose their fairness ids, so that the values are bounded in number and length, and
//! those of tenants that have gone quiet are given to newcomers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_core::{Clock, Time};

/// What every tenant is counted as that is not told apart.
pub const OTHER: &str = "other";

/// A longer id would only fill the memory.
const MAX_LENGTH: usize = 128;

/// A tenant that has had no request for as long as this may lose its value to a newcomer. Sooner, and a burst of made-up
/// ids would wipe out the series of tenants that pause between two requests.
const QUIET: Duration = Duration::from_secs(300);

/// Told the id of a tenant whose value is taken away, to drop its series.
type Forget = Box<dyn Fn(&str) + Send + Sync>;

/// The values of the label `fairness_id`. Clones share them.
#[derive(Clone)]
pub struct TenantLabels(Arc<Shared>);

struct Shared {
    clock: Arc<dyn Clock>,
    max: AtomicUsize,
    slots: Mutex<Slots>,
    forget: Mutex<Vec<Forget>>,
}

#[derive(Default)]
struct Slots {
    /// How many [`TenantLabel`]s each tenant has, and since when there are none.
    by_tenant: BTreeMap<Arc<str>, (u64, Time)>,
    /// Tenants without any, the longest quiet first.
    quiet: BTreeSet<(Time, Arc<str>)>,
}

/// The value for one request. Its tenant keeps the value at least as long as this lives.
pub struct TenantLabel {
    /// None for [`OTHER`].
    held: Option<(TenantLabels, Arc<str>)>,
}

impl TenantLabels {
    /// At most `max` tenants have values of their own at a time.
    pub fn new(max: usize, clock: Arc<dyn Clock>) -> Self {
        let max = AtomicUsize::new(max);
        Self(Arc::new(Shared { clock, max, slots: Mutex::default(), forget: Mutex::default() }))
    }

    /// Puts another limit in force. Tenants that have a value keep it, also if they are more than that.
    pub fn set_max(&self, max: usize) {
        self.0.max.store(max, Ordering::Relaxed);
    }

    /// Whom else to tell when a tenant loses its value: called with the values locked, so that nobody counts under it
    /// meanwhile.
    pub fn on_forget(&self, forget: impl Fn(&str) + Send + Sync + 'static) {
        self.0.forget.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(forget));
    }

    /// The value of `tenant`, which gets one if there is one to be had.
    pub fn admit(&self, tenant: &Arc<str>) -> TenantLabel {
        self.hold(tenant, |slots| {
            if slots.by_tenant.len() < self.0.max.load(Ordering::Relaxed) {
                return true;
            }
            let now = self.0.clock.now();
            let longest = slots.quiet.first().filter(|(since, _)| now.saturating_since(*since) >= QUIET).cloned();
            let Some(entry) = longest else { return false };
            slots.quiet.remove(&entry);
            slots.by_tenant.remove(&entry.1);
            let forget = self.0.forget.lock().unwrap_or_else(PoisonError::into_inner);
            forget.iter().for_each(|forget| forget(&entry.1));
            true
        })
    }

    /// The value of `tenant` if it has one, else [`OTHER`]: what is refused takes no value.
    pub fn known(&self, tenant: &Arc<str>) -> TenantLabel {
        self.hold(tenant, |_| false)
    }

    fn hold(&self, tenant: &Arc<str>, make_room: impl FnOnce(&mut Slots) -> bool) -> TenantLabel {
        let mut slots = self.lock();
        if !slots.by_tenant.contains_key(tenant) {
            if tenant.len() > MAX_LENGTH || **tenant == *OTHER || !make_room(&mut slots) {
                return TenantLabel { held: None };
            }
            slots.by_tenant.insert(Arc::clone(tenant), (0, Time::ZERO));
        }
        if let Some((held, since)) = slots.by_tenant.get_mut(tenant) {
            *held += 1;
            let entry = (*since, Arc::clone(tenant));
            slots.quiet.remove(&entry);
        }
        TenantLabel { held: Some((self.clone(), Arc::clone(tenant))) }
    }

    fn release(&self, tenant: &Arc<str>) {
        let mut slots = self.lock();
        let Some((held, since)) = slots.by_tenant.get_mut(tenant) else { return };
        *held -= 1;
        if *held == 0 {
            *since = self.0.clock.now();
            let entry = (*since, Arc::clone(tenant));
            slots.quiet.insert(entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TenantLabel {
    pub fn as_str(&self) -> &str {
        self.held.as_ref().map_or(OTHER, |(_, tenant)| tenant)
    }
}

impl Drop for TenantLabel {
    fn drop(&mut self) {
        if let Some((labels, tenant)) = self.held.take() {
            labels.release(&tenant);
        }
    }
}

impl fmt::Debug for TenantLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantLabels").field("max", &self.0.max).finish_non_exhaustive()
    }
}

impl fmt::Debug for TenantLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TenantLabel").field(&self.as_str()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[derive(Debug, Default)]
    struct ByHand(AtomicU64);

    impl Clock for ByHand {
        fn now(&self) -> Time {
            Time::from_secs(self.0.load(Ordering::Relaxed))
        }
    }

    struct World {
        clock: Arc<ByHand>,
        labels: TenantLabels,
        forgotten: Arc<Mutex<Vec<String>>>,
    }

    fn two_values() -> World {
        let clock = Arc::new(ByHand::default());
        let labels = TenantLabels::new(2, clock.clone());
        let forgotten: Arc<Mutex<Vec<String>>> = Arc::default();
        let list = Arc::clone(&forgotten);
        labels.on_forget(move |tenant| list.lock().unwrap().push(tenant.to_owned()));
        World { clock, labels, forgotten }
    }

    impl World {
        fn admit(&self, tenant: &str) -> TenantLabel {
            self.labels.admit(&tenant.into())
        }

        fn pass(&self, seconds: u64) {
            self.clock.0.fetch_add(seconds, Ordering::Relaxed);
        }
    }

    #[test]
    fn values_are_bounded_in_number_and_length() {
        let world = two_values();
        assert_eq!(world.admit(&"x".repeat(MAX_LENGTH + 1)).as_str(), OTHER);
        assert_eq!(world.admit("a").as_str(), "a");
        assert_eq!(world.admit("b").as_str(), "b");
        assert_eq!(world.admit("c").as_str(), OTHER);
        assert_eq!(world.admit("a").as_str(), "a");
    }

    #[test]
    fn another_limit_counts_for_newcomers() {
        let world = two_values();
        let _held = [world.admit("a"), world.admit("b")];
        world.labels.set_max(1);
        assert_eq!(world.admit("a").as_str(), "a");
        world.pass(1_000);
        assert_eq!(world.admit("c").as_str(), OTHER);
        world.labels.set_max(3);
        assert_eq!(world.admit("c").as_str(), "c");
    }

    #[test]
    fn what_is_refused_takes_no_value() {
        let world = two_values();
        for tenant in 0..100 {
            assert_eq!(world.labels.known(&tenant.to_string().into()).as_str(), OTHER);
        }
        assert_eq!(world.admit("a").as_str(), "a");
        assert_eq!(world.labels.known(&"a".into()).as_str(), "a");
    }

    #[test]
    fn the_longest_quiet_tenant_gives_its_value_to_a_newcomer() {
        let world = two_values();
        drop(world.admit("a"));
        world.pass(1);
        drop(world.admit("b"));
        world.pass(298);
        assert_eq!(world.admit("c").as_str(), OTHER, "nobody has been quiet for long");
        world.pass(1);
        assert_eq!(world.admit("c").as_str(), "c");
        assert_eq!(*world.forgotten.lock().unwrap(), ["a"]);
        assert_eq!(world.labels.known(&"a".into()).as_str(), OTHER);
    }

    #[test]
    fn a_tenant_with_a_request_keeps_its_value() {
        let world = two_values();
        let (first, second) = (world.admit("a"), world.admit("a"));
        let _b = world.admit("b");
        drop(first);
        world.pass(1_000);
        assert_eq!(world.admit("c").as_str(), OTHER);
        drop(second);
        world.pass(299);
        assert_eq!(world.admit("c").as_str(), OTHER);
        assert_eq!(world.admit("a").as_str(), "a");
        world.pass(300);
        assert_eq!(world.admit("c").as_str(), "c");
    }

    #[test]
    fn a_tenant_that_calls_itself_other_is_one_of_the_others() {
        let world = two_values();
        drop(world.admit(OTHER));
        drop((world.admit("a"), world.admit("b")));
        world.pass(300);
        drop((world.admit("c"), world.admit("d")));
        assert_eq!(*world.forgotten.lock().unwrap(), ["a", "b"]);
    }
}
