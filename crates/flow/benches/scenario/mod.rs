//! Engines in a state worth measuring.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Endpoint, EndpointId, EndpointUid, FlowKey, Priority, TerminationCause, Time};
use sluice_flow::policy::Usage;
use sluice_flow::{
    Ask, BandConfig, Config, Effect, Eligibility, Ended, EndpointKey, Engine, EvictionConfig, Park, PoolMember, Signal,
    Stages, Start, Ticket, TtlHeader, Verdict, Waiter,
};
use sluice_plugins::flow::{ConcurrencyDetector, Edf, Fcfs, RoundRobin, StaticUsageLimit, Weighted, Weights};

pub(crate) const ENDED: Ended =
    Ended { cause: TerminationCause::Natural, usage: Some(Usage { prompt: 250, output: 100 }) };

/// First come first served, round robin, 60 s in the queue, no limit on the queue that is ever reached.
pub(crate) fn config() -> Config {
    let template = BandConfig { max_requests: u64::MAX, ..BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin)) };
    Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(ConcurrencyDetector::default()))
}

pub(crate) fn pool(endpoints: u64, limit: u64) -> Signal {
    let member = |key: u64| {
        let (id, uid) = (EndpointId::new("default", &key.to_string()), EndpointUid(key.to_string().into()));
        let endpoint = Endpoint::new(id, uid, ([127, 0, 0, 1], 8000).into(), BTreeMap::new());
        PoolMember {
            key: EndpointKey(key),
            endpoint: Arc::new(endpoint),
            stages: Stages::DECODE,
            max_concurrency: Some(limit),
        }
    };
    Signal::Pool((0..endpoints).map(member).collect())
}

/// What engine and requests are like, beside their numbers.
#[derive(Debug)]
pub(crate) struct Kind {
    config: Config,
    /// Requests bring a time limit of their own, no two neighbours the same.
    hurried: bool,
    /// Requests of priority -1 that run and do not end.
    batch: u64,
}

impl Kind {
    pub(crate) fn plain() -> Self {
        Self { config: config(), hurried: false, batch: 0 }
    }

    /// Queues and deadlines that are no lines: each newcomer has a place among the others.
    pub(crate) fn by_deadline() -> Self {
        let mut config = config();
        config.template.ordering = Arc::new(Edf);
        Self { config, hurried: true, batch: 0 }
    }

    pub(crate) fn weighted() -> Self {
        let mut config = config();
        config.template.fairness = Arc::new(Weighted::new(Weights::default(), None));
        Self { config, ..Self::plain() }
    }

    /// Victims have been told to end and have not yet.
    pub(crate) fn evicting() -> Self {
        Self { config: Config { eviction: Some(EvictionConfig::default()), ..config() }, hurried: false, batch: 10 }
    }
}

/// An engine, its clock, and who holds what.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) engine: Engine,
    now: Time,
    tenants: Vec<Arc<str>>,
    next_tenant: usize,
    hurried: bool,
    next_ttl_millis: u64,
    /// Granted, the first first.
    pub(crate) granted: VecDeque<Ticket>,
    pub(crate) queued: Vec<Ticket>,
}

impl Scenario {
    /// `queued` requests of `tenants` tenants wait for `endpoints` endpoints of `limit` places, all of which are
    /// granted.
    pub(crate) fn new(queued: usize, tenants: usize, endpoints: u64, limit: u64) -> Self {
        Self::of(Kind::plain(), queued, tenants, endpoints, limit)
    }

    /// As [`Scenario::new`], of another kind.
    pub(crate) fn of(kind: Kind, queued: usize, tenants: usize, endpoints: u64, limit: u64) -> Self {
        let Kind { config, hurried, batch } = kind;
        let mut engine = Engine::new(config);
        engine.observe(Time::ZERO, pool(endpoints, limit));
        let mut scenario = Self {
            engine,
            now: Time::ZERO,
            tenants: (0..tenants).map(|tenant| format!("tenant-{tenant}").into()).collect(),
            next_tenant: 0,
            hurried,
            next_ttl_millis: 0,
            granted: VecDeque::new(),
            queued: Vec::new(),
        };
        for _ in 0..batch {
            let ask = Ask::new(FlowKey { tenant: "batch".into(), priority: Priority(-1) }, Time::ZERO);
            let ticket = scenario.engine.submit(Time::ZERO, ask, Waiter(1));
            let started = scenario.engine.start(Time::ZERO, ticket, Start::on(EndpointKey(0), 250));
            assert_eq!(started, Ok(()));
        }
        while scenario.engine.poll().is_some() {}
        let places = usize::try_from(endpoints * limit - batch).expect("it fits");
        for place in 0..queued + places {
            let ticket = scenario.submit();
            scenario.drain();
            if place >= places {
                scenario.queued.push(ticket);
            }
        }
        scenario
    }

