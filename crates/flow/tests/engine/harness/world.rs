//! Runs operations on the engine and on the oracle, and keeps the history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_core::{FlowKey, Priority, TerminationCause, Time};
use sluice_flow::policy::Usage;
use sluice_flow::{
    Ask, BandTotals, Booking, Effect, Ended, EndpointKey, Engine, Outcome, Park, Signal, Stage, Stages, Start,
    StartError, Stats, Ticket, TokensAtFirstChunk, TtlHeader, Verdict, Violations, Waiter,
};
use smallvec::SmallVec;

use super::endpoints::{Hint, member};
use super::history::{After, AskFacts, Counts, Event, Place, Request, Seen, Step};
use super::ops::{Op, PRIORITIES, Setup};
use super::oracle::State as OracleState;
use super::oracle::{Entry, Oracle};

/// Endpoints are `e0` to `e3`.
const ENDPOINTS: u8 = 4;

#[derive(Debug)]
pub(crate) struct World {
    setup: Setup,
    engine: Engine,
    oracle: Oracle,
    /// What the engine said in the present step.
    effects: Vec<Seen>,
    now: Time,
    tickets: BTreeMap<Request, Ticket>,
    next_request: Request,
    granted: BTreeSet<Request>,
    started: BTreeSet<Request>,
    waiting: BTreeSet<Request>,
    hints: BTreeMap<Request, Option<Vec<u8>>>,
    progress: BTreeMap<Request, Arc<AtomicU64>>,
    places: Vec<Place>,
    next_key: u64,
    drained: bool,
    late: bool,
    pub(crate) history: Vec<Step>,
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let engine = Engine::new(setup.config(0));
        let oracle = Oracle::new(&setup);
        let mut world = Self {
            setup,
            engine,
            oracle,
            effects: Vec::new(),
            now: Time::ZERO,
            tickets: BTreeMap::new(),
            next_request: 0,
            granted: BTreeSet::new(),
            started: BTreeSet::new(),
            waiting: BTreeSet::new(),
            hints: BTreeMap::new(),
            progress: BTreeMap::new(),
            places: Vec::new(),
            next_key: 0,
            drained: false,
            late: false,
            history: Vec::new(),
        };
        world.apply(Op::Pool { mask: 0b0111, fresh: 0, limits: 0, roles: 0 }).expect("a pool is no surprise");
        world
    }

    pub(crate) const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Applies `op`; the error says how engine and oracle differ.
    pub(crate) fn apply(&mut self, op: Op) -> Result<(), String> {
        self.now = self.now.saturating_add(Duration::from_micros(10));
        let Some((event, said)) = self.perform(op) else { return Ok(()) };
        if let Some(oracle) = said
            && oracle != format!("{event:?}")
        {
            return Err(format!("the engine returned {event:?}, the oracle {oracle}"));
        }
        let effects = std::mem::take(&mut self.effects);
        let expected = std::mem::take(&mut self.oracle.seen);
        if effects != expected {
            return Err(format!("after {event:?}\nthe engine said {effects:?}\nthe oracle said {expected:?}"));
        }
        let (after, expected) = (self.after(), expected_after(&self.oracle));
        if after != expected {
            return Err(format!("after {event:?}\nthe engine shows {after:?}\nthe oracle shows {expected:?}"));
        }
        let counted = self.engine.stats(self.now).violations;
        if counted != Violations::default() {
            return Err(format!("after {event:?}\nthe engine counts {counted:?}"));
        }
        let full = matches!(event, Event::Start { result: Err(StartError::Full(_)), .. });
        self.history.push(Step { now: self.now, late: std::mem::take(&mut self.late), event, effects, after });
        match op {
            // What a caller does that finds no room elsewhere either.
            Op::Start { nth, pick, .. } if full && pick % 2 == 0 => self.apply(Op::Park { nth, hint: pick / 2 }),
            _ => Ok(()),
        }
    }

    /// Ends everything that has not ended.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let all = [&self.waiting, &self.granted, &self.started].into_iter().flatten().count();
        for _ in 0..all {
            self.apply(Op::Cancel { nth: 0 })?;
        }
        Ok(())
    }

    /// Calls both; none if the operation has nothing to work on. The string is what the oracle makes of the
    /// same event, where the event holds a result.
    fn perform(&mut self, op: Op) -> Option<(Event, Option<String>)> {
        let now = self.now;
        let mut said = None;
        let event = match op {
            Op::Submit { .. } => self.submit(op)?,
            Op::RefuseByHeaders { band, bytes } => {
                let (priority, bytes) = (PRIORITIES[usize::from(band) % PRIORITIES.len()], u64::from(bytes));
                let flow = FlowKey { tenant: "t0".into(), priority: Priority(priority) };
                let result = self.engine.refuse_by_headers(now, &Ask { bytes, ..Ask::new(flow, now) });
                let event = |result| Event::RefuseByHeaders { priority, bytes, result };
                let expected = self.on_oracle(|oracle| oracle.refuse_by_headers(now, priority, bytes));
                said = Some(format!("{:?}", event(expected)));
                event(result)
            }
            Op::Cancel { nth } => {
                let all: Vec<Request> =
                    [&self.waiting, &self.granted, &self.started].into_iter().flatten().copied().collect();
                let request = pick(all.into_iter(), nth)?;
                self.forget(request);
                self.engine.cancel(now, self.tickets[&request]);
                self.on_oracle(|oracle| oracle.end(now, request, Outcome::EvictedContextCancelled));
                Event::Cancel { request }
            }
            Op::Start { nth, pick: at, prefill } => {
                let request = pick(self.granted.iter().copied(), nth)?;
                let bookings = self.bookings(request, at, prefill)?;
                let progress = (prefill % 8 != 7).then(Arc::<AtomicU64>::default);
                let start = Start { bookings: SmallVec::from_vec(bookings.clone()), progress: progress.clone() };
                let result = self.engine.start(now, self.tickets[&request], start);
                if result.is_ok() {
                    self.granted.remove(&request);
                    self.started.insert(request);
                    self.progress.extend(progress.map(|progress| (request, progress)));
                }
                let event = |result| Event::Start { request, bookings: bookings.clone(), result };
                said = Some(format!("{:?}", event(self.on_oracle(|oracle| oracle.start(now, request, &bookings)))));
                event(result)
            }
            Op::Park { nth, hint } => {
                let request = pick(self.granted.iter().copied(), nth)?;
                let own = self.hints[&request].clone();
                let hint = own.unwrap_or_else(|| numbers(if hint.is_multiple_of(16) { 1 } else { hint }));
                let result = self.engine.park(now, self.tickets[&request], Arc::new(Hint(hint.clone())));
                if result == Park::Waiting {
                    self.granted.remove(&request);
                    self.waiting.insert(request);
                    self.hints.insert(request, Some(hint.clone()));
                }
                let event = |result| Event::Park { request, hint: hint.clone(), result };
                said = Some(format!("{:?}", event(self.on_oracle(|oracle| oracle.park(now, request, &hint)))));
                event(result)
            }
            Op::FirstChunk { nth, release_tokens } => {
                let request = pick(self.started.iter().copied(), nth)?;
                let tokens = if release_tokens { TokensAtFirstChunk::Release } else { TokensAtFirstChunk::Keep };
                self.engine.first_chunk(now, self.tickets[&request], tokens);
                self.on_oracle(|oracle| oracle.first_chunk(now, request, release_tokens));
                Event::FirstChunk { request, release_tokens }
            }
            Op::Rebook { nth, pick: at } => {
                let request = pick(self.started.iter().copied(), nth)?;
                // Now and then an endpoint that is not there.
                let there = pick(self.places.iter(), at)?;
                let endpoint = if at == 255 { EndpointKey(u64::MAX) } else { there.key };
                self.engine.rebook(now, self.tickets[&request], endpoint);
                self.on_oracle(|oracle| oracle.rebook(now, request, endpoint));
                Event::Rebook { request, endpoint }
            }
            Op::Release { nth, cause } => {
                let all: Vec<Request> = self.started.iter().chain(&self.granted).copied().collect();
                let request = pick(all.into_iter(), nth)?;
                self.forget(request);
                let tokens = [None, Some(0), Some(5), Some(40)][usize::from(cause / 4 % 4)];
                let usage = tokens.map(|tokens| Usage { prompt: tokens / 2, output: tokens.div_ceil(2) });
                let cause = [
                    TerminationCause::Natural,
                    TerminationCause::Evicted,
                    TerminationCause::ClientDisconnect,
                    TerminationCause::Error,
                ][usize::from(cause % 4)];
                self.engine.release(now, self.tickets[&request], Ended { cause, usage });
                self.on_oracle(|oracle| oracle.end(now, request, Outcome::EvictedOther));
                Event::Release { request, cause, tokens }
            }
            Op::Progress { nth, bytes } => {
                let request = pick(self.progress.keys().copied(), nth)?;
                self.progress[&request].store(bytes.into(), Ordering::Relaxed);
                self.oracle.entry(request).sent = bytes.into();
                return None;
            }
            Op::Wait { millis, tell } => {
                self.now = self.now.saturating_add(Duration::from_millis(millis.into()));
                if !tell {
                    self.late = true;
                    return None;
                }
                let now = self.now;
                self.engine.on_time(now);
                self.on_oracle(|oracle| oracle.time(now));
                Event::Time
            }
            Op::Pool { mask, fresh, limits, roles } => {
                self.change_pool(mask, fresh, limits, roles);
                let places = self.places.clone();
                let members = places.iter().map(|place| member(place.number, place.key.0, place.stages, place.limit));
                self.engine.observe(now, Signal::Pool(members.collect()));
                self.on_oracle(|oracle| oracle.pool(now, places.clone()));
                Event::Pool(places)
            }
            Op::Desired { mask } => {
                let desired: Vec<i32> =
                    PRIORITIES.into_iter().zip(0..).filter(|(_, n)| mask & (1 << n) != 0).map(|(p, _)| p).collect();
                self.engine.observe(now, Signal::Desired(desired.iter().copied().map(Priority).collect()));
                self.on_oracle(|oracle| oracle.desired(now, desired.clone()));
                Event::Desired(desired)
            }
            Op::Reload { variant } => {
                let config = self.setup.config(variant);
                self.engine.observe(now, Signal::Reload { config: Box::new(config.clone()), desired: None });
                let policies = self.setup.policies(variant);
                self.on_oracle(|oracle| oracle.reload(now, config, policies));
                Event::Reload(variant.into())
            }
            Op::Drain | Op::Shutdown if self.drained => return None,
            Op::Drain => {
                self.drained = true;
                self.engine.observe(now, Signal::Drain);
                self.on_oracle(|oracle| oracle.close(now, false));
                Event::Drain
            }
            Op::Shutdown => {
                self.drained = true;
                self.engine.observe(now, Signal::Shutdown);
                self.on_oracle(|oracle| oracle.close(now, true));
                Event::Shutdown
            }
        };
        Some((event, said))
    }

    fn submit(&mut self, op: Op) -> Option<Event> {
        let Op::Submit { tenant, band, bytes, tokens, ttl, ttft, hint, stages } = op else { return None };
        if self.waiting.len() >= self.setup.most_waiting() {
            return None;
        }
        let request = self.next_request;
        self.next_request += 1;
        let facts = AskFacts {
            tenant,
            priority: PRIORITIES[usize::from(band) % PRIORITIES.len()],
            bytes: bytes.into(),
            tokens: tokens.into(),
            ttl_millis: match ttl {
                0..60 => Some(u64::from(ttl) * 40),
                60..80 => Some(u64::from(ttl - 60)),
                _ => None,
            },
            ttl_is_invalid: (80..90).contains(&ttl),
            ttft_millis: (ttft < 120).then(|| u64::from(ttft) * 10),
            stream_deadline: (ttl > 240).then(|| self.now.saturating_add(Duration::from_millis(700))),
            stages: if stages < 2 { Stages::BOTH } else { Stages::DECODE },
            required: if stages == 0 { Stages::BOTH } else { Stages::DECODE },
            hint: (hint % 4 == 0).then(|| numbers(hint / 4)),
        };
        let mut ask =
            Ask::new(FlowKey { tenant: format!("t{tenant}").into(), priority: Priority(facts.priority) }, self.now);
        ask.bytes = facts.bytes;
        ask.tokens = facts.tokens;
        ask.ttl = match facts.ttl_millis {
            Some(ttl) => TtlHeader::Within(Duration::from_millis(ttl)),
            None if facts.ttl_is_invalid => TtlHeader::Invalid,
            None => TtlHeader::Absent,
        };
        ask.ttft = facts.ttft_millis.map(Duration::from_millis);
        ask.stream_deadline = facts.stream_deadline;
        ask.stages = facts.stages;
        ask.required = facts.required;
        ask.eligible = facts.hint.clone().map(|hint| Arc::new(Hint(hint)) as _);
        self.waiting.insert(request);
        self.hints.insert(request, facts.hint.clone());
        let ticket = self.engine.submit(self.now, ask, Waiter(request));
        self.tickets.insert(request, ticket);
        let now = self.now;
        self.on_oracle(|oracle| oracle.submit(now, request, &facts));
        Some(Event::Submit { request, ask: facts })
    }

    /// Endpoints for a granted request: where a place is kept for it, or any it may use.
    fn bookings(&self, request: Request, at: u8, prefill: u8) -> Option<Vec<Booking>> {
        let hint = self.hints[&request].as_ref();
        let usable = |stage: Stage| {
            let usable = self.places.iter().filter(move |place| place.stages.contains(stage));
            usable.filter(|place| hint.is_none_or(|hint| hint.contains(&place.number)))
        };
        let decode = pick(usable(Stage::Decode), at)?;
        // Now and then an endpoint that is no longer there.
        let key = if at == 255 { EndpointKey(u64::MAX) } else { decode.key };
        let mut bookings = vec![Booking { endpoint: key, stage: Stage::Decode, tokens: u64::from(at % 16) }];
        if prefill.is_multiple_of(4)
            && let Some(place) = pick(usable(Stage::Prefill), prefill / 4)
        {
            bookings.push(Booking { endpoint: place.key, stage: Stage::Prefill, tokens: u64::from(prefill % 16) });
        }
        Some(bookings)
    }

    fn change_pool(&mut self, mask: u8, fresh: u8, limits: u8, roles: u8) {
        let old = std::mem::take(&mut self.places);
        for number in (0..ENDPOINTS).filter(|number| mask & (1 << number) != 0) {
            let known = old.iter().find(|place| place.number == number).filter(|_| fresh & (1 << number) == 0);
            let key = known.map_or_else(
                || {
                    self.next_key += 1;
                    EndpointKey(self.next_key)
                },
                |place| place.key,
            );
            let stages = match (roles % 8, number) {
                (1, 0) => Stages::PREFILL,
                (2, _) => Stages::BOTH,
                (3, _) => Stages::NONE,
                (4, 0 | 1) => Stages::BOTH,
                _ => Stages::DECODE,
            };
            let limit = [None, Some(1), Some(2), Some(5)][usize::from(limits >> (2 * number)) % 4];
            self.places.push(Place { number, key, stages, limit });
        }
    }

    /// Takes in what the engine said, and tells the oracle of it where it has to follow.
    fn drain(&mut self) {
        while let Some(effect) = self.engine.poll() {
            let seen = match effect {
                Effect::Verdict { waiter: Waiter(request), verdict: Verdict::Granted { reserved }, .. } => {
                    self.waiting.remove(&request);
                    self.granted.insert(request);
                    self.oracle.follow(request);
                    Seen::Granted { request, reserved }
                }
                Effect::Verdict {
                    waiter: Waiter(request), verdict: Verdict::Dropped { outcome, retry_after }, ..
                } => {
                    self.forget(request);
                    Seen::Dropped { request, outcome, retry_after }
                }
                Effect::Revoke { waiter: Waiter(request), cause, .. } => Seen::Revoked { request, cause },
                Effect::ManyBands { .. } => unreachable!("the operations know few priorities"),
                Effect::Scrape { .. } | Effect::Stale { .. } => unreachable!("the detector counts what is booked"),
                // Its consequences are looked at.
                Effect::Reordered { .. } => continue,
            };
            self.effects.push(seen);
        }
    }

    fn forget(&mut self, request: Request) {
        for set in [&mut self.waiting, &mut self.granted, &mut self.started] {
            set.remove(&request);
        }
        self.hints.remove(&request);
        self.progress.remove(&request);
    }

    /// The same call on the oracle, once the engine has spoken.
    fn on_oracle<R>(&mut self, call: impl FnOnce(&mut Oracle) -> R) -> R {
        self.drain();
        call(&mut self.oracle)
    }

    fn after(&self) -> After {
        let stats = self.engine.stats(self.now);
        let band =
            |band: &sluice_flow::BandStats| (band.priority.0, band.waiting.requests, band.waiting.bytes, band.ceiling);
        After {
            bands: stats.bands.iter().map(band).collect(),
            waiting: (stats.waiting.requests, stats.waiting.bytes),
            parked: stats.bands.iter().map(|band| band.parked).collect(),
            saturation: stats.saturation.clone(),
            invalid_ttls: stats.invalid_ttls,
            counts: counts(&stats),
            granted: stats.leases.granted,
            started: stats.leases.started,
            next_wakeup: self.engine.next_wakeup(),
        }
    }
}

