//! Keeps part of the pool back from lower priorities.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Priority, Time};
use sluice_flow::policy::{BandView, UsageLimit, UsageLimitPolicy};

/// A ceiling per band that falls with its priority.
#[derive(Clone, Debug)]
pub struct PriorityHoldback {
    curve: Curve,
    max_ceiling: f64,
}

/// How the ceilings fall.
#[derive(Clone, Debug)]
pub enum Curve {
    /// In a straight line from the highest provisioned band down to `min_ceiling` for the lowest.
    Linear { domain: Domain, min_ceiling: f64 },
    /// As listed, from the highest priority down: a band takes the ceiling of the lowest listed priority that
    /// is not below its own.
    Explicit(Vec<(Priority, f64)>),
}

/// What the straight line runs over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// The band's place among the provisioned bands.
    #[default]
    Rank,
    /// The priority itself.
    Value,
}

impl PriorityHoldback {
    /// `max_ceiling` is the ceiling of the highest band, or of those above every listed one. Ceilings have to
    /// lie in `0.0..=1.0` and must not rise toward lower priority. Fails with all that is wrong.
    pub fn new(max_ceiling: f64, mut curve: Curve) -> Result<Self, Vec<HoldbackError>> {
        let is_in_range = max_ceiling > 0.0 && max_ceiling <= 1.0;
        let mut errors = Vec::new();
        if !is_in_range {
            errors.push(HoldbackError::MaxCeiling);
        }
        let highest = if is_in_range { max_ceiling } else { 1.0 };
        match &mut curve {
            Curve::Linear { min_ceiling, .. } => {
                if !(0.0..1.0).contains(min_ceiling) || *min_ceiling >= highest {
                    errors.push(HoldbackError::MinCeiling);
                }
            }
            Curve::Explicit(list) => {
                errors.extend(errors_in(list, highest));
                list.sort_by_key(|(priority, _)| Reverse(*priority));
            }
        }
        if errors.is_empty() { Ok(Self { curve, max_ceiling }) } else { Err(errors) }
    }
}

/// From the highest priority down.
fn errors_in(list: &[(Priority, f64)], highest: f64) -> Vec<HoldbackError> {
    let mut falling: Vec<_> = list.iter().copied().enumerate().collect();
    falling.sort_by_key(|(_, (priority, _))| Reverse(*priority));
    let mut errors = Vec::new();
    let (mut lowest, mut last) = (highest, None);
    for (index, (priority, ceiling)) in falling {
        if !(0.0..=1.0).contains(&ceiling) {
            errors.push(HoldbackError::OutOfRange { index });
        } else if last == Some(priority) {
            errors.push(HoldbackError::Twice { index });
        } else if ceiling > lowest {
            errors.push(HoldbackError::Rises { index });
        } else {
            lowest = ceiling;
        }
        last = Some(priority);
    }
    errors
}

/// Why a holdback cannot be made. An index is that of a listed ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldbackError {
    /// The highest ceiling is not in `(0.0, 1.0]`.
    MaxCeiling,
    /// The lowest ceiling is not in `[0.0, 1.0)`, or not below the highest.
    MinCeiling,
    /// The ceiling is not in `[0.0, 1.0]`.
    OutOfRange { index: usize },
    /// Its priority has a ceiling already.
    Twice { index: usize },
    /// The ceiling is above that of a higher priority.
    Rises { index: usize },
}

/// Either a straight line from `maxCeiling` down to `minCeiling`, or `ceilings` as listed.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct PriorityHoldbackParams {
    min_ceiling: Option<f64>,
    max_ceiling: Option<f64>,
    domain: Option<Domain>,
    shape: Option<Shape>,
    ceilings: Option<Vec<ListedCeiling>>,
}

/// There is no other yet.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Shape {
    Linear,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ListedCeiling {
    priority: i32,
    ceiling: f64,
}

