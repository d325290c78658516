//! Limits of endpoints that filters of the scheduling profiles bring along.

use std::sync::Arc;

use sluice_core::{Endpoint, Time};
use sluice_flow::policy::{BookingLimit, EndpointFacts, Estimate, Reading, Saturation, SaturationDetector};
use sluice_flow::{EndpointKey, Load, Partition, Partitions, Stages};

use super::Assembler;
use crate::FlowControl;
use crate::diagnostics::Remark;
use crate::resolve::{Choice, ProfileEntry, ResolvedFlowControl, ResolvedProfile};

impl Assembler<'_, '_> {
    /// Makes a detector that a profile lists as a filter bound what is booked on an endpoint, too. An endpoint that the
    /// filter finds full is then full for everybody, and requests wait for it instead of being refused.
    /// One that fills the endpoints before the gate could close is warned of: then nobody waits at the gate, and neither
    /// ceilings nor turns mean anything.
    pub(super) fn bound_by_filters(
        &mut self,
        flow_control: &mut FlowControl,
        resolved: &ResolvedFlowControl,
        profiles: &[ResolvedProfile],
    ) {
        let gate = match resolved.detector {
            Some(Choice::Declared(detector)) => Some(detector.value),
            Some(Choice::Default(_)) | None => None,
        };
        let gate_name = self.chosen_name(resolved.detector).unwrap_or_default().to_owned();
        let mut filters = Vec::new();
        for ProfileEntry { instance, node, .. } in profiles.iter().flat_map(|profile| &profile.entries) {
            let Some(roles) = self.roles[*instance].as_ref().filter(|_| Some(*instance) != gate) else { continue };
            let Some(filter) = roles.detector.clone().filter(|_| roles.filter.is_some()) else { continue };
            if !closes_when_full(&*flow_control.config.detector, &*filter) {
                let (filter, gate) = (&self.instances[*instance].name, &gate_name);
                let message = format!(
                    "endpoints are full for {filter:?} before the gate, {gate:?}, is closed: requests wait for an \
                     endpoint, past the ceilings of their bands and the turns of their tenants"
                );
                let hint = format!("give {filter:?} limits as high as those of {gate:?}, or make it the gate");
                self.warn(*node, Remark::new(message).hint(hint));
            }
            filters.push(filter);
        }
        if !filters.is_empty() {
            let gate = Arc::clone(&flow_control.config.detector);
            let bind = |gate, filters| Arc::new(Bounded { gate, filters }) as Arc<dyn SaturationDetector>;
            flow_control.config.detector = self.kept.bound(gate, filters, bind);
        }
    }
}

/// Whether `gate` may find a pool saturated whose endpoints have as much in flight as `filter` lets them.
fn closes_when_full(gate: &dyn SaturationDetector, filter: &dyn SaturationDetector) -> bool {
    let endpoint = EndpointFacts { key: EndpointKey(0), partitions: Stages::BOTH.partitions(), max_concurrency: None };
    let BookingLimit { requests, tokens } = filter.new_state().booking_limit(&endpoint);
    let full = Load { requests: requests.min(Endpoint::MAX_LIMIT), tokens: tokens.min(Endpoint::MAX_LIMIT) };
    let mut state = gate.new_state();
    state.reset(&[(endpoint, full)]);
    state.reading(Partition::Pool).saturation() >= 1.0
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

    fn supports_eviction(&self) -> bool {
        self.gate.supports_eviction()
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

    fn most_freed(&self, endpoint: &EndpointFacts, load: Load) -> u64 {
        self.gate.most_freed(endpoint, load)
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

    fn estimate(&self) -> Option<&dyn Estimate> {
        self.gate.estimate()
    }

    fn estimate_mut(&mut self) -> Option<&mut dyn Estimate> {
        self.gate.estimate_mut()
    }
}
