use std::time::Duration;

use sluice_core::Time;

/// How long another number has to last before it is said: a new endpoint is silent until its first scrape.
const LASTING: Duration = Duration::from_secs(1);

/// The least time between two times that something is said.
const PAUSE: Duration = Duration::from_secs(10);

/// Tells when it is worth a word that the number of stale endpoints has changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StaleWatch {
    said: u64,
    last: Option<Time>,
    /// When the present number is said, if it is not what was said.
    due: Option<Time>,
}

impl StaleWatch {
    /// Takes note of the present number; tells whether it has to be said now.
    pub(crate) fn note(&mut self, now: Time, stale: u64) -> bool {
        if stale == self.said {
            self.due = None;
            return false;
        }
        let paused = self.last.map_or(Time::ZERO, |last| last.saturating_add(PAUSE));
        let due = *self.due.get_or_insert_with(|| now.saturating_add(LASTING).max(paused));
        if due > now {
            return false;
        }
        *self = Self { said: stale, last: Some(now), due: None };
        true
    }

    /// When [`StaleWatch::note`] has to be called again at the latest.
    pub(crate) const fn due(&self) -> Option<Time> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times, in ms, at which something was said; the number changes at `changes`, and is looked at every 100 ms.
    fn said(changes: &[(u64, u64)], until: u64) -> Vec<(u64, u64)> {
        let (mut watch, mut said) = (StaleWatch::default(), Vec::new());
        for millis in (0..until).step_by(100) {
            let stale = changes.iter().rev().find(|(at, _)| *at <= millis).map_or(0, |(_, stale)| *stale);
            if watch.note(Time::from_millis(millis), stale) {
                said.push((millis, stale));
            }
        }
        said
    }

    #[test]
    fn a_number_is_said_once_when_it_has_lasted() {
        assert_eq!(said(&[(500, 3)], 60_000), [(1_500, 3)]);
        assert_eq!(said(&[(500, 3), (1_400, 0)], 60_000), [], "a short silence is not worth a word");
        assert_eq!(said(&[(500, 3), (5_000, 0)], 60_000), [(1_500, 3), (11_500, 0)]);
    }

    #[test]
    fn a_number_that_goes_on_changing_is_said_now_and_then() {
        let changes: Vec<_> = (0..600).map(|n| (n * 100, n + 1)).collect();
        assert_eq!(said(&changes, 60_000).len(), 6);
    }

    #[test]
    fn the_watch_names_when_it_will_speak() {
        let mut watch = StaleWatch::default();
        assert_eq!(watch.due(), None);
        assert!(!watch.note(Time::from_secs(5), 1));
        assert_eq!(watch.due(), Some(Time::from_secs(6)));
        assert!(watch.note(Time::from_secs(6), 1));
        assert_eq!(watch.due(), None);
    }
}
