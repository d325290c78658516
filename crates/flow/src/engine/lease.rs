//! What becomes of a grant: it starts, parks, or is given back; a started lease shrinks and ends.

use std::sync::Arc;

use sluice_core::{TerminationCause, Time};
use smallvec::SmallVec;

use super::Engine;
use crate::ask::Eligibility;
use crate::band::LeaseDelta;
use crate::effect::{Ended, Outcome};
use crate::invariant::check;
use crate::item::{Lease, State};
use crate::load::{EndpointKey, Load, Stage};
use crate::policy::Departure;
use crate::pool::Occasion;
use crate::start::{Park, Start, StartError, TokensAtFirstChunk};
use crate::ticket::Ticket;

impl Engine {
    /// Books every endpoint of `start`, all or none, in place of the estimate that was charged at the grant.
    pub fn start(&mut self, now: Time, ticket: Ticket, start: Start) -> Result<(), StartError> {
        self.advance(now);
        let reserved = self.reservation(ticket).ok_or(StartError::NotGranted)?;
        let own = self.items[ticket].load();
        for (index, booking) in start.bookings.iter().enumerate() {
            let mut taken = Load::default();
            for earlier in start.bookings[..index].iter().filter(|earlier| earlier.endpoint == booking.endpoint) {
                taken.add(Load::one(earlier.tokens));
            }
            let kept = if reserved == Some(booking.endpoint) { own } else { Load::default() };
            match self.pool.may_book(booking.endpoint, taken, kept) {
                None => return Err(StartError::Left(booking.endpoint)),
                Some(false) => return Err(StartError::Full(booking.endpoint)),
                Some(true) => {}
            }
        }
        self.take_back_charge(ticket, reserved);
        for booking in &start.bookings {
            let occasion = Occasion::Started(self.now);
            self.pool.change_load(booking.endpoint, occasion, |load| load.add(Load::one(booking.tokens)));
        }
        self.starts += 1;
        self.leases.started += 1;
        let Start { bookings, progress } = start;
        let lease = Lease { bookings, started: self.starts, since: self.now, progress, victim: None, revoked: None };
        let item = &mut self.items[ticket];
        item.state = State::Started(Box::new(lease));
        let priority = item.priority;
        self.count_outcome(priority, Outcome::Dispatched);
        self.enlist_victim(ticket);
        self.run();
        Ok(())
    }

    /// Gives the lease back because every endpoint that `eligible` allows is full. The ticket waits for room
    /// on one of them; its place in the order and its deadline stay what they were.
    pub fn park(&mut self, now: Time, ticket: Ticket, eligible: Arc<dyn Eligibility>) -> Park {
        self.advance(now);
        let Some(reserved) = self.reservation(ticket) else { return Park::NotGranted };
        // The reservation is given up: its place counts as room, for this ticket before all others.
        let targets = self.pool.targets(&*eligible);
        let own = self.items[ticket].load();
        let room = targets.iter().copied().find(|&key| {
            let kept = if reserved == Some(key) { own } else { Load::default() };
            self.pool.may_book(key, Load::default(), kept) == Some(true)
        });
        if let Some(endpoint) = room {
            return Park::RoomAppeared(endpoint);
        }
        self.give_back(ticket, reserved);
        let item = &mut self.items[ticket];
        item.eligible = Some(eligible);
        let priority = item.priority;
        let shed = self.band_index(priority).is_some_and(|index| self.bands[index].config.shed);
        if self.closed {
            self.drop_ticket(ticket, Outcome::EvictedOther);
        } else if self.cannot_be_served(ticket) {
            self.drop_ticket(ticket, Outcome::RejectedNoEndpoints);
        } else if shed {
            self.drop_ticket(ticket, Outcome::RejectedCapacity);
        } else {
            self.items[ticket].state = State::Parked;
            self.begin_wait(ticket);
            self.watch_deadline(ticket);
        }
        self.run();
        Park::Waiting
    }

    /// The first chunk of the response came: the prefill is over.
    pub fn first_chunk(&mut self, now: Time, ticket: Ticket, tokens: TokensAtFirstChunk) {
        self.advance(now);
        self.delist_victim(ticket);
        let now = self.now;
        let Some(lease) = self.lease_mut(ticket) else { return };
        let pending = lease.revoked.is_some_and(|revoked| revoked.pending);
        let prefill_over = Occasion::Ended { now, started: lease.since, departure: Departure::Over };
        let mut changes: SmallVec<[(EndpointKey, Occasion, Load); 2]> = SmallVec::new();
        lease.bookings.retain(|booking| {
            if booking.stage == Stage::Prefill {
                changes.push((booking.endpoint, prefill_over, Load::one(booking.tokens)));
                return false;
            }
            if tokens == TokensAtFirstChunk::Release {
                let done = Load { requests: 0, tokens: booking.tokens };
                changes.push((booking.endpoint, Occasion::TokensDone, done));
                booking.tokens = 0;
            }
            true
        });
        for (endpoint, occasion, over) in changes {
            if pending {
                self.pool.change_revoking(endpoint, |revoking| revoking.sub(over));
            }
            self.pool.change_load(endpoint, occasion, |load| load.sub(over));
        }
        self.reweigh(ticket);
        self.run();
    }

