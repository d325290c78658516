//! One ceiling for all bands.

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
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

#[derive(Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StaticUsageLimitParams {
    /// The saturation from which on every band is gated, above 0 and up to 1.
    threshold: f64,
}

impl Default for StaticUsageLimitParams {
    fn default() -> Self {
        Self { threshold: StaticUsageLimit::default().threshold }
    }
}

impl Plugin for StaticUsageLimit {
    const TYPE: &'static str = "static-usage-limit-policy";
    const STABILITY: Stability = Stability::Beta;
    type Params = StaticUsageLimitParams;

    fn build(params: Self::Params, _: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let StaticUsageLimitParams { threshold } = params;
        let limit = Self::new(threshold)
            .ok_or_else(|| BuildError::new("threshold", format!("{threshold} is not above 0 and up to 1")))?;
        Ok(Roles::usage_limit(limit))
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
        for (threshold, valid) in
            [(0.0, false), (0.5, true), (1.0, true), (1.01, false), (-1.0, false), (f64::NAN, false)]
        {
            assert_eq!(StaticUsageLimit::new(threshold).is_some(), valid, "{threshold}");
        }
    }
}
