//! Notices that a proxy gives waiting requests up by its own clock.
//!
//! Outside full duplex a proxy waits for an answer for its `message_timeout` only (200 ms where nobody set it), and then
//! ends the stream exactly as it does when a client leaves. But clients leave at all times, and clocks are set to round
//! ones: [`SUSPICIOUS`] ends in a row at the same round age are worth a word. Clients may have such a clock as well.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// So many ends in a row at the same round age are hardly an accident.
const SUSPICIOUS: u32 = 3;

/// Ages that somebody may have set, in milliseconds.
const ROUND: [u64; 17] = [
    200, 250, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 15_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000,
    1_000_000, 1_800_000,
];

#[derive(Debug, Default)]
pub(crate) struct GaveUpWatch(Mutex<Row>);

#[derive(Debug, Default)]
struct Row {
    age: Option<Duration>,
    length: u32,
}

impl GaveUpWatch {
    /// The stream of a waiting request has ended at this age. Tells the round age if it is time to speak of it.
    pub(crate) fn ended(&self, age: Duration) -> Option<Duration> {
        let mut row = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let round = round(age);
        row.length = if round.is_some() && round == row.age { row.length.saturating_add(1) } else { 1 };
        row.age = round;
        round.filter(|_| row.length >= SUSPICIOUS)
    }
}

/// The round age that `age` is, within a twentieth. A timer is never early, but the message took some time to get here.
fn round(age: Duration) -> Option<Duration> {
    let near = |round: &Duration| age.abs_diff(*round) <= *round / 20;
    ROUND.map(Duration::from_millis).into_iter().find(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(ages: &[u64]) -> Vec<Option<u64>> {
        let watch = GaveUpWatch::default();
        let verdict = |&age| watch.ended(Duration::from_millis(age)).map(|round| round.as_secs());
        ages.iter().map(verdict).collect()
    }

    #[test]
    fn ends_in_a_row_at_the_same_round_age_are_told() {
        assert_eq!(verdicts(&[1_004, 1_050, 960, 1_001]), [None, None, Some(1), Some(1)]);
        assert_eq!(verdicts(&[29_990, 30_000, 30_100]), [None, None, Some(30)]);
    }

    #[test]
    fn clients_that_leave_when_they_like_are_not_told() {
        assert_eq!(verdicts(&[1_000, 1_000, 1_100, 1_000, 1_000]), [None; 5]);
        assert_eq!(verdicts(&[1_000, 5_000, 10_000, 1_000]), [None; 4]);
        assert_eq!(verdicts(&[1_300; 9]), [None; 9]);
        assert_eq!(verdicts(&[0; 9]), [None; 9]);
    }
}
