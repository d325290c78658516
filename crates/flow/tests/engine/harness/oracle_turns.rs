//! The oracle's pass: who goes next.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sluice_flow::EndpointKey;
use sluice_flow::policy::OrderKey;

use super::history::{Place, Request, Seen};
use super::ops::Turns;
use super::oracle::{Entry, Oracle, State};
use super::oracle_pool::allows;

/// A band's flows, by tenant.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// Those with tickets in any state.
    pub(crate) all: Vec<String>,
    /// Those with queued tickets, in the order of their turns: whoever had one stands last.
    pub(crate) row: Vec<String>,
}

impl Oracle {
    /// The engine has granted this one.
    pub(crate) fn follow(&mut self, request: Request) {
        self.ahead.push_back(request);
    }

    pub(crate) fn dispatch(&mut self) {
        while let Some((request, reserved)) = self.choose() {
            if self.ahead.front() == Some(&request) {
                self.ahead.pop_front();
            }
            self.count_would_gate(request);
            let now = self.now;
            let entry = self.entry(request);
            let had_waited = entry.arrival < now;
            let turn = matches!(entry.state, State::Queued);
            entry.state = State::Granted(reserved);
            let (priority, tenant) = (entry.priority, entry.tenant.clone());
            if turn && let Some(flows) = self.bands.get_mut(&Reverse(priority)) {
                flows.row.retain(|other| *other != tenant);
                self.line_up(priority, tenant);
            }
            if had_waited {
                self.drain.count_grant();
            }
            self.seen.push(Seen::Granted { request, reserved });
        }
    }

    /// Puts the flow at the end of its band's row, if it has something queued and is not there yet.
    pub(super) fn line_up(&mut self, priority: i32, tenant: String) {
        if self.has_queued(priority, &tenant)
            && let Some(flows) = self.bands.get_mut(&Reverse(priority))
            && !flows.row.contains(&tenant)
        {
            flows.row.push(tenant);
        }
    }

    /// Another policy has been put in place: flows line up in the order in which their heads came.
    pub(super) fn line_up_anew(&mut self) {
        let mut rows: BTreeMap<(Reverse<i32>, &str), (OrderKey, Request)> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| matches!(entry.state, State::Queued)) {
            let head = rows.entry((Reverse(entry.priority), &entry.tenant)).or_insert_with(|| entry.rank());
            *head = (*head).min(entry.rank());
        }
        let mut rows: Vec<(Request, Reverse<i32>, String)> =
            rows.into_iter().map(|((band, tenant), (_, request))| (request, band, tenant.to_owned())).collect();
        rows.sort_unstable();
        self.bands.values_mut().for_each(|flows| flows.row.clear());
        for (_, band, tenant) in rows {
            self.line_up(band.0, tenant);
        }
    }

    pub(super) fn has_queued(&self, priority: i32, tenant: &str) -> bool {
        let queued = |entry: &Entry| matches!(entry.state, State::Queued);
        self.entries.iter().any(|entry| entry.priority == priority && entry.tenant == tenant && queued(entry))
    }

    fn choose(&self) -> Option<(Request, Option<EndpointKey>)> {
        for ((&Reverse(priority), flows), ceiling) in self.bands.iter().zip(self.gates()) {
            if !self.is_open(ceiling) {
                return None;
            }
            let of_band = |entry: &&Entry| entry.priority == priority && !self.is_capped(entry);
            let ready = self.entries.iter().filter(of_band).filter(|e| matches!(e.state, State::Parked));
            let ready = ready.filter_map(|entry| self.room_for(entry).map(|key| (entry.rank(), key, entry.request)));
            if let Some((_, key, request)) = ready.min() {
                return Some((request, Some(key)));
            }
            let queued = || self.entries.iter().filter(of_band).filter(|e| matches!(e.state, State::Queued));
            let place = |entry: &Entry| flows.row.iter().position(|tenant| *tenant == entry.tenant);
            let head = match self.turns {
                Turns::RoundRobin => queued().min_by_key(|entry| (place(entry), entry.rank())),
                Turns::Strict => queued().min_by_key(|entry| entry.rank()),
                Turns::Weighted => {
                    // Any flow's first may go. Which one the bound on shares has to show, not the oracle.
                    let first_of_flow = |entry: &&Entry| {
                        queued().filter(|other| other.tenant == entry.tenant).all(|other| other.rank() >= entry.rank())
                    };
                    let mut firsts = queued().filter(first_of_flow);
                    let followed = firsts.clone().find(|entry| self.ahead.front() == Some(&entry.request));
                    followed.or_else(|| firsts.next())
                }
            };
            if let Some(entry) = head {
                return Some((entry.request, None));
            }
        }
        None
    }

    /// The endpoint with the lowest key that has room for a parked request.
    fn room_for(&self, entry: &Entry) -> Option<EndpointKey> {
        let free = |place: &&Place| {
            allows(entry, place) && self.has_room(place, self.booked(place.key).plus(self.reserved(place.key, None)))
        };
        self.pool.iter().filter(free).map(|place| place.key).min()
    }

    /// The ceilings that hold: in a dry run they are only shown.
    pub(crate) fn gates(&self) -> Vec<f64> {
        let ceilings = self.ceilings();
        if self.config.dry_run.ceilings { vec![1.0; ceilings.len()] } else { ceilings }
    }

    /// Counts a grant that only a dry run allows.
    fn count_would_gate(&mut self, request: Request) {
        let priority = self.entry(request).priority;
        let band = self.bands.keys().position(|band| band.0 == priority).expect("an entry has a band");
        if !self.is_open(self.ceilings()[band]) {
            self.counts.entry(priority).or_default().would_gate += 1;
        }
    }
}
