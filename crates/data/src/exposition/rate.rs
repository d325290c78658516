use std::time::Duration;

use sluice_core::Time;

/// How fast a counter grows.
#[derive(Clone, Debug, Default)]
pub(super) struct Rate {
    since: Option<(Time, f64)>,
    per_second: Option<f64>,
}

impl Rate {
    /// Over less time than this a counter of a few events per second says nothing.
    const WINDOW: Duration = Duration::from_secs(1);

    /// The growth per second, after the counter was seen to stand at `total` at `at`: over the last whole window, a
    /// second or more. None before the end of the first window, and of the first one after the counter fell, as it does
    /// where a server starts again.
    pub(super) fn observe(&mut self, at: Time, total: f64) -> Option<f64> {
        match self.since {
            Some((since, earlier)) if total >= earlier => {
                let passed = at.saturating_since(since);
                if passed >= Self::WINDOW {
                    self.per_second = Some((total - earlier) / passed.as_secs_f64());
                    self.since = Some((at, total));
                }
            }
            Some(_) | None => *self = Self { since: Some((at, total)), per_second: None },
        }
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_whole_window() {
        let mut rate = Rate::default();
        let mut at = |millis, total| rate.observe(Time::from_millis(millis), total);
        assert_eq!(at(0, 1000.0), None, "where it stands says nothing of its growth");
        assert_eq!(at(500, 1004.0), None);
        assert_eq!(at(1000, 1008.0), Some(8.0));
        assert_eq!(at(1500, 1100.0), Some(8.0), "the window is not over");
        assert_eq!(at(3000, 1108.0), Some(50.0));
    }

    #[test]
    fn a_counter_that_fell_begins_anew() {
        let mut rate = Rate::default();
        let mut at = |secs, total| rate.observe(Time::from_secs(secs), total);
        assert_eq!((at(0, 100.0), at(1, 110.0)), (None, Some(10.0)));
        assert_eq!(at(2, 3.0), None);
        assert_eq!(at(3, 7.0), Some(4.0));
    }
}