    /// The lease is over: started or not, its capacity is free again at once.
    pub fn release(&mut self, now: Time, ticket: Ticket, ended: Ended) {
        self.advance(now);
        self.give_up(ticket, ended, Outcome::EvictedOther);
    }

    /// Whoever waits for the ticket has gone, whatever state it is in.
    pub fn cancel(&mut self, now: Time, ticket: Ticket) {
        self.advance(now);
        let ended = Ended { cause: TerminationCause::ClientDisconnect, usage: None };
        self.give_up(ticket, ended, Outcome::EvictedContextCancelled);
    }

    /// Ends a ticket without a verdict. `unstarted` is counted for one that never started.
    fn give_up(&mut self, ticket: Ticket, ended: Ended, unstarted: Outcome) {
        let Some(item) = self.items.get(ticket) else { return };
        let priority = item.priority;
        match item.state {
            State::New | State::Queued | State::Parked => {
                self.end_wait(ticket);
                self.count_outcome(priority, unstarted);
            }
            State::Granted { reserved } => {
                self.give_back(ticket, reserved);
                self.count_outcome(priority, unstarted);
            }
            State::Started(_) => self.end_started(ticket, ended),
        }
        self.forget(ticket);
        self.run();
    }

    /// The reservation of a granted ticket; none if the ticket is not granted.
    fn reservation(&self, ticket: Ticket) -> Option<Option<EndpointKey>> {
        match self.items.get(ticket)?.state {
            State::Granted { reserved } => Some(reserved),
            State::New | State::Queued | State::Parked | State::Started(_) => None,
        }
    }

    /// Ends an unstarted lease: its turn counts for nothing.
    fn give_back(&mut self, ticket: Ticket, reserved: Option<EndpointKey>) {
        self.take_back_charge(ticket, reserved);
        let item = &self.items[ticket];
        let Some(index) = self.band_index(item.priority) else { return };
        let band = &mut self.bands[index];
        band.fairness.refund(item.flow, item.tokens);
        band.count_lease(&self.items, item.flow, LeaseDelta::Ended);
    }

    fn take_back_charge(&mut self, ticket: Ticket, reserved: Option<EndpointKey>) {
        let item = &self.items[ticket];
        self.leases.granted -= 1;
        self.hinted_granted.remove(&ticket);
        self.pool.discharge(item.stages, item.tokens);
        if let Some(endpoint) = reserved {
            self.pool.unreserve(endpoint, item.load());
        }
    }

    fn end_started(&mut self, ticket: Ticket, ended: Ended) {
        self.delist_victim(ticket);
        self.confirm_revocation(ticket);
        let item = &mut self.items[ticket];
        let State::Started(lease) = &mut item.state else { return };
        let bookings = std::mem::take(&mut lease.bookings);
        let is_revoked = lease.revoked.is_some_and(|revoked| !revoked.dry);
        let departure = if is_revoked { Departure::Revoked } else { Departure::Over };
        let occasion = Occasion::Ended { now: self.now, started: lease.since, departure };
        let (priority, flow, cost) = (item.priority, item.flow, item.tokens);
        for booking in bookings {
            self.pool.change_load(booking.endpoint, occasion, |load| load.sub(Load::one(booking.tokens)));
        }
        check!(self.violations, F9, self.leases.started > 0);
        self.leases.started = self.leases.started.saturating_sub(1);
        let Some(index) = self.band_index(priority) else { return };
        let band = &mut self.bands[index];
        let Ended { cause, usage } = ended;
        match (cause, usage) {
            (TerminationCause::Evicted, _) => band.fairness.refund(flow, cost),
            (TerminationCause::Natural | TerminationCause::ClientDisconnect | TerminationCause::Error, Some(usage)) => {
                band.fairness.settle(self.now, flow, cost, usage);
            }
            (TerminationCause::Natural | TerminationCause::ClientDisconnect | TerminationCause::Error, None) => {}
        }
        band.count_lease(&self.items, flow, LeaseDelta::Ended);
    }
}
