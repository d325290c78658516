//! Deadlines: the clock moves, the regime changes, tickets run out of time.

use std::time::Duration;

use sluice_core::{Priority, Time};

use super::{Engine, Regime};
use crate::band::{Band, BudgetNanos};
use crate::effect::Outcome;
use crate::invariant::check;
use crate::ticket::Ticket;

/// What a timer can tell from now.
const GRAIN: Duration = Duration::from_millis(1);

impl Engine {
    /// Does what is due at `now`: ends tickets whose time is over, lets overdue revocations hold nothing
    /// back any longer, and runs a pass where a policy changed with time.
    pub fn on_time(&mut self, now: Time) {
        self.advance(now);
        self.run();
        check!(self.violations, F5, self.next_deadline().is_none_or(|((deadline, _), _)| deadline > self.now));
        check!(self.violations, F7, self.next_wakeup().is_none_or(|time| time > self.now));
    }

    /// When [`Engine::on_time`] has to be called at the latest; none while nothing waits for a time.
    pub fn next_wakeup(&self) -> Option<Time> {
        let deadline = self.next_deadline().map(|((deadline, _), _)| deadline).filter(|&deadline| deadline < Time::MAX);
        let policies = [self.pool.saturation().next_change(), self.usage_limit.next_change()];
        let fairness = self.bands.iter().filter_map(|band| band.fairness.next_change(self.now));
        let due = deadline.into_iter().chain(self.revocations.next_overdue());
        let due = due.chain(self.next_ask).chain(self.stale_watch.due()).chain(self.pool.inherits_until());
        // A policy that names a time already past would keep the timer spinning.
        let just_after = Time::from_nanos(self.now.as_nanos().saturating_add(1));
        due.chain(policies.into_iter().flatten().chain(fairness).map(|time| time.max(just_after))).min()
    }

    /// When the wait of a request of `priority`, which came at `arrival` and has no time limit of its own, ends at the
    /// latest: whatever the pool does, where both budgets have a bound, and else as long as it stays as empty, or not, as
    /// it is. None if nothing ends it.
    pub fn wait_ends(&self, priority: Priority, arrival: Time) -> Option<Time> {
        let budgets = match self.band_index(priority) {
            Some(index) => self.bands[index].budgets,
            None => BudgetNanos::new(self.config.band(priority).budgets(self.config.budgets)),
        };
        let ends = match budgets.both {
            u64::MAX => self.deadline_in(budgets, arrival),
            both => after(arrival, both),
        };
        (ends < Time::MAX).then_some(ends)
    }

    /// Brings the engine to `now`; every verb begins with this, so that nothing overdue is ever granted.
    pub(super) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.expire_due();
        let mut changed = self.time_out_revocations();
        if self.pool.saturation().next_change().is_some_and(|time| time <= self.now) {
            self.pool.advance(self.now);
            self.watch_staleness();
            changed = true;
        }
        if self.pool.inherits_until().is_some_and(|time| time <= self.now) {
            self.pool.stop_inheriting();
            changed = true;
        }
        if self.stale_watch.due().is_some_and(|time| time <= self.now) {
            self.watch_staleness();
        }
        changed |= self.next_ask.is_some_and(|time| time <= self.now);
        if self.usage_limit.next_change().is_some_and(|time| time <= self.now) {
            self.ceilings_due = true;
            changed = true;
        }
        if changed {
            self.run();
        }
    }

    pub(super) fn expire_due(&mut self) {
        while let Some(((deadline, _), ticket)) = self.next_deadline()
            && deadline <= self.now
        {
            self.expire(ticket);
        }
    }

    /// Ends a waiting ticket whose time is over; the regime says what it waited for.
    fn expire(&mut self, ticket: Ticket) {
        let outcome = if self.regime.empty { Outcome::EvictedNoEndpoints } else { Outcome::EvictedTtl };
        self.drop_ticket(ticket, outcome);
    }

    /// Has a ticket that begins to wait end at its deadline. With less than [`GRAIN`] left it ends at once: nobody is
    /// displaced or revoked for a wait that is over before it can be of use.
    pub(super) fn watch_deadline(&mut self, ticket: Ticket) {
        if self.deadline(ticket) < self.now.saturating_add(GRAIN) {
            self.expire(ticket);
        } else {
            self.push_deadline(ticket);
        }
    }

    pub(super) fn push_deadline(&mut self, ticket: Ticket) {
        let item = &self.items[ticket];
        if item.own_deadline() == Time::MAX
            && let Some(index) = self.band_index(item.priority)
            && self.bands[index].line.push(&mut self.links, (item.arrival, item.rank.sequence), ticket)
        {
            return;
        }
        let key = (self.deadline(ticket), item.rank.sequence);
        self.expiry.push(&mut self.expiry_positions, key, ticket);
    }

    /// The ticket, of the band at `index`, no longer waits.
    pub(super) fn forget_deadline(&mut self, index: usize, ticket: Ticket) {
        if !self.expiry.remove(&mut self.expiry_positions, ticket) {
            self.bands[index].line.remove(&mut self.links, ticket);
        }
    }

    /// The ticket that runs out of time first, with its deadline and its number in the order of arrival.
    fn next_deadline(&self) -> Option<((Time, u64), Ticket)> {
        if self.waiting.requests == 0 {
            return None;
        }
        let of_band = |band: &Band| {
            let ((arrival, sequence), ticket) = band.line.peek()?;
            Some(((self.deadline_in(band.budgets, arrival), sequence), ticket))
        };
        self.bands.iter().filter_map(of_band).chain(self.expiry.peek()).min()
    }

    /// The deadline under the present regime.
    fn deadline(&self, ticket: Ticket) -> Time {
        let item = &self.items[ticket];
        let own = item.own_deadline();
        self.band_index(item.priority)
            .map_or(own, |index| own.min(self.deadline_in(self.bands[index].budgets, item.arrival)))
    }

    /// The deadline of one that has come at `arrival` and has no time limit of its own.
    fn deadline_in(&self, budgets: BudgetNanos, arrival: Time) -> Time {
        let BudgetNanos { saturation, no_endpoint, both } = budgets;
        let Regime { empty, since } = self.regime;
        let in_regime = after(arrival.max(since), if empty { no_endpoint } else { saturation });
        in_regime.min(after(arrival, both))
    }

    /// Computes the deadlines in the heap anew, in linear time.
    pub(super) fn rekey_deadlines(&mut self) {
        let mut expiry = std::mem::take(&mut self.expiry);
        let mut positions = std::mem::take(&mut self.expiry_positions);
        expiry.rekey(&mut positions, |ticket| (self.deadline(ticket), self.items[ticket].rank.sequence));
        self.expiry = expiry;
        self.expiry_positions = positions;
    }

    /// Notes whether the pool has endpoints; a change begins another budget.
    pub(super) fn update_regime(&mut self) {
        let empty = self.pool.is_empty();
        if empty != self.regime.empty {
            self.regime = Regime { empty, since: self.now };
            self.rekey_deadlines();
        }
    }
}

fn after(start: Time, nanos: u64) -> Time {
    Time::from_nanos(start.as_nanos().saturating_add(nanos))
}
