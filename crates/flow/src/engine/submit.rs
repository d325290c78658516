//! Entry: what is refused at the door, what displaces whom, what waits.

use sluice_core::{Priority, Time};

use super::Engine;
use crate::ask::{Ask, TtlHeader};
use crate::band::Waiting;
use crate::config::{GlobalLimits, WhenFull};
use crate::effect::Outcome;
use crate::item::{Item, State};
use crate::policy::{OrderKey, Rank, Refresh};
use crate::ticket::{Ticket, Waiter};

impl Engine {
    /// Asks for admission. The verdict for the returned ticket comes out of [`Engine::poll`], at once or
    /// later; `waiter` comes with it.
    pub fn submit(&mut self, now: Time, ask: Ask, waiter: Waiter) -> Ticket {
        self.advance(now);
        let ticket = self.enter(ask, waiter);
        if let Some(outcome) = self.refusal(ticket) {
            self.drop_ticket(ticket, outcome);
        } else if self.goes_first(ticket) {
            self.grant_newcomer(ticket);
        } else {
            self.begin_wait(ticket);
            self.dispatch();
            self.settle_newcomer(ticket);
            // Last: nothing ends for a newcomer that was refused, or for those it displaced.
            self.follow_up();
        }
        ticket
    }

    /// Refuses, and counts, a request that would be refused whatever its body says: what priority and announced
    /// size alone can tell. None does not promise admission.
    pub fn refuse_by_headers(&mut self, now: Time, ask: &Ask) -> Option<Outcome> {
        self.advance(now);
        let outcome = self.refusal_by_headers(ask)?;
        self.count_outcome(ask.flow.priority, outcome);
        Some(outcome)
    }

    /// The most bytes that a request of `priority` may have: more would not fit into its queue even if nothing waited
    /// there. None where no queue bounds it.
    pub fn largest_request(&self, priority: Priority) -> Option<u64> {
        let config = self.config.band(priority);
        let largest = self.config.global.bytes.map_or(config.max_bytes, |bytes| bytes.min(config.max_bytes));
        (!config.shed).then_some(largest)
    }

    fn refusal_by_headers(&mut self, ask: &Ask) -> Option<Outcome> {
        if self.closed {
            return Some(Outcome::RejectedOther);
        }
        let priority = ask.flow.priority;
        let hopeless = if self.config.band(priority).shed {
            !self.would_be_open(priority)
        } else {
            !self.has_room(priority, ask.bytes)
        };
        hopeless.then(|| self.outcome_when_full())
    }

    /// The gate of the band of `priority` is open, or would be if there were such a band: its ceiling depends on which
    /// others there are.
    fn would_be_open(&mut self, priority: Priority) -> bool {
        let index = self.band_for(priority);
        self.refresh_ceilings();
        let open = self.gate_is_open(index);
        self.retire_band(index);
        self.refresh_ceilings();
        open
    }

    /// A pass would grant this ticket and no other, so that it need not be queued first: its gate is open, and
    /// whatever is dispatchable behind an open gate was granted by the last pass.
    fn goes_first(&mut self, ticket: Ticket) -> bool {
        let item = &self.items[ticket];
        let Some(index) = self.band_index(item.priority) else { return false };
        let capped = self.bands[index].flows[item.flow].capped;
        let settled = !self.ceilings_due && self.usage_limit.refresh() == Refresh::OnBands;
        !capped && settled && self.gate_is_open(index)
    }

