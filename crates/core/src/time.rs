use std::fmt;
use std::time::{Duration, Instant};

/// A point in time: nanoseconds since the process started.
///
/// Decisions take the time as an argument, so that a test or a replay owns it. 2^64 ns are 584 years;
/// arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the process.
    pub const ZERO: Self = Self(0);
    /// Later than every other point in time.
    pub const MAX: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `self + duration`, at most [`Time::MAX`].
    pub fn saturating_add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// `self - duration`, at least [`Time::ZERO`].
    pub fn saturating_sub(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }

    /// The time that has passed since `earlier`; zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Reads the present time. Held by the shells; pure code takes a [`Time`].
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Time;
}

/// The monotonic clock of the machine, counted from the moment this value was made.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The clock's instant for `time`, to hand to a timer.
    pub fn instant(&self, time: Time) -> Option<Instant> {
        self.start.checked_add(Duration::from_nanos(time.as_nanos()))
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        Time::ZERO.saturating_add(self.start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time::MAX.saturating_add(Duration::from_secs(1)), Time::MAX);
        assert_eq!(Time::ZERO.saturating_add(Duration::MAX), Time::MAX);
        assert_eq!(Time::from_secs(5).saturating_sub(Duration::MAX), Time::ZERO);
        assert_eq!(Time::from_secs(5).saturating_sub(Duration::from_secs(2)), Time::from_secs(3));
        assert_eq!(Time::ZERO.saturating_since(Time::MAX), Duration::ZERO);
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let clock = SystemClock::start();
        let first = clock.now();
        assert!(clock.now() >= first);
    }

    #[test]
    fn prints_seconds() {
        assert_eq!(Time::from_millis(1_500).to_string(), "1.500000000s");
    }
}
