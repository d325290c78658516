//! The rules in force by which models are replaced: those of Kubernetes, and behind them those of the configuration.

use std::sync::{Arc, Mutex, PoisonError};

use sluice_router::{RewriteRule, SharedModelRewrites};

/// Keeps requests informed of the rules. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct RewritesInForce(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    configured: Vec<RewriteRule>,
    live: Vec<RewriteRule>,
    shared: SharedModelRewrites,
}

impl RewritesInForce {
    /// Those of the configuration, in the order in which they count.
    pub(crate) fn new(configured: Vec<RewriteRule>) -> Self {
        let state = State { configured, live: Vec::new(), shared: SharedModelRewrites::default() };
        state.put_in_force();
        Self(Arc::new(Mutex::new(state)))
    }

    /// What requests go by.
    pub(crate) fn shared(&self) -> SharedModelRewrites {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).shared.clone()
    }

    /// Puts those of Kubernetes in force in place of those it had before.
    pub(crate) fn follow_kubernetes(&self, live: Vec<RewriteRule>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.live = live;
        state.put_in_force();
    }

    /// Puts those of another configuration in force.
    pub(crate) fn reconfigure(&self, configured: Vec<RewriteRule>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.configured = configured;
        state.put_in_force();
    }
}

impl State {
    fn put_in_force(&self) {
        self.shared.replace(self.live.iter().chain(&self.configured).cloned().collect());
    }
}
