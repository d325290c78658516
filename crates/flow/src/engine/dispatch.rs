//! The pass: grants until the gate closes or nothing dispatchable is left.

use super::Engine;
use crate::band::LeaseDelta;
use crate::effect::{Effect, Verdict};
use crate::gate::{flatten, slots};
use crate::invariant::check;
use crate::item::State;
use crate::load::EndpointKey;
use crate::policy::{BandView, Reading, Refresh};
use crate::ticket::Ticket;

/// Who goes next.
struct Choice {
    band: usize,
    ticket: Ticket,
    /// The endpoint whose room a parked ticket takes.
    reserved: Option<EndpointKey>,
}

impl Engine {
    /// Grants all that can be granted now, and revokes what the rest could use.
    pub(super) fn run(&mut self) {
        self.dispatch();
        self.follow_up();
    }

    /// What a pass leaves to be done for those who wait on.
    pub(super) fn follow_up(&mut self) {
        self.plan_evictions();
        if self.pool.estimates() {
            self.ask_for_scrapes();
        }
    }

    /// The pass alone.
    pub(super) fn dispatch(&mut self) {
        let each_grant = self.usage_limit.refresh() == Refresh::EachGrant;
        self.ceilings_due |= each_grant;
        self.refresh_ceilings();
        while let Some(choice) = self.choose() {
            self.grant(&choice);
            self.ceilings_due |= each_grant;
            self.refresh_ceilings();
        }
    }

    /// From the highest band down, until a gate is closed: a parked ticket for which there is room goes
    /// before queued ones of its band.
    fn choose(&mut self) -> Option<Choice> {
        for index in 0..self.bands.len() {
            if !self.gate_is_open(index) {
                return None;
            }
            let band = &self.bands[index];
            let admits = |ticket: Ticket| !band.flows[self.items[ticket].flow].capped;
            if let Some((ticket, endpoint)) = self.pool.ready_ticket(band.priority, admits) {
                return Some(Choice { band: index, ticket, reserved: Some(endpoint) });
            }
            if !band.has_dispatchable() {
                continue;
            }
            let band = &mut self.bands[index];
            let head = band.fairness.pick(self.now).and_then(|flow| band.flows[flow].queue.peek());
            if let Some((_, ticket)) = head {
                return Some(Choice { band: index, ticket, reserved: None });
            }
        }
        None
    }

    fn grant(&mut self, choice: &Choice) {
        let &Choice { band: index, ticket, reserved } = choice;
        check!(self.violations, F11, self.gate_is_open(index));
        self.count_would_gate(index);
        let item = &self.items[ticket];
        let (flow, tokens) = (item.flow, item.tokens);
        let turn = matches!(item.state, State::Queued);
        check!(self.violations, F12, turn || reserved.is_some_and(|endpoint| self.pool.has_room(endpoint)));
        if item.arrival < self.now {
            self.rate.count(self.now);
        }
        self.bands[index].fairness.granted(self.now, flow, tokens, turn);
        self.end_wait(ticket);
        self.charge_lease(index, ticket, reserved);
    }

    /// Grants a ticket that is in no queue, and that every pass would grant first.
    pub(super) fn grant_newcomer(&mut self, ticket: Ticket) {
        let item = &self.items[ticket];
        let Some(index) = self.band_index(item.priority) else { return };
        let (flow, tokens) = (item.flow, item.tokens);
        self.count_would_gate(index);
        self.bands[index].fairness.granted(self.now, flow, tokens, true);
        self.charge_lease(index, ticket, None);
        self.follow_up();
    }

    fn charge_lease(&mut self, index: usize, ticket: Ticket, reserved: Option<EndpointKey>) {
        let item = &mut self.items[ticket];
        let (flow, waiter, load, stages) = (item.flow, item.waiter, item.load(), item.stages);
        item.state = State::Granted { reserved };
        let is_hinted = item.eligible.is_some();
        if let Some(endpoint) = reserved {
            self.pool.reserve(endpoint, load);
        } else if is_hinted {
            self.hinted_granted.insert(ticket);
        }
        self.pool.charge(stages, load.tokens);
        self.bands[index].count_lease(&self.items, flow, LeaseDelta::Charged);
        self.leases.granted += 1;
        let verdict = Verdict::Granted { reserved };
        self.effects.push_back(Effect::Verdict { ticket, waiter, verdict });
    }

    pub(super) fn gate_is_open(&mut self, band: usize) -> bool {
        self.bands[band].gate.is_open(self.pool.effective(), self.pool.readings())
    }

    /// In a dry run, counts a grant that the band's own ceiling would not have allowed.
    fn count_would_gate(&mut self, index: usize) {
        if !self.config.dry_run.ceilings {
            return;
        }
        let band = &self.bands[index];
        let readings = self.pool.readings();
        let gated = self.pool.effective().iter().any(|partition| {
            let Reading { load, capacity } = readings[partition as usize];
            load >= slots(band.ceiling, capacity)
        });
        if gated {
            self.totals.entry(band.priority).or_default().would_gate += 1;
        }
    }

    pub(super) fn refresh_ceilings(&mut self) {
        if self.ceilings_due {
            self.compute_ceilings();
        }
    }

    fn compute_ceilings(&mut self) {
        self.ceilings_due = false;
        let mut views = std::mem::take(&mut self.band_views);
        views.clear();
        views.extend(
            self.bands
                .iter()
                .map(|band| BandView { priority: band.priority, provisioned: self.is_provisioned(band.priority) }),
        );
        self.ceilings.clear();
        self.ceilings.resize(views.len(), 1.0);
        self.usage_limit.ceilings(self.now, &views, self.pool.worst(), &mut self.ceilings);
        self.flattened_ceilings += flatten(&mut self.ceilings);
        for (band, &ceiling) in self.bands.iter_mut().zip(&self.ceilings) {
            band.ceiling = ceiling;
            band.gate.set_ceiling(if self.config.dry_run.ceilings { 1.0 } else { ceiling });
        }
        self.band_views = views;
    }
}