fn counts(stats: &Stats) -> BTreeMap<i32, Counts> {
    let of = |(priority, totals): (&Priority, &BandTotals)| {
        let &BandTotals { displaced, revocations, would_gate, would_revoke, .. } = totals;
        let outcomes = Outcome::ALL.map(|outcome| totals.outcome(outcome));
        (priority.0, Counts { outcomes, displaced, revocations, would_gate, would_revoke })
    };
    stats.totals.iter().map(of).filter(|(_, counts)| *counts != Counts::default()).collect()
}

fn expected_after(oracle: &Oracle) -> After {
    let band = |(priority, ceiling): (i32, f64)| {
        let (requests, bytes) = oracle.waiting(|entry| entry.priority == priority);
        (priority, requests, bytes, ceiling)
    };
    let parked = |priority: i32| {
        let parked = |entry: &&Entry| entry.priority == priority && matches!(entry.state, OracleState::Parked);
        oracle.entries.iter().filter(parked).count() as u64
    };
    let leases =
        |which: fn(&OracleState) -> bool| oracle.entries.iter().filter(|entry| which(&entry.state)).count() as u64;
    let deadlines = oracle.entries.iter().filter(|entry| entry.waits()).map(|entry| oracle.deadline(entry));
    let overdue = oracle.entries.iter().filter_map(|entry| match &entry.state {
        OracleState::Started { revoked: Some(revoked), .. } if revoked.pending => revoked.overdue,
        _ => None,
    });
    After {
        bands: oracle.bands.keys().map(|priority| priority.0).zip(oracle.ceilings()).map(band).collect(),
        waiting: oracle.waiting(|_| true),
        parked: oracle.bands.keys().map(|priority| parked(priority.0)).collect(),
        saturation: oracle.effective().into_iter().map(|part| (part, oracle.saturation(part))).collect(),
        invalid_ttls: oracle.invalid_ttls,
        counts: oracle.counts.clone(),
        granted: leases(|state| matches!(state, OracleState::Granted(_))),
        started: leases(|state| matches!(state, OracleState::Started { .. })),
        next_wakeup: deadlines.filter(|&deadline| deadline < Time::MAX).chain(overdue).min(),
    }
}

fn pick<T>(mut from: impl Iterator<Item = T> + Clone, nth: u8) -> Option<T> {
    let count = from.clone().count();
    (count > 0).then(|| from.nth(usize::from(nth) % count)).flatten()
}

/// The endpoints whose bits are set.
fn numbers(mask: u8) -> Vec<u8> {
    (0..ENDPOINTS).filter(|number| mask & (1 << number) != 0).collect()
}
