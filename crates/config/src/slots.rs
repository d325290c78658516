//! What the ceilings come to on one endpoint, for a person to look at.

use sluice_core::{Endpoint, Priority, Time};
use sluice_flow::policy::{BandView, EndpointFacts, SaturationDetector};
use sluice_flow::{Config, DesiredPriorities, EndpointKey, Load, Partition, Stages};

use crate::FlowControl;

/// How much of one endpoint a band may find in use and still be let in, where the saturation detector counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandSlots {
    pub priority: Priority,
    pub requests: Option<Slots>,
    pub tokens: Option<Slots>,
}

/// A band may enter while less than `band` of `all` are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    pub band: u64,
    pub all: u64,
}

impl FlowControl {
    /// The slots of the bands that are there from the start, on an endpoint without a limit of its own, from the highest
    /// priority down. Nothing where it is not the load that saturates an endpoint.
    pub fn slots(&self) -> Vec<BandSlots> {
        let requests = |load| Load { requests: load, tokens: 0 };
        let tokens = |load| Load { requests: 0, tokens: load };
        let detector = &*self.config.detector;
        let all_requests = first_saturated(detector, requests, 1.0);
        let all_tokens = first_saturated(detector, tokens, 1.0);
        let of = |all: Option<u64>, unit: fn(u64) -> Load, ceiling| {
            let all = all?;
            Some(Slots { band: first_saturated(detector, unit, ceiling)?, all })
        };
        let mut highest = 1.0;
        let bands = ceilings_at_start(&self.config, &self.desired).into_iter().map(|(priority, ceiling)| {
            // As the engine does: nobody is held back less than those above.
            highest = ceiling.min(highest);
            BandSlots {
                priority,
                requests: of(all_requests, requests, highest),
                tokens: of(all_tokens, tokens, highest),
            }
        });
        bands.filter(|band| band.requests.is_some() || band.tokens.is_some()).collect()
    }
}

/// The ceilings of the bands that are there before the first request, from the highest priority down.
pub(crate) fn ceilings_at_start(config: &Config, desired: &DesiredPriorities) -> Vec<(Priority, f64)> {
    let mut priorities = desired.clone();
    priorities.extend(config.bands.keys().copied());
    priorities.insert(Priority(0));
    let view = |priority| BandView { priority, provisioned: true };
    let bands: Vec<BandView> = priorities.into_iter().rev().map(view).collect();
    let mut ceilings = vec![1.0; bands.len()];
    config.usage_limit.new_state().ceilings(Time::ZERO, &bands, 0.0, &mut ceilings);
    bands.into_iter().map(|band| band.priority).zip(ceilings).collect()
}

/// The smallest load on the only endpoint of a pool that saturates it to `ceiling`; none if no load does, or if it is
/// saturated without any, as by a detector that waits to be told of the endpoint.
fn first_saturated(detector: &dyn SaturationDetector, unit: impl Fn(u64) -> Load, ceiling: f64) -> Option<u64> {
    let endpoint = EndpointFacts { key: EndpointKey(0), partitions: Stages::BOTH.partitions(), max_concurrency: None };
    let mut state = detector.new_state();
    let mut saturation = |load: u64| {
        state.reset(&[(endpoint, unit(load))]);
        state.reading(Partition::Pool).saturation()
    };
    if saturation(0) > 0.0 || saturation(Endpoint::MAX_LIMIT) < 1.0 {
        return None;
    }
    // Saturation does not fall with the load.
    let (mut below, mut at) = (0, Endpoint::MAX_LIMIT);
    if ceiling <= 0.0 {
        return Some(0);
    }
    while at - below > 1 {
        let middle = below + (at - below) / 2;
        if saturation(middle) >= ceiling { at = middle } else { below = middle }
    }
    Some(at)
}
