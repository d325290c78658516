//! Model servers, a scraper and clients around an engine, in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sluice_core::{FlowKey, Priority, Scraped, TerminationCause, Time};
use sluice_flow::{Ask, Config, Effect, Ended, EndpointKey, Engine, Start, Ticket, Verdict, Waiter};

use super::rig::pool;

/// From the engine to a server, and from a server to the scraper.
const NETWORK: Duration = Duration::from_micros(500);

/// How often each server is scraped in any case, and how often at most.
const SCRAPE_INTERVAL: Duration = Duration::from_millis(50);
const SCRAPE_PAUSE: Duration = Duration::from_millis(5);

/// What a simulated server can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// Requests that it runs at once.
    pub(crate) most: usize,
    /// How long one runs, give or take a tenth.
    pub(crate) service: Duration,
    /// How often it renews its metrics.
    pub(crate) step: Duration,
}

#[derive(Debug)]
struct Server {
    speed: Speed,
    waiting: VecDeque<Ticket>,
    running: usize,
    /// Waiting and running as its metrics say, and since which step.
    published: (usize, usize),
    published_step: u128,
    in_flight: usize,
    scraped: Time,
    /// A scrape out of turn is on its way.
    asked: bool,
}

impl Server {
    /// Renews the metrics if a step has ended since the last change.
    fn touch(&mut self, now: Time) {
        let step = u128::from(now.as_nanos()) / self.speed.step.as_nanos().max(1);
        if step != self.published_step {
            self.published = (self.waiting.len(), self.running);
            self.published_step = step;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Reach { server: usize, ticket: Ticket },
    Finish { server: usize, ticket: Ticket },
    Scrape { server: usize, in_turn: bool },
    Answer { server: usize, began: Time, waiting: usize, running: usize },
    Tick,
}

/// What a run comes to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) finished: usize,
    /// The longest queue that the servers were seen to have, each time that one of them was scraped in turn.
    pub(crate) queues: Vec<usize>,
    pub(crate) scrapes: usize,
}

impl Outcome {
    pub(crate) fn queue_p95(&self) -> usize {
        let mut queues = self.queues.clone();
        queues.sort_unstable();
        queues[queues.len() * 95 / 100]
    }
}

pub(crate) struct Servers {
    engine: Engine,
    now: Time,
    servers: Vec<Server>,
    events: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    armed: Option<Time>,
    place: BTreeMap<Ticket, usize>,
    pub(crate) outcome: Outcome,
    random: u64,
}

impl Servers {
    pub(crate) fn new(config: Config, speeds: &[Speed]) -> Self {
        let mut engine = Engine::new(config);
        engine.observe(Time::ZERO, pool(&vec![1 << 30; speeds.len()]));
        let server = |&speed: &Speed| Server {
            speed,
            waiting: VecDeque::new(),
            running: 0,
            published: (0, 0),
            published_step: 0,
            in_flight: 0,
            scraped: Time::ZERO,
            asked: false,
        };
        let mut world = Self {
            engine,
            now: Time::ZERO,
            servers: speeds.iter().map(server).collect(),
            events: BTreeMap::new(),
            sequence: 0,
            armed: None,
            place: BTreeMap::new(),
            outcome: Outcome::default(),
            random: 1,
        };
        for server in 0..speeds.len() {
            world.after(Duration::from_millis(1), Event::Scrape { server, in_turn: true });
        }
        world
    }

    /// One request comes, and another one whenever one of its line is over.
    pub(crate) fn submit(&mut self) {
        let ask = Ask::new(FlowKey { tenant: "a".into(), priority: Priority(0) }, self.now);
        self.engine.submit(self.now, ask, Waiter(0));
        self.follow();
    }

    pub(crate) fn run_until(&mut self, end: Time) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((time, _), event) = entry.remove_entry();
            self.now = time;
            self.happen(event);
            self.follow();
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Reach { server, ticket } => {
                self.servers[server].touch(self.now);
                self.servers[server].waiting.push_back(ticket);
                self.serve(server);
            }
            Event::Finish { server, ticket } => {
                self.servers[server].touch(self.now);
                self.servers[server].running -= 1;
                self.servers[server].in_flight -= 1;
                self.serve(server);
                self.place.remove(&ticket);
                self.outcome.finished += 1;
                self.engine.release(self.now, ticket, Ended { cause: TerminationCause::Natural, usage: None });
                self.follow();
                self.submit();
            }
            Event::Scrape { server, in_turn } => {
                self.outcome.scrapes += 1;
                let state = &mut self.servers[server];
                state.touch(self.now);
                state.scraped = self.now;
                let (waiting, running) = state.published;
                let began = self.now;
                if in_turn {
                    let longest = self.servers.iter().map(|server| server.waiting.len()).max();
                    self.outcome.queues.extend(longest);
                    self.after(SCRAPE_INTERVAL, Event::Scrape { server, in_turn });
                } else {
                    state.asked = false;
                }
                self.after(NETWORK, Event::Answer { server, began, waiting, running });
            }
            Event::Answer { server, began, waiting, running } => {
                let (waiting, running) = (Some(waiting as u64), Some(running as u64));
                let sample = Scraped { waiting, running, ..Scraped::at(began) };
                self.engine.scraped(self.now, EndpointKey(server as u64), &sample);
            }
            Event::Tick => {
                self.armed = None;
                self.engine.on_time(self.now);
            }
        }
    }

    fn serve(&mut self, server: usize) {
        while self.servers[server].running < self.servers[server].speed.most
            && let Some(ticket) = self.servers[server].waiting.pop_front()
        {
            self.servers[server].running += 1;
            let service = self.servers[server].speed.service;
            let service = service.mul_f64(0.9 + 0.2 * self.random());
            self.after(service, Event::Finish { server, ticket });
        }
    }

    /// Does what the engine wants done.
    fn follow(&mut self) {
        while let Some(effect) = self.engine.poll() {
            match effect {
                Effect::Verdict { ticket, verdict: Verdict::Granted { .. }, .. } => {
                    let least = (0..self.servers.len()).min_by_key(|&server| self.servers[server].in_flight).unwrap();
                    self.servers[least].in_flight += 1;
                    self.place.insert(ticket, least);
                    self.engine.start(self.now, ticket, Start::on(EndpointKey(least as u64), 0)).unwrap();
                    self.after(NETWORK, Event::Reach { server: least, ticket });
                }
                Effect::Scrape { endpoint } => {
                    let server = usize::try_from(endpoint.0).unwrap();
                    let state = &mut self.servers[server];
                    if !std::mem::replace(&mut state.asked, true) {
                        let earliest = state.scraped.saturating_add(SCRAPE_PAUSE).max(self.now);
                        let event = Event::Scrape { server, in_turn: false };
                        self.after(earliest.saturating_since(self.now), event);
                    }
                }
                Effect::Verdict { verdict: Verdict::Dropped { .. }, .. }
                | Effect::Revoke { .. }
                | Effect::ManyBands { .. }
                | Effect::Reordered { .. }
                | Effect::Stale { .. } => {}
            }
        }
        if let Some(next) = self.engine.next_wakeup().filter(|next| self.armed.is_none_or(|armed| *next < armed)) {
            self.armed = Some(next);
            self.after(next.saturating_since(self.now), Event::Tick);
        }
    }

    fn after(&mut self, wait: Duration, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now.saturating_add(wait), self.sequence), event);
    }

    /// In `0.0..1.0`, the same in every run.
    #[expect(clippy::cast_precision_loss, reason = "a number of 24 bits")]
    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 40) as f64 / (1_u64 << 24) as f64
    }
}
