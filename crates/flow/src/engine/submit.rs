//! Entry: what is refused at the door, what displaces whom, what waits.

use sluice_core::Time;

use super::Engine;
use crate::ask::{Ask, TtlHeader};
use crate::config::WhenFull;
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
            self.run();
            self.settle_newcomer(ticket);
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

    fn refusal_by_headers(&mut self, ask: &Ask) -> Option<Outcome> {
        let priority = ask.flow.priority;
        if self.closed {
            return Some(Outcome::RejectedOther);
        }
        let config =
            self.band_index(priority).map_or_else(|| self.config.band(priority), |index| &self.bands[index].config);
        let (shed, max_requests, max_bytes) = (config.shed, config.max_requests, config.max_bytes);
        let at_capacity = if self.regime.empty { Outcome::RejectedNoEndpoints } else { Outcome::RejectedCapacity };
        if shed {
            self.refresh_ceilings();
            let index = self.band_index(priority)?;
            return (!self.gate_is_open(index)).then_some(at_capacity);
        }
        let waiting = self.band_index(priority).map(|index| self.bands[index].waiting).unwrap_or_default();
        let full = waiting.requests >= max_requests || waiting.bytes.saturating_add(ask.bytes) > max_bytes;
        full.then_some(at_capacity)
    }

    /// A pass would grant this ticket and no other, so that it need not be queued first: its gate is open, and
    /// whatever is dispatchable behind an open gate was granted by the last pass.
    fn goes_first(&mut self, ticket: Ticket) -> bool {
        let item = &self.items[ticket];
        let Some(index) = self.band_index(item.priority) else { return false };
        let band = &self.bands[index];
        let free = !band.has_dispatchable() && !band.flows[item.flow].capped && !self.pool.has_ready();
        let settled = !self.ceilings_due && self.usage_limit.refresh() == Refresh::OnBands;
        free && settled && self.gate_is_open(index)
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
        self.items.insert(item)
    }

    /// Why the ticket cannot be let in. On success it is ready to wait, and what it displaces is gone.
    fn refusal(&mut self, ticket: Ticket) -> Option<Outcome> {
        if self.closed {
            return Some(Outcome::RejectedOther);
        }
        if self.cannot_be_served(ticket) {
            return Some(Outcome::RejectedNoEndpoints);
        }
        if let Some(outcome) = self.capacity_refusal(ticket) {
            return Some(outcome);
        }
        self.items[ticket].state = State::Queued;
        None
    }

    /// The pool has endpoints, but none that this ticket may use.
    pub(super) fn cannot_be_served(&self, ticket: Ticket) -> bool {
        let item = &self.items[ticket];
        !self.pool.is_empty()
            && (!self.pool.has_stages(item.required)
                || item.eligible.as_ref().is_some_and(|eligible| self.pool.targets(&**eligible).is_empty()))
    }

    fn capacity_refusal(&mut self, ticket: Ticket) -> Option<Outcome> {
        let full = if self.regime.empty { Outcome::RejectedNoEndpoints } else { Outcome::RejectedCapacity };
        let item = &self.items[ticket];
        let band = &self.bands[self.band_index(item.priority)?];
        if band.config.shed {
            // It never waits, so that no queue limit concerns it.
            return None;
        }
        let fits = |used: u64, more: u64, limit: u64| used.saturating_add(more) <= limit;
        if !fits(band.waiting.bytes, item.bytes, band.config.max_bytes)
            || !fits(band.waiting.requests, 1, band.config.max_requests)
        {
            return Some(full);
        }
        let over = |used: u64, more: u64, limit: Option<u64>| {
            limit.map_or(0, |limit| used.saturating_add(more).saturating_sub(limit))
        };
        let bytes_over = over(self.waiting.bytes, item.bytes, self.config.global.bytes);
        let requests_over = over(self.waiting.requests, 1, self.config.global.requests);
        if bytes_over == 0 && requests_over == 0 {
            return None;
        }
        if self.config.when_full == WhenFull::Displace && self.displace(ticket, requests_over, bytes_over) {
            return None;
        }
        Some(full)
    }

    /// Drops the newest tickets of the lowest bands below the newcomer's until that many requests and bytes
    /// are gone; nobody, if all of them would not do.
    fn displace(&mut self, newcomer: Ticket, requests: u64, bytes: u64) -> bool {
        let priority = self.items[newcomer].priority;
        let below = self.bands.partition_point(|band| band.priority >= priority);
        let (mut have_requests, mut have_bytes) = (0_u64, 0_u64);
        for band in &self.bands[below..] {
            have_requests += band.waiting.requests;
            have_bytes = have_bytes.saturating_add(band.waiting.bytes);
        }
        if have_requests < requests || have_bytes < bytes {
            return false;
        }
        let (mut gone_requests, mut gone_bytes) = (0_u64, 0_u64);
        while gone_requests < requests || gone_bytes < bytes {
            let newest = self.bands.iter().rev().find_map(|band| band.arrivals.last_key_value());
            let Some((_, &victim)) = newest else { return false };
            let item = &self.items[victim];
            gone_requests += 1;
            gone_bytes = gone_bytes.saturating_add(item.bytes);
            self.totals.entry(item.priority).or_default().displaced += 1;
            self.drop_ticket(victim, Outcome::RejectedCapacity);
        }
        true
    }

    /// A newcomer that the pass did not grant begins to wait, if it may.
    fn settle_newcomer(&mut self, ticket: Ticket) {
        let Some(item) = self.items.get(ticket).filter(|item| item.is_waiting()) else { return };
        let Some(index) = self.band_index(item.priority) else { return };
        if self.bands[index].config.shed {
            let outcome = if self.regime.empty { Outcome::RejectedNoEndpoints } else { Outcome::RejectedCapacity };
            self.drop_ticket(ticket, outcome);
            return;
        }
        self.watch_deadline(ticket);
    }
}
