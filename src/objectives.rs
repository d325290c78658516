//! The objectives in force: those of the configuration and those of Kubernetes, of which the latter win by name.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_flow::{DesiredPriorities, Signal};
use sluice_router::admission::Admission;
use sluice_router::{Objectives, SharedObjectives};
use tokio::sync::watch;

/// Keeps requests and the engine informed of objectives. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct ObjectivesInForce(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    configured: Objectives,
    live: Objectives,
    /// The priorities that have a band by the configuration.
    desired: watch::Sender<DesiredPriorities>,
    shared: SharedObjectives,
    admission: Option<Admission>,
    /// Objectives of the configuration that the log has said to be overruled.
    told: BTreeSet<String>,
}

impl ObjectivesInForce {
    /// Those of the configuration, with the priorities that it wants bands for.
    pub(crate) fn new(configured: Objectives, desired: DesiredPriorities, admission: Option<Admission>) -> Self {
        let shared = SharedObjectives::from(configured.clone());
        Self(Arc::new(Mutex::new(State {
            configured,
            live: Objectives::new(),
            desired: watch::Sender::new(desired),
            shared,
            admission,
            told: BTreeSet::new(),
        })))
    }

    /// What requests go by.
    pub(crate) fn shared(&self) -> SharedObjectives {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).shared.clone()
    }

    /// The priorities that have a band by the configuration, whatever is in Kubernetes.
    pub(crate) fn configured_bands(&self) -> watch::Receiver<DesiredPriorities> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).desired.subscribe()
    }

    /// Puts those of Kubernetes in force in place of those it had before.
    pub(crate) fn follow_kubernetes(&self, live: Objectives) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.live = live;
        state.tell_of_overruled();
        // Before requests go by them, so that the engine knows their bands.
        if let Some(admission) = &state.admission {
            admission.observe(Signal::Desired(state.bands()));
        }
        state.put_in_force();
    }

    /// Puts those of another configuration in force. `announce` is called before, with all priorities that are to have a
    /// band.
    pub(crate) fn reconfigure(
        &self,
        configured: Objectives,
        desired: DesiredPriorities,
        announce: impl FnOnce(DesiredPriorities),
    ) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.configured = configured;
        state.desired.send_if_modified(|present| {
            let changed = *present != desired;
            *present = desired;
            changed
        });
        state.tell_of_overruled();
        announce(state.bands());
        state.put_in_force();
    }
}

impl State {
    fn bands(&self) -> DesiredPriorities {
        self.desired.borrow().iter().copied().chain(self.live.values().copied()).collect()
    }

    fn put_in_force(&self) {
        let mut objectives = self.configured.clone();
        objectives.extend(self.live.clone());
        self.shared.replace(objectives);
    }

    fn tell_of_overruled(&mut self) {
        for name in self.configured.keys().filter(|&name| self.live.contains_key(name)) {
            if self.told.insert(name.clone()) {
                let what = "the objective is in sluice.objectives and in Kubernetes, which counts";
                tracing::warn!(objective = name, "{what}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::Priority;

    use super::*;

    fn objectives<const N: usize>(objectives: [(&str, i32); N]) -> Objectives {
        objectives.map(|(name, priority)| (name.to_owned(), Priority(priority))).into()
    }

    fn named<const N: usize>(desired: [i32; N]) -> DesiredPriorities {
        desired.map(Priority).into()
    }

    /// Once the objectives of Kubernetes are `first`, and the configuration is replaced by one with `configured`.
    fn bands_after(first: Objectives, configured: Objectives) -> Vec<i32> {
        let in_force = ObjectivesInForce::new(objectives([("old", 1)]), named([1]), None);
        in_force.follow_kubernetes(first);
        let mut bands = Vec::new();
        let new = configured.values().copied().collect();
        in_force.reconfigure(configured, new, |all| bands.extend(all.into_iter().map(|priority| priority.0)));
        bands
    }

    #[test]
    fn another_configuration_leaves_the_bands_of_kubernetes() {
        assert_eq!(bands_after(objectives([("a", 5)]), objectives([("b", -3)])), [-3, 5]);
        assert_eq!(bands_after(objectives([]), objectives([])), [0; 0]);
    }

    #[test]
    fn whoever_goes_by_the_bands_of_the_configuration_is_told_when_others_come() {
        let in_force = ObjectivesInForce::new(objectives([("a", 1)]), named([1]), None);
        let mut told = in_force.configured_bands();
        assert_eq!(*told.borrow_and_update(), named([1]));
        in_force.follow_kubernetes(objectives([("b", 3)]));
        in_force.reconfigure(objectives([("c", 1)]), named([1]), drop);
        assert!(!told.has_changed().unwrap(), "they are the same as before");
        in_force.reconfigure(objectives([("a", 2)]), named([2]), drop);
        assert_eq!(*told.borrow_and_update(), named([2]));
    }
}
