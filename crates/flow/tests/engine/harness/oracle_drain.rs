//! How fast the oracle's queues drain: what refused clients are told.

use sluice_core::Time;

const NANOS: u64 = 1_000_000_000;

/// Grants to those who had waited, and the time in which anybody waited, the only one that counts.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    waited_nanos: u64,
    /// When each grant was, in whole seconds of waiting.
    grants: Vec<u64>,
}

impl Drain {
    pub(crate) const fn pass(&mut self, from: Time, to: Time, anybody_waits: bool) {
        if anybody_waits {
            self.waited_nanos += to.as_nanos() - from.as_nanos();
        }
    }

    pub(crate) fn count_grant(&mut self) {
        self.grants.push(self.waited_nanos / NANOS);
    }

    /// Seconds until `ahead` requests are likely to have been granted, by the grants of the present second of waiting and
    /// the fifteen before it.
    pub(crate) fn retry_after(&self, ahead: u64) -> u8 {
        let first = (self.waited_nanos / NANOS).saturating_sub(15);
        let granted = self.grants.iter().filter(|&&second| second >= first).count() as u64;
        let nanos = (ahead.max(1) * (self.waited_nanos - first * NANOS)).div_ceil(granted.max(1));
        u8::try_from(nanos.div_ceil(NANOS).clamp(1, 15)).expect("it is small")
    }
}
