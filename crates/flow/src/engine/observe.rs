//! News from outside: another pool, other objectives, another configuration, the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_core::Time;

use super::Engine;
use crate::band::BudgetNanos;
use crate::config::{Config, WhenFull};
use crate::effect::{Effect, Outcome};
use crate::item::{Item, State};
use crate::policy::Rank;
use crate::signal::{PoolMember, Signal};
use crate::ticket::Ticket;

impl Engine {
    /// Takes note of `signal` and does what follows from it.
    pub fn observe(&mut self, now: Time, signal: Signal) {
        self.advance(now);
        match signal {
            Signal::Pool(members) => self.replace_pool(members),
            Signal::Desired(priorities) => {
                self.desired = priorities;
                self.provision_bands();
            }
            Signal::Reload { config, desired } => {
                // Before bands are made and ended: a band may be named by the one before and by the other after.
                self.desired = desired.unwrap_or_else(|| std::mem::take(&mut self.desired));
                self.reload(*config);
            }
            Signal::Inherit { stale } => self.pool.start_inheriting(self.now, stale),
            Signal::Drain => self.close(),
            Signal::Shutdown => {
                self.close();
                self.revoke_all();
            }
        }
        self.expire_due();
        self.run();
        self.watch_staleness();
    }

    fn replace_pool(&mut self, members: Vec<PoolMember>) {
        let hinted: Vec<Ticket> = self.hinted.values().map(|(ticket, _)| *ticket).collect();
        for &ticket in &hinted {
            self.forget_targets(ticket);
        }
        let before = self.pool.stages();
        self.pool.replace(self.now, members);
        self.reweigh_all();
        for &ticket in &hinted {
            self.find_targets(ticket);
        }
        let regime = self.regime;
        self.update_regime();
        if !self.pool.is_empty() {
            self.drop_unservable(self.regime != regime || !self.pool.has_stages(before));
        }
    }

    /// Ends the tickets that no endpoint of a pool with endpoints can serve, in the order of arrival. Only if some stage
    /// may have lost its last endpoint are there others among them than hinted ones.
    fn drop_unservable(&mut self, lost_a_stage: bool) {
        let without_target = self.hinted.iter().filter(|(_, (_, targets))| targets.is_empty());
        let mut tickets: BTreeMap<u64, Ticket> =
            without_target.map(|(sequence, (ticket, _))| (*sequence, *ticket)).collect();
        if lost_a_stage {
            let of_stage =
                self.items.iter().filter(|(_, item)| item.is_waiting() && !self.pool.has_stages(item.required));
            tickets.extend(of_stage.map(|(ticket, item)| (item.rank.sequence, ticket)));
        }
        for ticket in tickets.into_values() {
            self.drop_ticket(ticket, Outcome::EvictedNoEndpoints);
        }
    }

    /// Closes admission.
    fn close(&mut self) {
        self.closed = true;
        let mut waiting: Vec<(u64, Ticket)> = Vec::new();
        for (ticket, item) in &self.items {
            if item.is_waiting() {
                waiting.push((item.rank.sequence, ticket));
            }
        }
        waiting.sort_unstable();
        for (_, ticket) in waiting {
            self.drop_ticket(ticket, Outcome::EvictedOther);
        }
    }

    fn reload(&mut self, config: Config) {
        let old = std::mem::replace(&mut self.config, config);
        if !Arc::ptr_eq(&old.usage_limit, &self.config.usage_limit) {
            self.usage_limit = self.config.usage_limit.new_state();
        }
        if !Arc::ptr_eq(&old.detector, &self.config.detector) {
            let charges = self.items.values().filter(|item| matches!(item.state, State::Granted { .. }));
            let charges = charges.map(|item| (item.stages.partitions(), item.tokens));
            let leases = self.items.values().filter_map(|item| match &item.state {
                State::Started(lease) => Some(lease),
                State::New | State::Queued | State::Granted { .. } | State::Parked => None,
            });
            let starts = leases.flat_map(|lease| lease.bookings.iter().map(|booking| (booking.endpoint, lease.since)));
            self.pool.replace_saturation(self.now, self.config.detector.new_state(), charges, starts);
        }
        // What is set aside on the way is taken off what was counted by the same rules.
        self.recount_demand();
        self.provision_bands();
        self.reload_bands();
        self.index_arrivals();
        self.recount_demand();
        self.rekey_deadlines();
        self.reclaim_target = 0;
        self.next_ask = None;
        let left_dry_run = old.dry_run.eviction && !self.config.dry_run.eviction;
        // The victim order may be another, or eviction on or off.
        let tickets: Vec<Ticket> = self.items.keys().collect();
        for ticket in tickets {
            if left_dry_run {
                self.forget_dry_revocation(ticket);
            }
            self.reweigh(ticket);
        }
    }

    fn reload_bands(&mut self) {
        let (mut reordered, mut other_fairness) = (BTreeSet::new(), Vec::new());
        for (index, band) in self.bands.iter_mut().enumerate() {
            let config = self.config.band(band.priority).clone();
            band.budgets = BudgetNanos::new(config.budgets(self.config.budgets));
            let old = std::mem::replace(&mut band.config, config);
            if !Arc::ptr_eq(&old.ordering, &band.config.ordering) {
                reordered.insert(index);
            }
            if !Arc::ptr_eq(&old.fairness, &band.config.fairness) {
                other_fairness.push(index);
            }
        }
        if !reordered.is_empty() {
            self.reorder(&reordered);
        }
        // By the order in which the heads of its flows came, which may be others now.
        for index in other_fairness {
            self.bands[index].replace_fairness(&self.items);
        }
    }

    /// Orders these bands by their present policies, in one go through all tickets.
    fn reorder(&mut self, bands: &BTreeSet<usize>) {
        let of_bands = |(ticket, item): (Ticket, &Item)| {
            let index = self.band_index(item.priority)?;
            bands.contains(&index).then_some((ticket, index))
        };
        let tickets: Vec<(Ticket, usize)> = self.items.iter().filter_map(of_bands).collect();
        for (ticket, index) in tickets {
            let parked = matches!(self.items[ticket].state, State::Parked);
            if parked {
                self.forget_targets(ticket);
            }
            let band = &self.bands[index];
            let item = &self.items[ticket];
            let budget = band.config.budgets(self.config.budgets).saturation;
            let key = band.config.ordering.key(&item.ordering_facts(budget));
            self.items[ticket].rank = Rank { key, ..item.rank };
            if parked {
                self.find_targets(ticket);
            }
        }
        for &index in bands {
            let band = &mut self.bands[index];
            let flows: Vec<_> = band.flows.keys().collect();
            for flow in flows {
                band.flows[flow].queue.rekey(&mut self.places, |ticket| self.items[ticket].rank);
                band.sync_head(&self.items, flow);
            }
            let (priority, waiting) = (band.priority, band.waiting.requests);
            if waiting > 0 {
                self.effects.push_back(Effect::Reordered { priority, waiting });
            }
        }
    }

    /// Keeps the order of arrival where newcomers displace, and only there.
    fn index_arrivals(&mut self) {
        for band in &mut self.bands {
            band.arrivals.clear();
        }
        if self.config.when_full == WhenFull::Displace {
            for (ticket, item) in &self.items {
                if item.is_waiting()
                    && let Ok(index) = self.bands.binary_search_by(|band| item.priority.cmp(&band.priority))
                {
                    self.bands[index].arrivals.insert(item.rank.sequence, ticket);
                }
            }
        }
    }
}
