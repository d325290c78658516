use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use sluice_schedule::Scheduler;

/// The scheduler in force, which every router of a process places requests with, also those that have waited since before
/// it was.
///
/// Filters and admission may go by the same limits. If they changed one after the other, a request that is let in between
/// would find that every endpoint with room is left out, or the other way round: [`replace`](Self::replace) changes both
/// as one.
#[derive(Clone, Debug)]
pub struct SharedScheduler(Arc<RwLock<Scheduler>>);

impl SharedScheduler {
    pub fn new(scheduler: Scheduler) -> Self {
        Self(Arc::new(RwLock::new(scheduler)))
    }

    /// Puts `scheduler` in force together with what `together` does: whoever is placed sees both or neither.
    pub fn replace(&self, scheduler: Scheduler, together: impl FnOnce()) {
        let mut present = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *present = scheduler;
        together();
    }

    /// Nothing is replaced for as long as the guard lives.
    pub(crate) fn in_force(&self) -> RwLockReadGuard<'_, Scheduler> {
        // Whole whatever has panicked: it is replaced at once.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}
