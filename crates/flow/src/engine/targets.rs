//! The endpoints that waiting tickets may use, and the demand on them.

use std::cmp::Reverse;

use super::Engine;
use crate::band::Band;
use crate::item::{Item, State};
use crate::load::Load;
use crate::pool::ParkRank;
use crate::ticket::Ticket;

impl Engine {
    /// It matters where `item` may go: to itself, or to those who may have to go for it.
    pub(super) const fn heeds_targets(&self, item: &Item) -> bool {
        item.eligible.is_some() || self.config.eviction.is_some()
    }

    /// Works out which endpoints of the present pool a waiting ticket may use, if not all, and has it wait for room on
    /// them if it is parked. Counts it as demand on them. Its place in the queue and its flow's turn are not touched.
    pub(super) fn find_targets(&mut self, ticket: Ticket) {
        let Some(index) = self.band_index(self.items[ticket].priority) else { return };
        let item = &self.items[ticket];
        if let Some(eligible) = &item.eligible {
            let targets = self.bands[index].add_hinted(self.pool.targets(&**eligible));
            if matches!(item.state, State::Parked) {
                self.pool.park(&targets, park_rank(ticket, item));
            }
            self.hinted.insert(item.rank.sequence, (ticket, targets));
        }
        self.count_demand(index, ticket, true);
    }

    /// Undoes [`Engine::find_targets`].
    pub(super) fn forget_targets(&mut self, ticket: Ticket) {
        let Some(index) = self.band_index(self.items[ticket].priority) else { return };
        self.count_demand(index, ticket, false);
        let item = &self.items[ticket];
        if item.eligible.is_none() {
            return;
        }
        let Some((_, targets)) = self.hinted.remove(&item.rank.sequence) else { return };
        self.bands[index].remove_hinted(&targets);
        if matches!(item.state, State::Parked) {
            self.pool.unpark(&targets, park_rank(ticket, item));
        }
    }

    /// Counts what waits by the present detector, if anything can be evicted for it.
    pub(super) fn recount_demand(&mut self) {
        self.bands.iter_mut().for_each(Band::clear_demand);
        let waiting = |(ticket, item): (Ticket, &Item)| item.is_waiting().then_some((ticket, item.priority));
        for (ticket, priority) in self.items.iter().filter_map(waiting).collect::<Vec<_>>() {
            if let Some(index) = self.band_index(priority) {
                self.count_demand(index, ticket, true);
            }
        }
    }

    /// Counts a ticket of the band at `index` for the eviction plan, as it begins (or ceases) to wait. Whoever may use
    /// every endpoint there is counts as one without a hint.
    fn count_demand(&mut self, index: usize, ticket: Ticket, waits: bool) {
        if self.config.eviction.is_none() {
            return;
        }
        let item = &self.items[ticket];
        // It will run on one endpoint: no others have to be cleared for it.
        let load = Load::one(item.tokens.min(self.pool.saturation().tokens_per_endpoint()));
        let (flow, partitions) = (item.flow, item.stages.partitions());
        match item.eligible.as_ref().and_then(|_| self.hinted.get(&item.rank.sequence)) {
            Some((_, targets)) if !self.pool.is_whole(targets) => {
                self.bands[index].count_hinted_demand(targets, flow, partitions, load, waits);
            }
            Some(_) | None => self.bands[index].count_demand(flow, partitions, load, waits),
        }
    }
}

fn park_rank(ticket: Ticket, item: &Item) -> ParkRank {
    ParkRank { priority: Reverse(item.priority), rank: item.rank, ticket }
}
