//! A gateway that was given several endpoints may use another one than the first.

use sluice_core::Time;

use super::Engine;
use crate::load::{EndpointKey, Load, Stage};
use crate::policy::Departure;
use crate::pool::Occasion;
use crate::ticket::Ticket;

impl Engine {
    /// A started request is decoded on `endpoint`, and not where it was booked. Its load moves there whatever the limits
    /// say: the request is there already. Nothing changes if the endpoint is not in the pool.
    pub fn rebook(&mut self, now: Time, ticket: Ticket, endpoint: EndpointKey) {
        self.advance(now);
        if self.pool.endpoint(endpoint).is_none() {
            return;
        }
        self.delist_victim(ticket);
        let Some(lease) = self.lease_mut(ticket) else { return };
        let since = lease.since;
        let pending = lease.revoked.is_some_and(|revoked| revoked.pending);
        if let Some(booking) = lease.bookings.iter_mut().find(|booking| booking.stage == Stage::Decode) {
            let before = std::mem::replace(&mut booking.endpoint, endpoint);
            let load = Load::one(booking.tokens);
            // What is about to end is at all times a part of what is booked.
            self.pool.change_load(endpoint, Occasion::Started(since), |there| there.add(load));
            if pending {
                self.pool.change_revoking(before, |revoking| revoking.sub(load));
                self.pool.change_revoking(endpoint, |revoking| revoking.add(load));
            }
            let left = Occasion::Ended { now: self.now, started: since, departure: Departure::Moved };
            self.pool.change_load(before, left, |there| there.sub(load));
        }
        self.reweigh(ticket);
        self.run();
    }
}
