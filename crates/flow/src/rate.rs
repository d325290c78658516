//! How fast queues drain, to tell refused clients when to come back.

use sluice_core::Time;

/// The longest answer, in seconds.
const LONGEST: u8 = 15;

/// One more than the longest answer: where nothing was granted for so long, that is what is said.
const SECONDS: usize = LONGEST as usize + 1;

const NANOS: u64 = 1_000_000_000;

/// Counts grants to those who had waited over the time in which anybody waited.
///
/// Time in which nobody waits says nothing about how fast a queue would drain, nor do grants through an open gate. So
/// the clock of the count stands still meanwhile, and after a quiet spell what was known before is still known.
#[derive(Clone, Debug, Default)]
pub(crate) struct DrainRate {
    /// Grants in each of the last seconds of waiting, by second modulo the length.
    buckets: [u64; SECONDS],
    /// The second that is being counted.
    second: u64,
    /// Nanoseconds of waiting in earlier spells.
    waited: u64,
    /// When the present spell began; none while nobody waits.
    since: Option<Time>,
}

impl DrainRate {
    /// From now on somebody waits.
    pub(crate) const fn resume(&mut self, now: Time) {
        self.since = Some(now);
    }

    /// From now on nobody waits.
    pub(crate) fn pause(&mut self, now: Time) {
        self.waited = self.clock(now);
        self.since = None;
    }

    /// One that had waited was granted.
    pub(crate) fn count(&mut self, now: Time) {
        self.turn_to(now);
        self.buckets[bucket(self.second)] += 1;
    }

    /// Seconds until `queued` requests, or at least one, are likely to have been granted, in `1..=15`. Where none was
    /// granted yet, the first is taken to be due.
    pub(crate) fn seconds_for(&mut self, now: Time, queued: u64) -> u8 {
        self.turn_to(now);
        let granted: u64 = self.buckets.iter().sum();
        let counted_since = self.second.saturating_sub(SECONDS as u64 - 1) * NANOS;
        let elapsed = self.clock(now) - counted_since;
        let nanos = (u128::from(queued.max(1)) * u128::from(elapsed)).div_ceil(u128::from(granted.max(1)));
        u8::try_from(nanos.div_ceil(u128::from(NANOS))).unwrap_or(LONGEST).clamp(1, LONGEST)
    }

    /// Nanoseconds of waiting up to `now`.
    fn clock(&self, now: Time) -> u64 {
        self.waited + self.since.map_or(0, |since| now.as_nanos() - since.as_nanos())
    }

    fn turn_to(&mut self, now: Time) {
        let second = self.clock(now) / NANOS;
        let passed = (second - self.second).min(SECONDS as u64);
        for emptied in second - passed..second {
            self.buckets[bucket(emptied + 1)] = 0;
        }
        self.second = second;
    }
}

fn bucket(second: u64) -> usize {
    usize::try_from(second % SECONDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody has waited from the beginning, and so many were granted in the middle of each second.
    fn draining(per_second: u64, seconds: std::ops::Range<u64>) -> DrainRate {
        let mut rate = DrainRate::default();
        rate.resume(Time::ZERO);
        for second in seconds {
            for _ in 0..per_second {
                rate.count(Time::from_millis(second * 1000 + 500));
            }
        }
        rate
    }

    #[test]
    fn the_wait_is_the_queue_over_the_rate() {
        let mut rate = draining(20, 0..30);
        let now = Time::from_secs(30);
        assert_eq!(rate.seconds_for(now, 100), 5);
        assert_eq!(rate.seconds_for(now, 101), 6);
        assert_eq!(rate.seconds_for(now, 0), 1);
        assert_eq!(rate.seconds_for(now, 1_000_000), 15);
    }

    #[test]
    fn a_quiet_spell_changes_nothing() {
        let mut rate = draining(2, 0..30);
        let before = rate.seconds_for(Time::from_secs(30), 10);
        assert_eq!(before, 5);
        rate.pause(Time::from_secs(30));
        assert_eq!(rate.seconds_for(Time::from_secs(3_600), 10), before);
        rate.resume(Time::from_secs(7_200));
        assert_eq!(rate.seconds_for(Time::from_secs(7_200), 10), before);
    }

    #[test]
    fn an_engine_in_which_nobody_has_waited_says_to_come_back_at_once() {
        let mut rate = DrainRate::default();
        assert_eq!(rate.seconds_for(Time::from_secs(1_000), 0), 1);
        rate.resume(Time::from_secs(1_000));
        assert_eq!(rate.seconds_for(Time::from_millis(1_000_200), 5), 1);
    }

    #[test]
    fn a_queue_that_does_not_move_says_later_and_later() {
        let mut rate = DrainRate::default();
        rate.resume(Time::ZERO);
        assert_eq!([1, 5, 9, 60].map(|second| rate.seconds_for(Time::from_secs(second), 1)), [1, 5, 9, 15]);
        assert_eq!(rate.seconds_for(Time::from_secs(60), 0), 15, "whoever was in it is out of luck as well");
    }

    #[test]
    fn old_grants_are_forgotten_in_the_time_that_others_wait() {
        let mut rate = draining(20, 0..30);
        assert_eq!(rate.seconds_for(Time::from_secs(100), 1), 15);
        rate.count(Time::from_secs(100));
        assert_eq!(rate.seconds_for(Time::from_secs(100), 1), 15);
        rate.count(Time::from_secs(100));
        assert_eq!(rate.seconds_for(Time::from_secs(100), 1), 8);
        // The window slides by whole seconds: at 116 all that is left was granted since 101.
        for _ in 0..32 {
            rate.count(Time::from_secs(115));
        }
        assert_eq!(rate.seconds_for(Time::from_secs(116), 30), 15);
    }
}
