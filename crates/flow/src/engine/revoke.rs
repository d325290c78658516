//! Revocations: from the word to a started lease until its end, or until nobody counts on that any longer.

use sluice_core::Time;

use super::Engine;
use super::evict::endpoints_of;
use crate::effect::{Effect, RevokeCause};
use crate::eviction::{add, sub};
use crate::item::{Revoked, State};
use crate::ticket::Ticket;

impl Engine {
    /// Counts upon the end of the lease, until `overdue` if there is such a time.
    pub(super) fn mark_revoked(&mut self, ticket: Ticket, overdue: Option<Time>) {
        let weight = self.weight(ticket);
        self.delist_victim(ticket);
        let Some(lease) = self.lease_mut(ticket) else { return };
        lease.revoked = Some(Revoked { pending: true, weight, overdue });
        for endpoint in endpoints_of(lease) {
            self.pool.count_revoking(endpoint, |revoking| revoking + 1);
        }
        add(&mut self.revocations.weight, &weight);
        self.revocations.outstanding += 1;
        self.leases.revoked += 1;
        if let Some(overdue) = overdue {
            self.revocations.timers.insert((overdue, ticket));
        }
    }

    /// The end of a revoked lease is no longer counted upon. Tells what was known of it, if it was.
    fn settle_revocation(&mut self, ticket: Ticket) -> Option<Revoked> {
        let lease = self.lease_mut(ticket)?;
        let revoked = lease.revoked.as_mut().filter(|revoked| revoked.pending)?;
        let settled = *revoked;
        revoked.pending = false;
        for endpoint in endpoints_of(lease) {
            self.pool.count_revoking(endpoint, |revoking| revoking.saturating_sub(1));
        }
        sub(&mut self.revocations.weight, &settled.weight);
        self.revocations.outstanding -= 1;
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
        if self.lease_mut(ticket).is_some_and(|lease| lease.revoked.is_some()) {
            self.leases.revoked -= 1;
        }
    }

    /// A lease that was only said to be revoked may become a victim in earnest.
    pub(super) fn forget_dry_revocation(&mut self, ticket: Ticket) {
        if self.settle_revocation(ticket).is_some()
            && let Some(lease) = self.lease_mut(ticket)
        {
            lease.revoked = None;
            self.leases.revoked -= 1;
        }
    }

    /// Revokes every started lease, because the process is about to end.
    pub(super) fn revoke_all(&mut self) {
        let mut started: Vec<(u64, Ticket)> = Vec::new();
        for (ticket, item) in &self.items {
            if let State::Started(lease) = &item.state
                && lease.revoked.is_none()
            {
                started.push((lease.started, ticket));
            }
        }
        started.sort_unstable();
        for (_, ticket) in started {
            self.mark_revoked(ticket, None);
            let waiter = self.items[ticket].waiter;
            self.effects.push_back(Effect::Revoke { ticket, waiter, cause: RevokeCause::Shutdown });
        }
    }
}
