//! Whether the runtime that serves requests gets on. A task on it beats every second; somebody apart from it counts how
//! often they have looked since without hearing it.
//!
//! Whoever counts is held up by a busy or a frozen machine as well, and counts less then: only a runtime of which no thread
//! comes back is silent for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

/// Between two beats, and between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// So many looks without a beat mean that there will be none: a minute.
const MOST_SILENT_LOOKS: u32 = 60;

/// The beats of one runtime. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    beats: Arc<AtomicU64>,
    interval: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self::every(INTERVAL)
    }
}

impl Pulse {
    pub(crate) fn every(interval: Duration) -> Self {
        Self { beats: Arc::default(), interval }
    }

    /// Beats on the runtime it runs on, without an end.
    pub(crate) async fn beat(self) {
        loop {
            self.beats.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.interval).await;
        }
    }

    /// Looks, on another runtime and without an end. Tells each time whether the one that is to beat is stuck.
    pub(crate) async fn watch(self, mut tell: impl FnMut(bool)) {
        let mut looks = tokio::time::interval(self.interval);
        // Looks that were missed because nothing ran are not made up for.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silence = Silence::default();
        loop {
            looks.tick().await;
            tell(silence.look(self.beats.load(Ordering::Relaxed)));
        }
    }
}

#[derive(Debug, Default)]
struct Silence {
    heard: u64,
    looks: u32,
}

impl Silence {
    /// Whether it has lasted for too long.
    fn look(&mut self, beats: u64) -> bool {
        let is_silent = std::mem::replace(&mut self.heard, beats) == beats;
        self.looks = if is_silent { self.looks.saturating_add(1) } else { 0 };
        self.looks >= MOST_SILENT_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_minute_without_a_beat_is_too_long_and_one_beat_ends_it() {
        let mut silence = Silence::default();
        assert!(!silence.look(1));
        for look in 1..60 {
            assert!(!silence.look(1), "{look}");
        }
        assert!(silence.look(1) && silence.look(1));
        assert!(!silence.look(2));
        assert!((1..60).all(|_| !silence.look(2)), "it is counted anew");
        assert!(silence.look(2));
    }
}
