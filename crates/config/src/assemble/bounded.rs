//! Limits of endpoints that filters of the scheduling profiles bring along.

use std::sync::Arc;

use sluice_core::Time;
use sluice_flow::policy::{BookingLimit, EndpointFacts, Reading, Saturation, SaturationDetector};
use sluice_flow::{Load, Partition, Partitions};

use super::Assembler;
use crate::FlowControl;
use crate::resolve::{ProfileEntry, ResolvedFlowControl, ResolvedProfile};

impl Assembler<'_, '_> {
    /// Makes a detector that a profile lists as a filter bound what is booked on an endpoint, too. An endpoint that the
    /// filter finds full is then full for everybody, and requests wait for it instead of being refused.
    pub(super) fn bound_by_filters(
        &self,
        flow_control: &mut FlowControl,
        resolved: &ResolvedFlowControl,
        profiles: &[ResolvedProfile],
    ) {
        let gate = resolved.detector.as_ref().map(|detector| detector.value);
        let listed =
            profiles.iter().flat_map(|profile| &profile.entries).map(|ProfileEntry { instance, .. }| *instance);
        let others = listed.filter(|instance| Some(*instance) != gate);
        let detector = |instance: usize| {
            let roles = self.roles[instance].as_ref()?;
            roles.detector.clone().filter(|_| roles.filter.is_some())
        };
        let filters: Vec<_> = others.filter_map(detector).collect();
        if !filters.is_empty() {
            let gate = Arc::clone(&flow_control.config.detector);
            flow_control.config.detector = Arc::new(Bounded { gate, filters });
        }
    }
}

/// Measures as `gate` does, and books no more on an endpoint than every one of `filters` allows.
#[derive(Debug)]
struct Bounded {
    gate: Arc<dyn SaturationDetector>,
    filters: Vec<Arc<dyn SaturationDetector>>,
}

#[derive(Debug)]
struct BoundedState {
    gate: Box<dyn Saturation>,
    filters: Vec<Box<dyn Saturation>>,
}

impl SaturationDetector for Bounded {
    fn new_state(&self) -> Box<dyn Saturation> {
        let filters = self.filters.iter().map(|filter| filter.new_state()).collect();
        Box::new(BoundedState { gate: self.gate.new_state(), filters })
    }
}

impl Saturation for BoundedState {
    fn booking_limit(&self, endpoint: &EndpointFacts) -> BookingLimit {
        let limits = self.filters.iter().map(|filter| filter.booking_limit(endpoint));
        limits.fold(self.gate.booking_limit(endpoint), |all, one| BookingLimit {
            requests: all.requests.min(one.requests),
            tokens: all.tokens.min(one.tokens),
        })
    }

    fn reset(&mut self, pool: &[(EndpointFacts, Load)]) {
        self.gate.reset(pool);
    }

    fn charge(&mut self, partitions: Partitions, tokens: u64) {
        self.gate.charge(partitions, tokens);
    }

    fn discharge(&mut self, partitions: Partitions, tokens: u64) {
        self.gate.discharge(partitions, tokens);
    }

    fn load_changed(&mut self, endpoint: &EndpointFacts, before: Load, after: Load) {
        self.gate.load_changed(endpoint, before, after);
    }

    fn reading(&self, partition: Partition) -> Reading {
        self.gate.reading(partition)
    }

    fn endpoint_units(&self, endpoint: &EndpointFacts, load: Load) -> u64 {
        self.gate.endpoint_units(endpoint, load)
    }

    fn demand_units(&self, partition: Partition, load: Load) -> u64 {
        self.gate.demand_units(partition, load)
    }

    fn tokens_per_endpoint(&self) -> u64 {
        self.gate.tokens_per_endpoint()
    }

    fn in_its_terms(&self, units: u64) -> f64 {
        self.gate.in_its_terms(units)
    }

    fn is_stale(&self) -> bool {
        self.gate.is_stale()
    }

    fn next_change(&self) -> Option<Time> {
        self.gate.next_change()
    }

    fn advance(&mut self, now: Time) {
        self.gate.advance(now);
    }
}
