//! One ceiling for all bands.

use sluice_core::Time;
use sluice_flow::policy::{BandView, UsageLimit, UsageLimitPolicy};

/// Every band may fill the pool up to the same saturation.
#[derive(Clone, Copy, Debug)]
pub struct StaticUsageLimit {
    threshold: f64,
}

impl StaticUsageLimit {
    /// `threshold` in `(0.0, 1.0]`; `None` outside.
    pub fn new(threshold: f64) -> Option<Self> {
        (threshold > 0.0 && threshold <= 1.0).then_some(Self { threshold })
    }
}

impl Default for StaticUsageLimit {
    fn default() -> Self {
        Self { threshold: 1.0 }
    }
}

impl UsageLimitPolicy for StaticUsageLimit {
    fn new_state(&self) -> Box<dyn UsageLimit> {
        Box::new(*self)
    }
}

impl UsageLimit for StaticUsageLimit {
    fn ceilings(&mut self, _: Time, _: &[BandView], _: f64, ceilings: &mut [f64]) {
        ceilings.fill(self.threshold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_lies_above_zero_and_at_most_at_one() {
        for (threshold, valid) in [(0.0, false), (0.5, true), (1.0, true), (1.01, false), (-1.0, false), (f64::NAN, false)]
        {
            assert_eq!(StaticUsageLimit::new(threshold).is_some(), valid, "{threshold}");
        }
    }
}
