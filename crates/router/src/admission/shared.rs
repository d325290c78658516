use std::fmt;
use std::sync::{Arc as StdArc, OnceLock};
use std::task::{Context, Poll, Waker};

use prometheus::Histogram;
use slotmap::{Key, KeyData, SlotMap, new_key_type};
use sluice_core::{Clock, Endpoint, Priority, Time};
use sluice_flow::{Effect, EndpointKey, Engine, RevokeCause, SOFT_BAND_LIMIT, Signal, Verdict, Waiter};
use smallvec::SmallVec;

use super::keys::members;
use super::poison::ExitOnPanic;
use super::sync::{Mutex, MutexGuard};
use super::timer::Alarm;

new_key_type! {
    /// Where the effects for one request are put.
    pub(super) struct Seat;
}

impl Seat {
    pub(super) fn waiter(self) -> Waiter {
        Waiter(self.data().as_ffi())
    }

    fn of(waiter: Waiter) -> Self {
        KeyData::from_ffi(waiter.0).into()
    }
}

/// What has been said to one request, and whom to wake when more is.
#[derive(Debug, Default)]
struct Mailbox {
    verdict: Option<Verdict>,
    revoked: Option<RevokeCause>,
    waker: Option<Waker>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    clock: StdArc<dyn Clock>,
    pub(super) alarm: Alarm,
    /// Observes how long each change of the engine takes, if anybody wants to know.
    pub(super) passes: OnceLock<Histogram>,
    /// Scrapes an endpoint before its time, if anybody can.
    pub(super) scrape_now: OnceLock<ScrapeNow>,
}

/// Has the endpoint with this serial number scraped at once. It must not block.
pub(super) type ScrapeNow = Box<dyn Fn(u64) + Send + Sync>;

/// What has to be done once the lock is free.
#[derive(Default)]
struct Later {
    wake: SmallVec<[Waker; 8]>,
    many_bands: Option<usize>,
    scrape: SmallVec<[EndpointKey; 4]>,
    stale: Option<(u64, u64)>,
    reordered: SmallVec<[(Priority, u64); 0]>,
}

impl Later {
    fn run(self, scrape_now: &OnceLock<ScrapeNow>) {
        for waker in self.wake {
            waker.wake();
        }
        for (priority, waiting) in self.reordered {
            tracing::warn!(%priority, waiting, "another ordering policy: requests that wait have another order");
        }
        if let Some(bands) = self.many_bands {
            tracing::warn!(bands, soft_limit = SOFT_BAND_LIMIT, "more priority bands than admission is meant for");
        }
        if let Some(scrape_now) = scrape_now.get() {
            self.scrape.iter().for_each(|endpoint| scrape_now(endpoint.0));
        }
        match self.stale {
            Some((0, endpoints)) => tracing::info!(endpoints, "the metrics of all endpoints are fresh again"),
            Some((stale, endpoints)) => {
                tracing::warn!(stale, endpoints, "endpoints whose metrics are too old to tell how full they are");
            }
            None => {}
        }
    }
}

pub(super) struct State {
    engine: Engine,
    mailboxes: SlotMap<Seat, Mailbox>,
    /// When the timer is going to call.
    armed: Time,
}

impl State {
    /// Puts what the engine wants said into the mailboxes, and collects what is to be done without the lock.
    fn deliver(&mut self, later: &mut Later) {
        while let Some(effect) = self.engine.poll() {
            // Nobody is there any more if the same call took them away.
            match effect {
                Effect::Verdict { waiter, verdict, .. } => {
                    if let Some(mailbox) = self.mailboxes.get_mut(Seat::of(waiter)) {
                        mailbox.verdict = Some(verdict);
                        later.wake.extend(mailbox.waker.take());
                    }
                }
                Effect::Revoke { waiter, cause, .. } => {
                    if let Some(mailbox) = self.mailboxes.get_mut(Seat::of(waiter)) {
                        mailbox.revoked = Some(cause);
                        later.wake.extend(mailbox.waker.take());
                    }
                }
                Effect::ManyBands { bands } => later.many_bands = Some(bands),
                Effect::Scrape { endpoint } => later.scrape.push(endpoint),
                Effect::Stale { stale, endpoints } => later.stale = Some((stale, endpoints)),
                Effect::Reordered { priority, waiting } => later.reordered.push((priority, waiting)),
            }
        }
    }
}

