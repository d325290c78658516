use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What wakes the follower. Any number of rings before it looks are one, so a flood of events costs no memory.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    rung: bool,
    stopped: bool,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// It rang, and `debounce` has passed since.
    Rung,
    /// It did not ring for `at_most`.
    Silent,
    /// For good.
    Stopped,
}

impl Bell {
    pub(crate) fn ring(&self) {
        self.lock().rung = true;
        self.changed.notify_all();
    }

    /// Every wait from now on returns [`Wake::Stopped`] at once.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits for a ring and then for `debounce`, so that rings in a row are answered together.
    pub(crate) fn wait(&self, at_most: Duration, debounce: Duration) -> Wake {
        let state = self.wait_while(self.lock(), at_most, |state| !state.rung && !state.stopped);
        if !state.rung && !state.stopped {
            return Wake::Silent;
        }
        let mut state = self.wait_while(state, debounce, |state| !state.stopped);
        // What rings from here on may be news that the coming look does not see.
        state.rung = false;
        if state.stopped { Wake::Stopped } else { Wake::Rung }
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        at_most: Duration,
        condition: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout_while(state, at_most, |state| condition(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn rings_in_a_row_are_one() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        assert_eq!(bell.wait(LONG, SHORT), Wake::Rung);
        assert_eq!(bell.wait(SHORT, SHORT), Wake::Silent);
    }

    #[test]
    fn a_stop_ends_every_wait_and_stays() {
        let bell = Bell::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| bell.wait(LONG, LONG));
            bell.ring();
            bell.stop();
            assert_eq!(waiting.join().unwrap(), Wake::Stopped);
        });
        assert_eq!(bell.wait(LONG, LONG), Wake::Stopped);
    }
}
