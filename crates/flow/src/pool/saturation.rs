//! How full the pool is, as its detector has it, and how full it will be once revoked leases have ended.

use sluice_core::{Scraped, Time};

use super::Pool;
use crate::load::{EndpointKey, Load, Partition, Partitions, PerPartition, Stages};
use crate::policy::{Estimate, Reading, Saturation};
use crate::start::Booking;

impl Pool {
    pub(crate) const fn effective(&self) -> Partitions {
        self.effective
    }

    pub(crate) const fn readings(&self) -> &PerPartition<Reading> {
        &self.readings
    }

    pub(crate) fn saturation(&self) -> &dyn Saturation {
        &*self.saturation
    }

    /// The saturation goes by what endpoints say of themselves.
    pub(crate) const fn estimates(&self) -> bool {
        self.estimates
    }

    /// The part of the saturation that does so.
    pub(crate) fn estimate(&self) -> Option<&dyn Estimate> {
        // Asked on every pass: most saturations are known not to have one.
        if self.estimates { self.saturation.estimate() } else { None }
    }

    /// The worst of the partitions the gate looks at; 1 for an empty pool.
    pub(crate) fn worst(&self) -> f64 {
        let readings = self.effective.iter().map(|partition| self.readings[partition as usize].saturation());
        readings.reduce(f64::max).unwrap_or(1.0)
    }

    /// The endpoints to scrape because somebody waits, and when to ask again.
    pub(crate) fn doubtful(&mut self, now: Time) -> (Vec<EndpointKey>, Option<Time>) {
        let mut endpoints = Vec::new();
        let again = self.saturation.estimate_mut().and_then(|estimate| estimate.doubtful(now, &mut endpoints));
        (endpoints, again)
    }

    /// Takes note of what an endpoint says of itself; tells whether that makes a difference.
    pub(crate) fn scraped(&mut self, now: Time, key: EndpointKey, sample: &Scraped) -> bool {
        let inherits = self.inherit(now, key, sample);
        let Some(state) = self.endpoints.get(&key).filter(|state| state.in_pool) else { return false };
        let Some(estimate) = self.saturation.estimate_mut() else { return inherits };
        estimate.scraped(now, &state.facts, sample);
        self.refresh_readings();
        true
    }

    /// Measures with another detector, which takes over what the former one has learned of endpoints if it can. `charges`
    /// are the unstarted leases; `starts` tells where the started ones run, and since when.
    pub(crate) fn replace_saturation(
        &mut self,
        now: Time,
        saturation: Box<dyn Saturation>,
        charges: impl IntoIterator<Item = (Partitions, u64)>,
        starts: impl IntoIterator<Item = (EndpointKey, Time)>,
    ) {
        let known = self.saturation.estimate_mut().map(Estimate::hand_over);
        self.saturation = saturation;
        let estimate = self.saturation.estimate_mut();
        self.estimates = estimate.is_some();
        let goes_on = known.zip(estimate).is_some_and(|(known, estimate)| estimate.take_over(now, known));
        if self.estimates {
            self.forget_inherited();
        }
        for (partitions, tokens) in charges {
            self.saturation.charge(partitions, tokens);
        }
        for state in self.endpoints.values_mut() {
            state.limit = self.saturation.booking_limit(&state.facts);
        }
        self.reset_saturation(now, starts.into_iter().filter(|_| !goes_on));
        for key in self.present.clone() {
            self.refresh_ready(key);
        }
    }

    pub(super) fn reset_saturation(&mut self, now: Time, starts: impl IntoIterator<Item = (EndpointKey, Time)>) {
        let states: Vec<_> = self.present.iter().map(|key| &self.endpoints[key]).collect();
        let facts: Vec<_> = states.iter().map(|state| (state.facts, state.weight(state.load))).collect();
        self.saturation.reset(&facts);
        self.leaving = PerPartition::default();
        if let Some(estimate) = self.saturation.estimate_mut() {
            for (key, at) in starts {
                if let Some(state) = self.endpoints.get(&key) {
                    estimate.started(&state.facts, at);
                }
            }
            for state in states {
                if let Some(sample) = state.endpoint.scraped() {
                    estimate.scraped(now, &state.facts, &sample);
                }
            }
        } else {
            for state in self.endpoints.values() {
                state.update_leaving(&mut self.leaving, 0, &*self.saturation);
            }
        }
        self.refresh_readings();
    }

    pub(crate) fn advance(&mut self, now: Time) {
        self.saturation.advance(now);
        self.refresh_readings();
    }

    pub(super) fn refresh_readings(&mut self) {
        for partition in self.effective.iter() {
            self.readings[partition as usize] = self.saturation.reading(partition);
        }
    }

    pub(crate) fn charge(&mut self, stages: Stages, tokens: u64) {
        self.saturation.charge(stages.partitions(), tokens);
        self.refresh_readings();
    }

    pub(crate) fn discharge(&mut self, stages: Stages, tokens: u64) {
        self.saturation.discharge(stages.partitions(), tokens);
        self.refresh_readings();
    }

    /// Changes what of the load on `key` is about to end.
    pub(crate) fn change_revoking(&mut self, key: EndpointKey, change: impl FnOnce(&mut Load)) {
        let Self { endpoints, saturation, leaving, estimates, .. } = self;
        let Some(state) = endpoints.get_mut(&key) else { return };
        if *estimates {
            change(&mut state.revoking);
            return;
        }
        let before = state.units_leaving(&**saturation);
        change(&mut state.revoking);
        state.update_leaving(leaving, before, &**saturation);
    }

    /// The load of the partitions the gate looks at, once every revoked lease has ended.
    pub(crate) fn load_staying(&self) -> PerPartition<u64> {
        let leaving = self.estimate().map_or(self.leaving, |estimate| self.expected_to_leave(estimate));
        let mut staying = PerPartition::default();
        for at in self.effective.iter().map(|partition| partition as usize) {
            debug_assert!(self.readings[at].load >= leaving[at], "more leaves than there is");
            staying[at] = self.readings[at].load.saturating_sub(leaving[at]);
        }
        staying
    }

    /// What the ends of revoked leases will take off the readings as they are now.
    fn expected_to_leave(&self, estimate: &dyn Estimate) -> PerPartition<u64> {
        let mut leaving = PerPartition::default();
        for state in self.present.iter().filter_map(|key| self.endpoints.get(key)) {
            let units = estimate.leaving_units(&state.facts, state.load, state.revoking);
            for partition in state.facts.partitions.iter() {
                leaving[partition as usize] += units;
            }
        }
        leaving
    }

    /// The most that the end of `booking` takes off each partition of the present pool.
    pub(crate) fn weight_alone(&self, booking: &Booking) -> PerPartition<u64> {
        let mut weight = PerPartition::default();
        if let Some(state) = self.endpoint(booking.endpoint) {
            let units = self.saturation.most_freed(&state.facts, Load::one(booking.tokens));
            for partition in state.facts.partitions.iter() {
                weight[partition as usize] = units;
            }
        }
        weight
    }
}

/// Those that the gate looks at where these have endpoints: stages, or the pool where it has none.
pub(super) fn gating(populated: Partitions) -> Partitions {
    let stages = [Partition::Prefill, Partition::Decode].into_iter().filter(|stage| populated.contains(*stage));
    let stages = stages.fold(Partitions::NONE, Partitions::with);
    if stages == Partitions::NONE { populated } else { stages }
}
