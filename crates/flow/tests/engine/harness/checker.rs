//! Finds broken invariants in the history of a run that was brought to its end.
//!
//! A pure function of what was done, what was said and what could be seen. It keeps a model of its own and
//! knows nothing of the engine. What depends on saturation is checked where requests are counted, because
//! only there can it be told from the history by hand.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_core::{TerminationCause, Time};
use sluice_flow::policy::OrderKey;
use sluice_flow::{Config, EndpointKey, InvariantId, Park, RevokeCause, Stage};
use sluice_plugins::flow::ConcurrencyMode;

use super::checker_shares::{Flow, Shares};
use super::history::{AskFacts, Event, Place, Request, Seen, Step};
use super::ops::{Policies, Setup, TENANTS, Turns, band_of};

/// The invariants that `history` breaks, each with the index of the step; the number of steps stands for the
/// end.
pub(crate) fn violations(setup: &Setup, history: &[Step]) -> Vec<(InvariantId, usize)> {
    let mut model = Model::new(setup);
    for (index, step) in history.iter().enumerate() {
        model.index = index;
        model.now = step.now;
        model.event(step);
        for effect in &step.effects {
            model.effect(effect, step);
        }
        model.after(step);
    }
    model.index = history.len();
    model.expect(InvariantId::F1, model.live.is_empty());
    model.found
}

pub(super) struct Live {
    pub(super) ask: AskFacts,
    pub(super) hint: Option<Vec<u8>>,
    pub(super) arrival: Time,
    pub(super) key: OrderKey,
    pub(super) granted_before: bool,
    pub(super) state: State,
}

pub(super) enum State {
    Queued,
    Parked,
    Granted(Option<EndpointKey>),
    Started(Vec<(EndpointKey, Stage)>),
}

impl Live {
    pub(super) const fn waits(&self) -> bool {
        matches!(self.state, State::Queued | State::Parked)
    }

    pub(super) fn allows(&self, place: &Place) -> bool {
        self.hint.as_ref().is_none_or(|hint| hint.contains(&place.number))
    }
}

pub(super) struct Model<'a> {
    pub(super) setup: &'a Setup,
    pub(super) config: Config,
    pub(super) policies: Policies,
    index: usize,
    pub(super) now: Time,
    pub(super) live: BTreeMap<Request, Live>,
    pub(super) places: Vec<Place>,
    pub(super) regime: (bool, Time),
    /// Counts turns and beginnings of waits, over all bands.
    moments: u64,
    /// For each flow with queued tickets: when it began to have any or, if that is later, had its last turn.
    waits_since: BTreeMap<Flow, u64>,
    shares: Shares,
    found: Vec<(InvariantId, usize)>,
}

impl<'a> Model<'a> {
    fn new(setup: &'a Setup) -> Self {
        Self {
            setup,
            config: setup.config(0),
            policies: setup.policies(0),
            index: 0,
            now: Time::ZERO,
            live: BTreeMap::new(),
            places: Vec::new(),
            regime: (true, Time::ZERO),
            moments: 0,
            waits_since: BTreeMap::new(),
            shares: Shares::default(),
            found: Vec::new(),
        }
    }

    fn expect(&mut self, invariant: InvariantId, holds: bool) {
        if !holds && !self.found.contains(&(invariant, self.index)) {
            self.found.push((invariant, self.index));
        }
    }

