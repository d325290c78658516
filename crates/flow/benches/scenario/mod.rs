//! Engines in a state worth measuring.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Endpoint, EndpointId, EndpointUid, FlowKey, Priority, TerminationCause, Time};
use sluice_flow::{
    Ask, BandConfig, Config, Effect, Eligibility, Ended, EndpointKey, Engine, Park, PoolMember, Signal, Stages, Start,
    Ticket, Verdict, Waiter,
};
use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};

pub(crate) const ENDED: Ended = Ended { cause: TerminationCause::Natural, usage: None };

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

/// An engine, its clock, and who holds what.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) engine: Engine,
    now: Time,
    tenants: Vec<Arc<str>>,
    next_tenant: usize,
    /// Granted, the first first.
    pub(crate) granted: VecDeque<Ticket>,
    pub(crate) queued: Vec<Ticket>,
}

impl Scenario {
    /// `queued` requests of `tenants` tenants wait for `endpoints` endpoints of `limit` places, all of which are
    /// granted.
    pub(crate) fn new(queued: usize, tenants: usize, endpoints: u64, limit: u64) -> Self {
        let mut engine = Engine::new(config());
        engine.observe(Time::ZERO, pool(endpoints, limit));
        let mut scenario = Self {
            engine,
            now: Time::ZERO,
            tenants: (0..tenants).map(|tenant| format!("tenant-{tenant}").into()).collect(),
            next_tenant: 0,
            granted: VecDeque::new(),
            queued: Vec::new(),
        };
        let places = usize::try_from(endpoints * limit).expect("it fits");
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
        Ask { bytes: 1000, tokens: 250, ..Ask::new(FlowKey { tenant, priority: Priority(0) }, self.now) }
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

    /// As [`Scenario::new`] with one endpoint, beside `parked` requests that wait for another one, which has no
    /// room.
    pub(crate) fn with_parked(queued: usize, tenants: usize, limit: u64, parked: usize) -> Self {
        let mut scenario = Self::new(queued + parked, tenants, 1, limit);
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