impl Plugin for PriorityHoldback {
    const TYPE: &'static str = "priority-holdback-policy";
    const STABILITY: Stability = Stability::Stable;
    type Params = PriorityHoldbackParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let PriorityHoldbackParams { min_ceiling, max_ceiling, domain, shape, ceilings } = params;
        let curve = match (ceilings, min_ceiling) {
            (Some(list), None) => {
                if domain.is_some() || shape.is_some() {
                    let parameter = if domain.is_some() { "domain" } else { "shape" };
                    return Err(BuildError::new(parameter, "says nothing about ceilings that are listed"));
                }
                if list.is_empty() {
                    cx.warn("ceilings", "lists no ceiling: every band has maxCeiling");
                }
                Curve::Explicit(list.iter().map(|listed| (Priority(listed.priority), listed.ceiling)).collect())
            }
            (None, Some(min_ceiling)) => {
                let domain = domain.unwrap_or_default();
                cx.fill_in("domain", domain);
                cx.fill_in("shape", Shape::Linear);
                Curve::Linear { domain, min_ceiling }
            }
            (Some(_), Some(_)) => {
                return Err(BuildError::new("minCeiling", "ceilings are either listed or on a line, not both"));
            }
            (None, None) => return Err(BuildError::new("minCeiling", "is required, unless ceilings lists them")),
        };
        let max_ceiling = max_ceiling.unwrap_or(1.0);
        cx.fill_in("maxCeiling", max_ceiling);
        match Self::new(max_ceiling, curve) {
            Ok(holdback) => Ok(Roles::usage_limit(holdback)),
            Err(errors) => {
                errors.into_iter().for_each(|error| cx.report(error.told()));
                Ok(Roles::default())
            }
        }
    }
}

impl HoldbackError {
    fn told(self) -> BuildError {
        match self {
            Self::MaxCeiling => BuildError::new("maxCeiling", "is not above 0 and up to 1"),
            Self::MinCeiling => BuildError::new("minCeiling", "is not from 0 to below maxCeiling"),
            Self::OutOfRange { index } => BuildError::new(format!("ceilings[{index}].ceiling"), "is not from 0 to 1"),
            Self::Twice { index } => BuildError::new(format!("ceilings[{index}].priority"), "is listed twice"),
            Self::Rises { index } => {
                let message = "is above that of a higher priority: it would starve it";
                BuildError::new(format!("ceilings[{index}].ceiling"), message)
            }
        }
    }
}

impl UsageLimitPolicy for PriorityHoldback {
    fn new_state(&self) -> Box<dyn UsageLimit> {
        Box::new(self.clone())
    }
}

impl UsageLimit for PriorityHoldback {
    fn ceilings(&mut self, _: Time, bands: &[BandView], _: f64, ceilings: &mut [f64]) {
        match &self.curve {
            Curve::Linear { domain, min_ceiling } => linear(*domain, *min_ceiling, self.max_ceiling, bands, ceilings),
            Curve::Explicit(list) => {
                for (band, ceiling) in bands.iter().zip(ceilings) {
                    // The list falls, so the last entry that is not below is the lowest of them.
                    let above = list.partition_point(|(priority, _)| *priority >= band.priority);
                    let lowest = above.checked_sub(1).and_then(|index| list.get(index));
                    *ceiling = lowest.map_or(self.max_ceiling, |(_, ceiling)| *ceiling);
                }
            }
        }
    }
}

