//! The objectives in force: those of the configuration and those of Kubernetes, of which the latter win by name.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_config::FlowControl;
use sluice_core::Priority;
use sluice_flow::{DesiredPriorities, Signal};
use sluice_router::admission::Admission;
use sluice_router::{Objectives, SharedObjectives};
use tokio::sync::watch;

/// The bands of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfiguredBands {
    /// The priorities of those that are described.
    described: DesiredPriorities,
    /// Those that objectives name.
    desired: DesiredPriorities,
}

impl ConfiguredBands {
    /// Without flow control there are none.
    pub(crate) fn of(flow_control: Option<&FlowControl>) -> Self {
        let of = |FlowControl { config, desired }: &FlowControl| Self {
            described: config.bands.keys().copied().collect(),
            desired: desired.clone(),
        };
        flow_control.map(of).unwrap_or_default()
    }

    /// The priorities of all of them.
    pub(crate) fn priorities(&self) -> BTreeSet<Priority> {
        self.described.union(&self.desired).copied().collect()
    }
}

/// Keeps requests and the engine informed of objectives. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct ObjectivesInForce(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    configured: Objectives,
    live: Objectives,
    bands: watch::Sender<ConfiguredBands>,
    shared: SharedObjectives,
    admission: Option<Admission>,
    /// Objectives of the configuration that the log has said to be overruled.
    told: BTreeSet<String>,
}

impl ObjectivesInForce {
    /// Those of the configuration, with the bands that it has.
    pub(crate) fn new(configured: Objectives, bands: ConfiguredBands, admission: Option<Admission>) -> Self {
        let shared = SharedObjectives::from(configured.clone());
        Self(Arc::new(Mutex::new(State {
            configured,
            live: Objectives::new(),
            bands: watch::Sender::new(bands),
            shared,
            admission,
            told: BTreeSet::new(),
        })))
    }

    /// What requests go by.
    pub(crate) fn shared(&self) -> SharedObjectives {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).shared.clone()
    }

    /// The bands of the configuration, whatever is in Kubernetes.
    pub(crate) fn configured_bands(&self) -> watch::Receiver<ConfiguredBands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bands.subscribe()
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
        bands: ConfiguredBands,
        announce: impl FnOnce(DesiredPriorities),
    ) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.configured = configured;
        state.bands.send_if_modified(|present| {
            let changed = *present != bands;
            *present = bands;
            changed
        });
        state.tell_of_overruled();
        announce(state.bands());
        state.put_in_force();
    }
}

impl State {
    fn bands(&self) -> DesiredPriorities {
        self.bands.borrow().desired.iter().copied().chain(self.live.values().copied()).collect()
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
    use super::*;

    fn objectives<const N: usize>(objectives: [(&str, i32); N]) -> Objectives {
        objectives.map(|(name, priority)| (name.to_owned(), Priority(priority))).into()
    }

    fn named<const N: usize>(desired: [i32; N]) -> ConfiguredBands {
        ConfiguredBands { desired: desired.map(Priority).into(), ..ConfiguredBands::default() }
    }

    /// Once the objectives of Kubernetes are `first`, and the configuration is replaced by one with `configured`.
    fn bands_after(first: Objectives, configured: Objectives) -> Vec<i32> {
        let in_force = ObjectivesInForce::new(objectives([("old", 1)]), named([1]), None);
        in_force.follow_kubernetes(first);
        let mut bands = Vec::new();
        let new = ConfiguredBands { desired: configured.values().copied().collect(), ..ConfiguredBands::default() };
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
        let with_described = ConfiguredBands { described: [Priority(7)].into(), ..named([1]) };
        in_force.reconfigure(objectives([("a", 1)]), with_described, drop);
        assert_eq!(told.borrow_and_update().priorities(), [Priority(1), Priority(7)].into());
    }
}