    /// Makes the ticket, in no queue yet.
    fn enter(&mut self, ask: Ask, waiter: Waiter) -> Ticket {
        let Ask { flow, bytes, tokens, received, ttl, ttft, stream_deadline, stages, required, eligible } = ask;
        let arrival = self.now;
        let ttl_deadline = match ttl {
            TtlHeader::Absent => Time::MAX,
            TtlHeader::Invalid => {
                self.invalid_ttls += 1;
                Time::MAX
            }
            TtlHeader::Within(ttl) => arrival.saturating_add(ttl),
        };
        let max_flows = self.config.max_flows_per_band;
        let budgets = self.config.budgets;
        let index = self.band_for(flow.priority);
        let band = &mut self.bands[index];
        let flow_id = band.flow_of(&flow.tenant, max_flows);
        band.tickets += 1;
        band.flows[flow_id].tickets += 1;
        self.sequence += 1;
        let mut item = Item {
            priority: flow.priority,
            flow: flow_id,
            waiter,
            rank: Rank { key: OrderKey(0), sequence: self.sequence },
            bytes,
            tokens,
            arrival,
            received,
            ttl_deadline,
            stream_deadline: stream_deadline.unwrap_or(Time::MAX),
            ttft_deadline: ttft.map_or(Time::MAX, |ttft| received.saturating_add(ttft)),
            stages,
            required,
            eligible,
            state: State::New,
        };
        let saturation_budget = band.config.budgets(budgets).saturation;
        item.rank.key = band.config.ordering.key(&item.ordering_facts(saturation_budget));
        let ticket = self.items.insert(item);
        self.count_bands();
        ticket
    }

    /// Why the ticket cannot be let in, whatever the gate says. If there is no reason, it is ready to wait.
    fn refusal(&mut self, ticket: Ticket) -> Option<Outcome> {
        if self.closed {
            return Some(Outcome::RejectedOther);
        }
        if self.cannot_be_served(ticket) {
            return Some(Outcome::RejectedNoEndpoints);
        }
        let Item { priority, bytes, .. } = self.items[ticket];
        if !self.has_room(priority, bytes) {
            return Some(self.outcome_when_full());
        }
        self.items[ticket].state = State::Queued;
        None
    }

    const fn outcome_when_full(&self) -> Outcome {
        if self.regime.empty { Outcome::RejectedNoEndpoints } else { Outcome::RejectedCapacity }
    }

    /// The pool has endpoints, but none that this ticket may use.
    pub(super) fn cannot_be_served(&self, ticket: Ticket) -> bool {
        let item = &self.items[ticket];
        !self.pool.is_empty()
            && (!self.pool.has_stages(item.required)
                || item.eligible.as_ref().is_some_and(|eligible| self.pool.targets(&**eligible).is_empty()))
    }

    /// The queues have room for a newcomer, or would have once all that it may displace is gone.
    fn has_room(&self, priority: Priority, bytes: u64) -> bool {
        let config = self.config.band(priority);
        if config.shed {
            // It never waits, so that no queue limit concerns it.
            return true;
        }
        let newcomer = Waiting { requests: 1, bytes };
        let of_band = self.band_index(priority).map(|index| self.bands[index].waiting).unwrap_or_default();
        if !of_band.plus(newcomer).is_within(Some(config.max_requests), Some(config.max_bytes)) {
            return false;
        }
        let mut others = self.waiting;
        if self.config.when_full == WhenFull::Displace {
            for below in self.bands.iter().filter(|below| below.priority < priority) {
                others = others.minus(below.waiting);
            }
        }
        let GlobalLimits { requests, bytes } = self.config.global;
        others.plus(newcomer).is_within(requests, bytes)
    }

    /// Drops the newest of the lowest bands below `priority` until the global limits hold.
    fn displace_below(&mut self, priority: Priority) {
        let GlobalLimits { requests, bytes } = self.config.global;
        while !self.waiting.is_within(requests, bytes) {
            let below = self.bands.iter().rev().take_while(|band| band.priority < priority);
            let newest = below.filter_map(|band| band.arrivals.last_key_value()).next();
            let Some((_, &victim)) = newest else { return };
            self.totals.entry(self.items[victim].priority).or_default().displaced += 1;
            self.drop_ticket(victim, Outcome::RejectedCapacity);
        }
    }

    /// A newcomer that the pass did not grant begins to wait, if it may: whoever has to make room for it goes
    /// only then.
    fn settle_newcomer(&mut self, ticket: Ticket) {
        let Some(item) = self.items.get(ticket).filter(|item| item.is_waiting()) else { return };
        let priority = item.priority;
        let Some(index) = self.band_index(priority) else { return };
        if self.bands[index].config.shed {
            self.drop_ticket(ticket, self.outcome_when_full());
            return;
        }
        self.watch_deadline(ticket);
        if self.config.when_full == WhenFull::Displace && self.items.contains_key(ticket) {
            self.displace_below(priority);
        }
    }
}
