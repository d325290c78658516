//! The endpoints of waiting tickets that may not use the whole pool.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Engine;
use crate::item::{Item, State};
use crate::pool::ParkRank;
use crate::ticket::Ticket;

impl Engine {
    /// Works out which endpoints of the present pool a waiting ticket may use, if not all, and has it wait for room on
    /// them if it is parked. Its place in the queue and its flow's turn are not touched.
    pub(super) fn find_targets(&mut self, ticket: Ticket) {
        let item = &self.items[ticket];
        let Some(eligible) = &item.eligible else { return };
        let Some(index) = self.band_index(item.priority) else { return };
        let band = &mut self.bands[index];
        let targets = self.pool.targets(&**eligible);
        let targets = match band.hinted.get_key_value(&targets) {
            Some((known, _)) => Arc::clone(known),
            None => targets,
        };
        *band.hinted.entry(Arc::clone(&targets)).or_default() += 1;
        if matches!(item.state, State::Parked) {
            self.pool.park(&targets, park_rank(ticket, item));
        }
        self.hinted.insert(item.rank.sequence, (ticket, targets));
    }

    /// Undoes [`Engine::find_targets`].
    pub(super) fn forget_targets(&mut self, ticket: Ticket) {
        let item = &self.items[ticket];
        let Some((_, targets)) = self.hinted.remove(&item.rank.sequence) else { return };
        let Some(index) = self.band_index(item.priority) else { return };
        let band = &mut self.bands[index];
        if let Some(count) = band.hinted.get_mut(&targets) {
            *count -= 1;
            if *count == 0 {
                band.hinted.remove(&targets);
            }
        }
        if matches!(item.state, State::Parked) {
            self.pool.unpark(&targets, park_rank(ticket, item));
        }
    }
}

fn park_rank(ticket: Ticket, item: &Item) -> ParkRank {
    ParkRank { priority: Reverse(item.priority), rank: item.rank, ticket }
}