    fn event(&mut self, step: &Step) {
        let expired = |request: &Request| {
            step.effects
                .iter()
                .any(|effect| matches!(effect, Seen::Dropped { request: dropped, .. } if dropped == request))
        };
        match &step.event {
            Event::Submit { request, ask } => {
                let (arrival, hint) = (self.now, ask.hint.clone());
                let key = self.key(ask, arrival);
                let live = Live { ask: ask.clone(), hint, arrival, key, granted_before: false, state: State::Queued };
                let flow = (ask.priority, ask.tenant);
                // Time comes first: a flow whose others have all run out of time begins anew.
                let waits = |(request, live): (&Request, &Live)| {
                    let of_flow = (live.ask.priority, live.ask.tenant) == flow;
                    of_flow && matches!(live.state, State::Queued) && !expired(request)
                };
                if !self.live.iter().any(waits) {
                    self.waits_since.remove(&flow);
                }
                let known = self.live.insert(*request, live).is_some();
                self.expect(InvariantId::F1, !known);
            }
            // Time comes first: who cancels what has just run out of time changes nothing.
            Event::Cancel { request } if expired(request) => {}
            Event::Cancel { request } => self.ended(*request, None),
            Event::Release { request, cause: TerminationCause::Evicted, .. } => self.ended(*request, Some(0)),
            Event::Release { request, tokens, .. } => self.ended(*request, tokens.map(|tokens| tokens.max(1))),
            Event::Start { request, bookings, result: Ok(()) } => {
                let granted = self.live.get_mut(request).filter(|live| matches!(live.state, State::Granted(_)));
                let found = granted.is_some();
                if let Some(live) = granted {
                    live.state = State::Started(bookings.iter().map(|b| (b.endpoint, b.stage)).collect());
                }
                self.expect(InvariantId::F9, found);
            }
            Event::Park { request, hint, result: Park::Waiting } => {
                if let Some(live) = self.live.get_mut(request) {
                    live.state = State::Parked;
                    live.hint = Some(hint.clone());
                    self.shares.credit((live.ask.priority, live.ask.tenant));
                }
            }
            Event::FirstChunk { request, .. } => {
                if let Some(Live { state: State::Started(bookings), .. }) = self.live.get_mut(request) {
                    bookings.retain(|(_, stage)| *stage != Stage::Prefill);
                }
            }
            Event::Rebook { request, endpoint } if self.places.iter().any(|place| place.key == *endpoint) => {
                if let Some(Live { state: State::Started(bookings), .. }) = self.live.get_mut(request) {
                    let decode = bookings.iter_mut().find(|(_, stage)| *stage == Stage::Decode);
                    decode.into_iter().for_each(|(at, _)| *at = *endpoint);
                }
            }
            Event::Pool(places) => {
                self.places.clone_from(places);
                if places.is_empty() != self.regime.0 {
                    self.regime = (places.is_empty(), self.now);
                }
            }
            Event::Reload(variant) => {
                let variant = u8::try_from(*variant).unwrap_or(u8::MAX);
                let old = std::mem::replace(&mut self.config, self.setup.config(variant));
                let reordered = |live: &Live| {
                    let ordering = |config: &Config| Arc::clone(&band_of(config, live.ask.priority).ordering);
                    !Arc::ptr_eq(&ordering(&old), &ordering(&self.config))
                };
                let reordered: Vec<(Request, OrderKey)> = self
                    .live
                    .iter()
                    .filter(|(_, live)| reordered(live))
                    .map(|(request, live)| (*request, self.key(&live.ask, live.arrival)))
                    .collect();
                for (request, key) in reordered {
                    self.live.entry(request).and_modify(|live| live.key = key);
                }
                let old = std::mem::replace(&mut self.policies, self.setup.policies(variant));
                if old.turns != self.policies.turns {
                    self.begin_turns_anew(step.effects.iter().any(|effect| matches!(effect, Seen::Dropped { .. })));
                }
            }
            Event::RefuseByHeaders { .. }
            | Event::Start { .. }
            | Event::Park { .. }
            | Event::Rebook { .. }
            | Event::Desired(_)
            | Event::Time
            | Event::Drain
            | Event::Shutdown => {}
        }
        self.note_backlogs();
    }

    /// A request ended without a verdict; `real` is what it turned out to cost, where that is known; only evicted work
    /// costs nothing.
    fn ended(&mut self, request: Request, real: Option<u64>) {
        let Some(live) = self.live.remove(&request) else { return self.expect(InvariantId::F1, false) };
        let flow = (live.ask.priority, live.ask.tenant);
        // Nothing is free.
        let cost = live.ask.tokens.max(1);
        match live.state {
            State::Queued | State::Parked => {}
            State::Granted(_) => self.shares.credit(flow),
            State::Started(_) => match real.unwrap_or(cost).cmp(&cost) {
                Ordering::Less => self.shares.credit(flow),
                Ordering::Equal => {}
                Ordering::Greater => self.shares.owe(flow),
            },
        }
    }

