//! Revocations: from the word to a started lease until its end, or until nobody counts on that any longer.

use smallvec::SmallVec;

use super::Engine;
use crate::effect::{Effect, RevokeCause};
use crate::item::{Lease, Revoked, State};
use crate::load::{EndpointKey, Load};
use crate::ticket::Ticket;

impl Engine {
    /// Counts upon the end of the lease, as `revoked` says.
    pub(super) fn mark_revoked(&mut self, ticket: Ticket, revoked: Revoked) {
        self.delist_victim(ticket);
        let Some(lease) = self.lease_mut(ticket) else { return };
        lease.revoked = Some(revoked);
        for (endpoint, load) in loads_of(lease) {
            self.pool.change_revoking(endpoint, |revoking| revoking.add(load));
        }
        if !revoked.dry {
            self.revocations.outstanding += 1;
            self.leases.revoked += 1;
        }
        if let Some(overdue) = revoked.overdue {
            self.revocations.timers.insert((overdue, ticket));
        }
    }

    /// The end of a revoked lease is no longer counted upon. Tells what was known of it, if it was.
    fn settle_revocation(&mut self, ticket: Ticket) -> Option<Revoked> {
        let lease = self.lease_mut(ticket)?;
        let revoked = lease.revoked.as_mut().filter(|revoked| revoked.pending)?;
        let settled = *revoked;
        revoked.pending = false;
        for (endpoint, load) in loads_of(lease) {
            self.pool.change_revoking(endpoint, |revoking| revoking.sub(load));
        }
        if !settled.dry {
            self.revocations.outstanding -= 1;
        }
        if let Some(overdue) = settled.overdue {
            self.revocations.timers.remove(&(overdue, ticket));
        }
        Some(settled)
    }

    /// Lets revocations that are overdue hold nothing back any longer; tells whether there were any.
    pub(super) fn time_out_revocations(&mut self) -> bool {
        let before = self.revocation_stats.timed_out;
        while let Some(&(overdue, ticket)) = self.revocations.timers.first()
            && overdue <= self.now
        {
            self.settle_revocation(ticket);
            self.revocation_stats.timed_out += 1;
        }
        self.revocation_stats.timed_out > before
    }

    /// The lease is about to end; if it was revoked, that is the confirmation.
    pub(super) fn confirm_revocation(&mut self, ticket: Ticket) {
        if self.settle_revocation(ticket).is_some_and(|revoked| revoked.overdue.is_some()) {
            self.revocation_stats.confirmed += 1;
        }
        if self.lease_mut(ticket).is_some_and(|lease| lease.revoked.is_some_and(|revoked| !revoked.dry)) {
            self.leases.revoked -= 1;
        }
    }

    /// A lease of which it was only counted that it would be revoked may be revoked in earnest.
    pub(super) fn forget_dry_revocation(&mut self, ticket: Ticket) {
        if !self.lease_mut(ticket).is_some_and(|lease| lease.revoked.is_some_and(|revoked| revoked.dry)) {
            return;
        }
        self.settle_revocation(ticket);
        if let Some(lease) = self.lease_mut(ticket) {
            lease.revoked = None;
        }
    }

    /// Revokes every started lease, because the process is about to end.
    pub(super) fn revoke_all(&mut self) {
        let mut started: Vec<(u64, Ticket)> = Vec::new();
        for (ticket, item) in &self.items {
            if let State::Started(lease) = &item.state
                && lease.revoked.is_none_or(|revoked| revoked.dry)
            {
                started.push((lease.started, ticket));
            }
        }
        started.sort_unstable();
        for (_, ticket) in started {
            self.forget_dry_revocation(ticket);
            self.mark_revoked(ticket, Revoked { pending: true, dry: false, overdue: None });
            let waiter = self.items[ticket].waiter;
            self.effects.push_back(Effect::Revoke { ticket, waiter, cause: RevokeCause::Shutdown });
        }
    }
}

fn loads_of(lease: &Lease) -> SmallVec<[(EndpointKey, Load); 2]> {
    lease.bookings.iter().map(|booking| (booking.endpoint, Load::one(booking.tokens))).collect()
}