/// A band that only lingers takes no part in the line: it has the ceiling of the next provisioned band below,
/// or of the lowest where there is none.
fn linear(domain: Domain, min: f64, max: f64, bands: &[BandView], ceilings: &mut [f64]) {
    let provisioned = || bands.iter().filter(|band| band.provisioned).map(|band| band.priority);
    let count = provisioned().count();
    let (Some(highest), Some(lowest)) = (provisioned().next(), provisioned().next_back()) else {
        ceilings.fill(max);
        return;
    };
    let (highest, lowest) = (f64::from(highest.0), f64::from(lowest.0));
    let at = |rank: usize, priority: Priority| {
        if count == 1 {
            return max;
        }
        match domain {
            Domain::Rank => max - share(rank, count - 1) * (max - min),
            Domain::Value => min + (f64::from(priority.0) - lowest) / (highest - lowest) * (max - min),
        }
    };
    let mut rank = count;
    let mut below = None;
    for (band, ceiling) in bands.iter().zip(ceilings).rev() {
        if band.provisioned {
            rank -= 1;
            below = Some(at(rank, band.priority));
        }
        *ceiling = below.unwrap_or(if count == 1 { max } else { min });
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of bands")]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bands(list: &[(i32, bool)]) -> Vec<BandView> {
        list.iter().map(|&(priority, provisioned)| BandView { priority: Priority(priority), provisioned }).collect()
    }

    fn assert_ceilings(holdback: &PriorityHoldback, list: &[(i32, bool)], expected: &[f64]) {
        let bands = bands(list);
        let mut ceilings = vec![1.0; bands.len()];
        holdback.new_state().ceilings(Time::ZERO, &bands, 0.0, &mut ceilings);
        for (ceiling, expected) in ceilings.iter().zip(expected) {
            assert!((ceiling - expected).abs() < 1e-4, "{ceilings:?} is not {expected:?}");
        }
    }

    fn straight(domain: Domain, min_ceiling: f64, max: f64) -> PriorityHoldback {
        PriorityHoldback::new(max, Curve::Linear { domain, min_ceiling }).unwrap()
    }

    fn listed(list: &[(i32, f64)]) -> Result<PriorityHoldback, Vec<HoldbackError>> {
        PriorityHoldback::new(1.0, Curve::Explicit(list.iter().map(|&(p, c)| (Priority(p), c)).collect()))
    }

    const PROVISIONED: [(i32, bool); 3] = [(20, true), (0, true), (-10, true)];

    #[test]
    fn by_rank_the_steps_are_equal() {
        assert_ceilings(&straight(Domain::Rank, 0.4, 0.9), &PROVISIONED, &[0.9, 0.65, 0.4]);
        assert_ceilings(&straight(Domain::Rank, 0.4, 0.9), &[(0, true)], &[0.9]);
    }

    #[test]
    fn by_value_the_steps_follow_the_priorities() {
        assert_ceilings(&straight(Domain::Value, 0.4, 0.9), &PROVISIONED, &[0.9, 0.5667, 0.4]);
    }

    #[test]
    fn a_lingering_band_takes_no_rank() {
        let list = [(30, false), (20, true), (5, false), (0, true), (-10, true), (-20, false)];
        let expected = [0.9, 0.9, 0.65, 0.65, 0.4, 0.4];
        assert_ceilings(&straight(Domain::Rank, 0.4, 0.9), &list, &expected);
    }

    #[test]
    fn a_listed_ceiling_holds_down_to_the_next_listed_priority() {
        let holdback = listed(&[(0, 0.8), (100, 0.9), (-10, 0.6)]).unwrap();
        let list = [(200, true), (100, true), (50, false), (0, true), (-5, false), (-10, true), (-99, false)];
        assert_ceilings(&holdback, &list, &[1.0, 0.9, 0.9, 0.8, 0.8, 0.6, 0.6]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(listed(&[(0, 0.8), (10, 0.7)]).unwrap_err(), [HoldbackError::Rises { index: 0 }]);
        assert_eq!(listed(&[(0, 0.8), (0, 0.7)]).unwrap_err(), [HoldbackError::Twice { index: 1 }]);
        assert_eq!(listed(&[(0, 1.2)]).unwrap_err(), [HoldbackError::OutOfRange { index: 0 }]);
        let all = listed(&[(0, 0.8), (10, 0.7), (5, -0.1), (10, 0.6), (-1, 0.7)]).unwrap_err();
        let expected = [
            HoldbackError::Twice { index: 3 },
            HoldbackError::OutOfRange { index: 2 },
            HoldbackError::Rises { index: 0 },
        ];
        assert_eq!(all, expected);
        let linear = |max, min| PriorityHoldback::new(max, Curve::Linear { domain: Domain::Rank, min_ceiling: min });
        assert_eq!(linear(0.0, 0.0).unwrap_err(), [HoldbackError::MaxCeiling]);
        assert_eq!(linear(1.1, 0.5).unwrap_err(), [HoldbackError::MaxCeiling]);
        assert_eq!(linear(0.9, 0.9).unwrap_err(), [HoldbackError::MinCeiling]);
        assert_eq!(linear(0.9, -0.1).unwrap_err(), [HoldbackError::MinCeiling]);
        assert_eq!(linear(0.9, f64::NAN).unwrap_err(), [HoldbackError::MinCeiling]);
    }
}