    fn effect(&mut self, effect: &Seen, step: &Step) {
        match *effect {
            Seen::Granted { request, reserved } => {
                let waits = self.live.get(&request).is_some_and(Live::waits);
                self.expect(InvariantId::F1, waits);
                if waits {
                    self.granted(request, reserved, step);
                }
            }
            Seen::Dropped { request, .. } => {
                let waited = self.live.remove(&request).is_some_and(|live| live.waits());
                self.expect(InvariantId::F1, waited);
            }
            Seen::Revoked { request, cause } => {
                let Some(victim) = self.live.get(&request).filter(|live| matches!(live.state, State::Started(_)))
                else {
                    return self.expect(InvariantId::F9, step.late);
                };
                let priority = victim.ask.priority;
                let served = self.live.values().any(|live| live.waits() && live.ask.priority > priority);
                self.expect(
                    InvariantId::F10,
                    cause == RevokeCause::Shutdown || (priority < 0 && (served || step.late)),
                );
            }
        }
        self.note_backlogs();
    }

    fn granted(&mut self, request: Request, reserved: Option<EndpointKey>, step: &Step) {
        let live = &self.live[&request];
        let (priority, tenant, cost) = (live.ask.priority, live.ask.tenant, live.ask.tokens.max(1));
        let parked = matches!(live.state, State::Parked);
        let room = match reserved {
            Some(key) => {
                parked && self.places.iter().any(|place| place.key == key && live.allows(place) && self.has_room(place))
            }
            None => !parked,
        };
        self.expect(InvariantId::F12, room);
        if self.counts_requests() {
            let open = |(band, _, _, ceiling): &(i32, u64, u64, f64)| (*band, self.is_open(*ceiling));
            let gates: Vec<(i32, bool)> = step.after.bands.iter().map(open).collect();
            let own = gates.iter().find(|(band, _)| *band == priority);
            self.expect(InvariantId::F11, own.is_none_or(|(_, open)| *open));
            let passed_over = gates.iter().any(|&(band, open)| band > priority && open && self.has_dispatchable(band));
            self.expect(InvariantId::F3, !passed_over);
        }
        let live = &self.live[&request];
        let before = |other: &Live| {
            let same = (other.ask.priority, other.ask.tenant) == (priority, tenant);
            same && matches!(other.state, State::Queued) && !other.granted_before && other.key < live.key
        };
        let earlier = |(&number, other): (&Request, &Live)| {
            let same_key = other.key == live.key
                && number < request
                && (other.ask.priority, other.ask.tenant) == (priority, tenant);
            before(other) || (same_key && matches!(other.state, State::Queued))
        };
        let out_of_order = self.flows_are_tenants() && !parked && self.live.iter().any(earlier);
        self.expect(InvariantId::F8, !out_of_order);
        if parked {
            self.shares.out_of_turn((priority, tenant), cost);
        } else {
            self.turn((priority, tenant), cost);
        }
        if let Some(live) = self.live.get_mut(&request) {
            live.granted_before = true;
            live.state = State::Granted(reserved);
        }
    }

    /// Under round robin nobody in the band has waited longer for a turn; under weighted fairness, all that wait were
    /// charged alike per weight.
    fn turn(&mut self, flow: Flow, cost: u64) {
        let fair = self.shares.turn(flow, cost);
        if self.policies.turns == Turns::Weighted && self.flows_are_tenants() {
            self.expect(InvariantId::F13, fair);
        }
        if self.policies.turns == Turns::RoundRobin && self.flows_are_tenants() {
            let since = self.waits_since.get(&flow).copied().unwrap_or(u64::MAX);
            let passed_over = self.waits_since.iter().any(|(other, &longer)| other.0 == flow.0 && longer < since);
            self.expect(InvariantId::F6, !passed_over);
        }
        self.moments += 1;
        self.waits_since.insert(flow, self.moments);
    }

