//! What can be seen of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Endpoint, Time};

use super::Engine;
use crate::item::State;
use crate::load::{EndpointKey, Load};
use crate::policy::BookingLimit;
use crate::stats::{BandStats, FlowStats, RevocationStats, Stats};
use crate::ticket::FlowId;

impl Engine {
    /// A copy of the sizes, waits, ceilings and counts at `now`. Linear in what waits and what is in flight:
    /// for a scrape, not for every request.
    pub fn stats(&self, now: Time) -> Stats {
        let Self {
            now: _,
            config,
            items: _,
            places: _,
            expiry: _,
            expiry_positions: _,
            links: _,
            bands: _,
            desired: _,
            many_bands: _,
            pool,
            regime: _,
            usage_limit: _,
            ceilings_due: _,
            band_views: _,
            ceilings: _,
            hinted: _,
            hinted_granted: _,
            victims: _,
            revocations,
            waiting,
            leases,
            sequence: _,
            starts: _,
            closed,
            rate: _,
            totals,
            flattened_ceilings,
            invalid_ttls,
            revocation_stats,
            reclaim_target,
            next_ask: _,
            stale_watch: _,
            effects: _,
            violations,
        } = self;
        let saturation = pool.effective().iter().map(|part| (part, pool.readings()[part as usize].saturation()));
        Stats {
            waiting: *waiting,
            global: config.global,
            bands: self.band_stats(now),
            leases: *leases,
            saturation: saturation.collect(),
            effective_saturation: pool.worst(),
            dry_run_ceilings: config.dry_run.ceilings,
            endpoints: pool.endpoint_stats(now),
            stale_endpoints: pool.estimate().map(|estimate| estimate.stale_endpoints()),
            totals: totals.clone(),
            flattened_ceilings: *flattened_ceilings,
            invalid_ttls: *invalid_ttls,
            revocations: RevocationStats { outstanding: revocations.outstanding, ..*revocation_stats },
            reclaim_target: pool.saturation().in_its_terms(*reclaim_target),
            closed: *closed,
            violations: *violations,
        }
    }

    /// The endpoints of the present pool, each with the most that may be booked on it. They change with every
    /// [`Signal`](crate::Signal), and when [`Engine::limits_changed`] says so.
    pub fn booking_limits(&self) -> impl Iterator<Item = (&Arc<Endpoint>, BookingLimit)> {
        self.pool.booking_limits()
    }

    /// Whether booking limits have changed with time, or by what an endpoint said, since this was last asked.
    pub const fn limits_changed(&mut self) -> bool {
        self.pool.limits_changed()
    }

    fn band_stats(&self, now: Time) -> Vec<BandStats> {
        // The first arrival among what waits, by priority and flow; and how many of it are parked.
        let mut oldest: BTreeMap<(i32, FlowId), Time> = BTreeMap::new();
        let mut parked: BTreeMap<i32, u64> = BTreeMap::new();
        let mut started = self.started();
        for item in self.items.values().filter(|item| item.is_waiting()) {
            let first = oldest.entry((item.priority.0, item.flow)).or_insert(item.arrival);
            *first = (*first).min(item.arrival);
            if matches!(item.state, State::Parked) {
                *parked.entry(item.priority.0).or_default() += 1;
            }
        }
        let bands = self.bands.iter().map(|band| {
            let wait = |flow| {
                let first = oldest.get(&(band.priority.0, flow));
                first.map_or(Duration::ZERO, |first| now.saturating_since(*first))
            };
            let flows: Vec<FlowStats> = band
                .flows
                .iter()
                .map(|(id, flow)| FlowStats {
                    tenant: Arc::clone(&flow.tenant),
                    waiting: flow.waiting,
                    oldest_wait: wait(id),
                    in_flight: flow.in_flight,
                    capped: flow.capped,
                    started: started.remove(&(band.priority.0, id)).unwrap_or_default(),
                })
                .collect();
            BandStats {
                priority: band.priority,
                waiting: band.waiting,
                parked: parked.get(&band.priority.0).copied().unwrap_or_default(),
                oldest_wait: flows.iter().map(|flow| flow.oldest_wait).max().unwrap_or_default(),
                max_requests: band.config.max_requests,
                max_bytes: band.config.max_bytes,
                ceiling: band.ceiling,
                gated: !band.gate.clone().is_open(self.pool.effective(), self.pool.readings()),
                flows,
            }
        });
        bands.collect()
    }

    /// What the started leases of each flow weigh on each endpoint.
    fn started(&self) -> BTreeMap<(i32, FlowId), BTreeMap<EndpointKey, Load>> {
        let mut started: BTreeMap<_, BTreeMap<EndpointKey, Load>> = BTreeMap::new();
        for item in self.items.values() {
            let State::Started(lease) = &item.state else { continue };
            let of_flow = started.entry((item.priority.0, item.flow)).or_default();
            for booking in &lease.bookings {
                of_flow.entry(booking.endpoint).or_default().add(Load::one(booking.tokens));
            }
        }
        started
    }
}