impl Shared {
    pub(super) fn new(engine: Engine, clock: StdArc<dyn Clock>) -> Self {
        let state = State { engine, mailboxes: SlotMap::with_key(), armed: Time::MAX };
        Self {
            state: Mutex::new(state),
            clock,
            alarm: Alarm::default(),
            passes: OnceLock::new(),
            scrape_now: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock has ended the process, so that a poisoned lock is never seen.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Runs `change` with the lock held, then wakes those whom its effects concern.
    fn with<R>(&self, change: impl FnOnce(&mut State, Time) -> R) -> R {
        let mut later = Later::default();
        let (result, earlier) = {
            let mut state = self.lock();
            let guard = ExitOnPanic::arm();
            let now = self.clock.now();
            let result = change(&mut state, now);
            if state.engine.limits_changed() {
                show_limits(&state.engine);
            }
            state.deliver(&mut later);
            let next = state.engine.next_wakeup().unwrap_or(Time::MAX);
            let earlier = next < state.armed;
            if earlier {
                state.armed = next;
            }
            drop(guard);
            drop(state);
            if let Some(passes) = self.passes.get() {
                passes.observe(self.clock.now().saturating_since(now).as_secs_f64());
            }
            (result, earlier)
        };
        later.run(&self.scrape_now);
        if earlier {
            self.alarm.set();
        }
        result
    }

    /// Reads the engine; nothing happens in it.
    pub(super) fn look<R>(&self, read: impl FnOnce(&Engine, Time) -> R) -> R {
        let state = self.lock();
        let _guard = ExitOnPanic::arm();
        read(&state.engine, self.clock.now())
    }

    pub(super) fn call<R>(&self, verb: impl FnOnce(&mut Engine, Time) -> R) -> R {
        self.with(|state, now| verb(&mut state.engine, now))
    }

    /// As [`Shared::call`], with a fresh seat.
    pub(super) fn call_seated<R>(&self, verb: impl FnOnce(&mut Engine, Time, Waiter) -> R) -> (Seat, R) {
        self.with(|state, now| {
            let seat = state.mailboxes.insert(Mailbox::default());
            (seat, verb(&mut state.engine, now, seat.waiter()))
        })
    }

    /// As [`Shared::call`], and gives the seat up: nothing more will be said to it.
    pub(super) fn call_leaving<R>(&self, seat: Seat, verb: impl FnOnce(&mut Engine, Time) -> R) -> R {
        self.with(|state, now| {
            state.mailboxes.remove(seat);
            verb(&mut state.engine, now)
        })
    }

    pub(super) fn set_pool(&self, endpoints: &[StdArc<Endpoint>]) {
        self.observe(Signal::Pool(members(endpoints)));
    }

    /// Whoever looks for an endpoint sees the limits that the engine has from now on.
    pub(super) fn observe(&self, signal: Signal) {
        self.call(|engine, now| {
            engine.observe(now, signal);
            show_limits(engine);
        });
    }

    pub(super) fn poll_verdict(&self, seat: Seat, cx: &mut Context<'_>) -> Poll<Verdict> {
        self.poll_mailbox(seat, cx, |mailbox| mailbox.verdict.take())
    }

    pub(super) fn poll_revoked(&self, seat: Seat, cx: &mut Context<'_>) -> Poll<RevokeCause> {
        self.poll_mailbox(seat, cx, |mailbox| mailbox.revoked)
    }

    fn poll_mailbox<T>(
        &self,
        seat: Seat,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut Mailbox) -> Option<T>,
    ) -> Poll<T> {
        let mut state = self.lock();
        let _guard = ExitOnPanic::arm();
        let Some(mailbox) = state.mailboxes.get_mut(seat) else { return Poll::Pending };
        match take(mailbox) {
            Some(said) => Poll::Ready(said),
            None => {
                match &mut mailbox.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    /// The time has come that the alarm was set for. Returns the next such time.
    pub(super) fn on_time(&self) -> Option<Time> {
        self.with(|state, now| {
            state.engine.on_time(now);
            let next = state.engine.next_wakeup();
            state.armed = next.unwrap_or(Time::MAX);
            next
        })
    }

    #[cfg(not(loom))]
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }
}

/// Whoever looks for an endpoint goes by what it shows.
fn show_limits(engine: &Engine) {
    for (endpoint, limit) in engine.booking_limits() {
        endpoint.load().set_limits(limit.requests, limit.tokens);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

#[cfg(all(test, not(loom)))]
#[path = "shared_tests.rs"]
mod tests;