    /// Another policy has been put in place: flows line up in the order in which their heads came. Which those are is not
    /// known where some may have ended before.
    fn begin_turns_anew(&mut self, some_have_ended: bool) {
        self.shares = Shares::default();
        let mut heads: BTreeMap<Flow, (OrderKey, Request)> = BTreeMap::new();
        for (&request, live) in self.live.iter().filter(|(_, live)| matches!(live.state, State::Queued)) {
            let head = heads.entry((live.ask.priority, live.ask.tenant)).or_insert((live.key, request));
            *head = (*head).min((live.key, request));
        }
        self.waits_since.clear();
        self.moments += 1;
        let mut flows: Vec<(Request, Flow)> = heads.into_iter().map(|(flow, (_, request))| (request, flow)).collect();
        flows.sort_unstable();
        for (_, flow) in flows {
            self.waits_since.insert(flow, self.moments);
            self.moments += u64::from(!some_have_ended);
        }
        self.moments += 1;
    }

    fn note_backlogs(&mut self) {
        let queued = self.live.values().filter(|live| matches!(live.state, State::Queued));
        let flows: BTreeSet<Flow> = queued.map(|live| (live.ask.priority, live.ask.tenant)).collect();
        self.waits_since.retain(|flow, _| flows.contains(flow));
        for &flow in &flows {
            self.waits_since.entry(flow).or_insert_with(|| {
                self.moments += 1;
                self.moments
            });
        }
        let may_go = |live: &&Live| matches!(live.state, State::Queued) && !self.is_capped(live);
        let may_go = self.live.values().filter(may_go).map(|live| (live.ask.priority, live.ask.tenant)).collect();
        self.shares.note_backlogged(&may_go);
    }

    fn after(&mut self, step: &Step) {
        let waiting = |which: &dyn Fn(&Live) -> bool| {
            let waiting = self.live.values().filter(|live| live.waits() && which(live));
            waiting.fold((0, 0), |(requests, bytes), live| (requests + 1, bytes + live.ask.bytes))
        };
        let mut totals = step.after.waiting == waiting(&|_| true);
        for &(band, requests, bytes, _) in &step.after.bands {
            totals &= (requests, bytes) == waiting(&|live| live.ask.priority == band);
        }
        self.expect(InvariantId::F2, totals);
        let count = |which: fn(&State) -> bool| self.live.values().filter(|live| which(&live.state)).count() as u64;
        let granted = count(|state| matches!(state, State::Granted(_)));
        let started = count(|state| matches!(state, State::Started(_)));
        self.expect(InvariantId::F9, (step.after.granted, step.after.started) == (granted, started));
        if step.event == Event::Time {
            let overdue = self.live.values().any(|live| live.waits() && self.deadline(live) <= self.now);
            self.expect(InvariantId::F5, !overdue);
            self.expect(InvariantId::F7, step.after.next_wakeup.is_none_or(|time| time > self.now));
        }
        if self.counts_requests() {
            let open = step.after.bands.iter().take_while(|(_, _, _, ceiling)| self.is_open(*ceiling));
            let left = open.map(|(band, ..)| *band).any(|band| self.has_dispatchable(band));
            self.expect(InvariantId::F4, !left);
        }
    }

    /// Otherwise some of the tenants may share a flow, and the model does not follow which.
    pub(super) fn flows_are_tenants(&self) -> bool {
        self.config.max_flows_per_band >= usize::from(TENANTS)
    }

    fn counts_requests(&self) -> bool {
        // Tenants that share a flow are capped together, which the model does not follow.
        let caps_are_clear = self.flows_are_tenants() || self.policies.max_in_flight.is_none();
        self.policies.detector.mode == ConcurrencyMode::Requests && caps_are_clear
    }
}
