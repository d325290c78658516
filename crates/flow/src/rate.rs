use sluice_core::Time;

const SECONDS: usize = 10;
const NANOS: u64 = 1_000_000_000;

/// Counts grants over the last ten whole seconds, to tell refused clients when to come back.
#[derive(Clone, Debug, Default)]
pub(crate) struct GrantRate {
    /// Grants in each second, by second modulo the length.
    buckets: [u64; SECONDS],
    /// The second that is being counted.
    second: u64,
}

impl GrantRate {
    pub(crate) fn count(&mut self, now: Time) {
        self.turn_to(now);
        self.buckets[bucket(self.second)] += 1;
    }

    /// Seconds until `queued` requests are likely to have been granted, in `1..=15`.
    pub(crate) fn seconds_for(&mut self, now: Time, queued: u64) -> u8 {
        self.turn_to(now);
        let granted: u64 = self.buckets.iter().sum();
        let elapsed = (now.as_nanos() / NANOS + 1).min(SECONDS as u64);
        let seconds = match granted {
            0 => 15,
            granted => queued.saturating_mul(elapsed).div_ceil(granted).clamp(1, 15),
        };
        u8::try_from(seconds).unwrap_or(15)
    }

    fn turn_to(&mut self, now: Time) {
        let second = now.as_nanos() / NANOS;
        let passed = second.saturating_sub(self.second).min(SECONDS as u64);
        for step in 1..=passed {
            self.buckets[bucket(second - passed + step)] = 0;
        }
        self.second = self.second.max(second);
    }
}

fn bucket(second: u64) -> usize {
    usize::try_from(second % SECONDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(rate: &mut GrantRate, per_second: u64, seconds: std::ops::Range<u64>) {
        for second in seconds {
            for _ in 0..per_second {
                rate.count(Time::from_secs(second));
            }
        }
    }

    #[test]
    fn the_wait_is_the_queue_over_the_rate() {
        let mut rate = GrantRate::default();
        granted(&mut rate, 20, 0..30);
        let now = Time::from_secs(29);
        assert_eq!(rate.seconds_for(now, 100), 5);
        assert_eq!(rate.seconds_for(now, 101), 6);
        assert_eq!(rate.seconds_for(now, 0), 1);
        assert_eq!(rate.seconds_for(now, 1_000_000), 15);
    }

    #[test]
    fn old_grants_are_forgotten() {
        let mut rate = GrantRate::default();
        granted(&mut rate, 20, 0..30);
        assert_eq!(rate.seconds_for(Time::from_secs(100), 1), 15);
        rate.count(Time::from_secs(100));
        assert_eq!(rate.seconds_for(Time::from_secs(100), 1), 10);
    }

    #[test]
    fn a_young_process_does_not_count_seconds_it_did_not_live() {
        let mut rate = GrantRate::default();
        granted(&mut rate, 10, 0..1);
        assert_eq!(rate.seconds_for(Time::from_millis(900), 20), 2);
    }
}
