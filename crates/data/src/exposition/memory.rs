use std::time::Duration;

use sluice_core::Time;

/// What an endpoint has named is missed for so long when it no longer does. After that it is taken for one that never will.
pub(super) const MEMORY: Duration = Duration::from_secs(10);

/// How many series a reading lately had: with fewer of them the sum of all is not known, or the largest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeriesCount {
    most: usize,
    /// When there were so many.
    seen: Time,
}

impl SeriesCount {
    /// Takes note of a page at `at` that has `count` of them; tells whether those are all.
    pub(super) fn note(&mut self, at: Time, count: usize) -> bool {
        let are_all = count >= self.most || at.saturating_since(self.seen) >= MEMORY;
        if are_all {
            *self = Self { most: count, seen: at };
        }
        are_all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_series_than_lately_are_not_all() {
        let mut series = SeriesCount::default();
        let mut at = |millis, count| series.note(Time::from_millis(millis), count);
        assert!(at(0, 2) && at(50, 2));
        assert!(!at(100, 1) && !at(10_049, 1), "one of them has gone");
        assert!(at(10_050, 1), "it does not come back");
        assert!(at(10_100, 3) && !at(10_150, 2));
    }
}