    pub(crate) fn ask(&mut self) -> Ask {
        // A stride that is prime to the number of tenants: neighbours in the queue are not neighbours in
        // memory.
        self.next_tenant = (self.next_tenant + 7) % self.tenants.len();
        let tenant = Arc::clone(&self.tenants[self.next_tenant]);
        let mut ask = Ask { bytes: 1000, tokens: 250, ..Ask::new(FlowKey { tenant, priority: Priority(0) }, self.now) };
        if self.hurried {
            self.next_ttl_millis = (self.next_ttl_millis + 7_919) % 29_000;
            ask.ttl = TtlHeader::Within(Duration::from_millis(30_000 + self.next_ttl_millis));
        }
        ask
    }

    pub(crate) fn submit(&mut self) -> Ticket {
        self.now = self.now.saturating_add(Duration::from_nanos(500));
        let ask = self.ask();
        self.engine.submit(self.now, ask, Waiter(1))
    }

    /// Takes in what the engine said.
    pub(crate) fn drain(&mut self) {
        while let Some(effect) = self.engine.poll() {
            if let Effect::Verdict { ticket, verdict: Verdict::Granted { .. }, .. } = effect {
                self.granted.push_back(ticket);
            }
        }
    }

    /// Ends the first of those granted.
    pub(crate) fn release(&mut self) {
        if let Some(ticket) = self.granted.pop_front() {
            self.engine.release(self.now, ticket, ENDED);
        }
    }

    /// One request comes, one is granted, one ends.
    pub(crate) fn turn_over(&mut self) {
        self.submit();
        self.release();
        self.drain();
    }

    /// As [`Scenario::turn_over`], and the one that ends had been started.
    pub(crate) fn turn_over_started(&mut self) {
        self.submit();
        if let Some(&ticket) = self.granted.front() {
            let started = self.engine.start(self.now, ticket, Start::on(EndpointKey(0), 250));
            assert_eq!(started, Ok(()));
        }
        self.release();
        self.drain();
    }

    pub(crate) fn cancel(&mut self, ticket: Ticket) {
        self.engine.cancel(self.now, ticket);
    }

    /// `queued` requests of ten tenants wait, beside `idle` tenants each of which has something running and nothing that
    /// waits.
    pub(crate) fn with_idle_tenants(queued: usize, idle: usize) -> Self {
        let mut scenario = Self::new(0, idle, 1, idle as u64 + 100);
        scenario.granted.truncate(100);
        scenario.tenants = (0..10).map(|tenant| format!("busy-{tenant}").into()).collect();
        scenario.next_tenant = 0;
        for _ in 0..queued {
            let ticket = scenario.submit();
            scenario.queued.push(ticket);
        }
        scenario.drain();
        scenario
    }

    /// As [`Scenario::new`] with one endpoint, beside `parked` requests that wait for another one, which has no
    /// room.
    pub(crate) fn with_parked(kind: Kind, queued: usize, tenants: usize, limit: u64, parked: usize) -> Self {
        let mut scenario = Self::of(kind, queued + parked, tenants, 1, limit);
        let Signal::Pool(mut members) = pool(2, limit) else { unreachable!("a pool is a pool") };
        members[1].max_concurrency = Some(0);
        scenario.engine.observe(scenario.now, Signal::Pool(members));
        for _ in 0..parked {
            let Some(ticket) = scenario.granted.pop_front() else { break };
            let result = scenario.engine.park(scenario.now, ticket, Arc::new(Second));
            assert_eq!(result, Park::Waiting);
            scenario.drain();
        }
        scenario
    }
}

/// Whoever may use only the second endpoint.
#[derive(Debug)]
struct Second;

impl Eligibility for Second {
    fn allows(&self, endpoint: &Endpoint) -> bool {
        &*endpoint.id.name == "1"
    }
}
