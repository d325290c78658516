//! An engine to send one event to, with configurations in few words.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::{FlowKey, Priority, TerminationCause, Time};
use sluice_flow::policy::{FairnessPolicy, OrderingPolicy};
use sluice_flow::{
    Ask, BandConfig, Budgets, Config, Effect, Ended, EndpointKey, Engine, EvictionConfig, Outcome, Park, Signal,
    Stages, Start, StartError, Stats, Ticket, Verdict, Waiter,
};
use sluice_plugins::flow::{ConcurrencyDetector, Curve, Fcfs, PriorityHoldback, RoundRobin, StaticUsageLimit};

use super::endpoints::{Hint, member};

/// Decode endpoints `e0`, `e1`, … with these limits; the number is the key.
pub(crate) fn pool(limits: &[u64]) -> Signal {
    let members = limits
        .iter()
        .zip(0_u8..)
        .map(|(&limit, number)| member(number, u64::from(number), Stages::DECODE, Some(limit)));
    Signal::Pool(members.collect())
}

pub(crate) fn band(ordering: impl OrderingPolicy + 'static, fairness: impl FairnessPolicy + 'static) -> BandConfig {
    BandConfig::new(Arc::new(ordering), Arc::new(fairness))
}

/// First come first served, round robin, ceilings of 1, requests counted; 60 s in the queue.
pub(crate) fn plain() -> Config {
    Config::new(band(Fcfs, RoundRobin), Arc::new(StaticUsageLimit::default()), Arc::new(ConcurrencyDetector::default()))
}

/// With eviction, as it is by default.
pub(crate) fn evicting(mut config: Config) -> Config {
    config.eviction = Some(EvictionConfig::default());
    config
}

/// As [`plain`], with a band for each priority and its ceiling.
pub(crate) fn with_ceilings(ceilings: &[(i32, f64)]) -> Config {
    let list = ceilings.iter().map(|&(priority, ceiling)| (Priority(priority), ceiling)).collect();
    let holdback = PriorityHoldback::new(1.0, Curve::Explicit(list)).unwrap();
    let mut config = plain();
    config.usage_limit = Arc::new(holdback);
    for &(priority, _) in ceilings {
        config.bands.insert(Priority(priority), config.template.clone());
    }
    config
}

pub(crate) fn budgets(saturation_secs: u64, no_endpoint_secs: u64) -> Budgets {
    Budgets { saturation: Duration::from_secs(saturation_secs), no_endpoint: Duration::from_secs(no_endpoint_secs) }
}

pub(crate) fn hint(endpoints: &[u8]) -> Option<Arc<dyn sluice_flow::Eligibility>> {
    Some(Arc::new(Hint(endpoints.to_vec())))
}

pub(crate) fn ask(tenant: &str, priority: i32) -> Ask {
    Ask::new(FlowKey { tenant: tenant.into(), priority: Priority(priority) }, Time::ZERO)
}

/// An engine whose effects are collected after each call.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) now: Time,
    waiters: u64,
}

impl Rig {
    pub(crate) fn new(config: Config, limits: &[u64]) -> Self {
        let mut engine = Engine::new(config);
        engine.observe(Time::ZERO, pool(limits));
        Self { engine, now: Time::ZERO, waiters: 0 }
    }

    pub(crate) fn at_millis(&mut self, millis: u64) -> &mut Self {
        self.now = Time::from_millis(millis);
        self
    }

    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.engine.poll()).collect()
    }

    pub(crate) fn submit(&mut self, ask: Ask) -> (Ticket, Vec<Effect>) {
        self.waiters += 1;
        let ticket = self.engine.submit(self.now, ask, Waiter(self.waiters));
        (ticket, self.effects())
    }

    /// Submits one that has to wait.
    pub(crate) fn queue(&mut self, ask: Ask) -> Ticket {
        let (ticket, effects) = self.submit(ask);
        assert_eq!(effects, [], "it was not to be granted");
        ticket
    }

    /// Submits one that has to be granted at once.
    pub(crate) fn grant(&mut self, ask: Ask) -> Ticket {
        let (ticket, effects) = self.submit(ask);
        assert_eq!(verdicts(&effects), [(ticket, Verdict::Granted { reserved: None })]);
        ticket
    }

    /// Submits one that has to be granted at once, and starts it.
    pub(crate) fn run_on(&mut self, endpoint: u64, ask: Ask) -> Ticket {
        let tokens = ask.tokens;
        let ticket = self.grant(ask);
        self.engine.start(self.now, ticket, Start::on(EndpointKey(endpoint), tokens)).unwrap();
        assert_eq!(self.effects(), []);
        ticket
    }

    /// As [`Rig::run_on`], `count` times on the first endpoint.
    pub(crate) fn run_many(&mut self, count: usize, tenant: &str, priority: i32) -> Vec<Ticket> {
        (0..count).map(|_| self.run_on(0, ask(tenant, priority))).collect()
    }

    /// Books a granted ticket on an endpoint.
    pub(crate) fn start(&mut self, ticket: Ticket, endpoint: u64) -> Result<(), StartError> {
        self.engine.start(self.now, ticket, Start::on(EndpointKey(endpoint), 0))
    }

    /// Parks a granted ticket that may use these endpoints.
    pub(crate) fn park(&mut self, ticket: Ticket, endpoints: &[u8]) -> Park {
        self.engine.park(self.now, ticket, Arc::new(Hint(endpoints.to_vec())))
    }

    pub(crate) fn observe(&mut self, signal: Signal) -> Vec<Effect> {
        self.engine.observe(self.now, signal);
        self.effects()
    }

    pub(crate) fn release(&mut self, ticket: Ticket) -> Vec<Effect> {
        let ended = Ended { cause: TerminationCause::Natural, usage: None };
        self.engine.release(self.now, ticket, ended);
        self.effects()
    }

    pub(crate) fn on_time(&mut self) -> Vec<Effect> {
        self.engine.on_time(self.now);
        self.effects()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.engine.stats(self.now)
    }
}

pub(crate) fn verdicts(effects: &[Effect]) -> Vec<(Ticket, Verdict)> {
    let verdict = |effect: &Effect| match effect {
        Effect::Verdict { ticket, verdict, .. } => Some((*ticket, *verdict)),
        Effect::Revoke { .. }
        | Effect::ManyBands { .. }
        | Effect::Reordered { .. }
        | Effect::Scrape { .. }
        | Effect::Stale { .. } => None,
    };
    effects.iter().filter_map(verdict).collect()
}

/// The tickets granted by `effects`, in order.
pub(crate) fn granted(effects: &[Effect]) -> Vec<Ticket> {
    let grants = verdicts(effects).into_iter().filter(|(_, verdict)| matches!(verdict, Verdict::Granted { .. }));
    grants.map(|(ticket, _)| ticket).collect()
}

/// The tickets dropped by `effects`, in order.
pub(crate) fn dropped(effects: &[Effect]) -> Vec<(Ticket, Outcome)> {
    let outcome = |(ticket, verdict)| match verdict {
        Verdict::Dropped { outcome, .. } => Some((ticket, outcome)),
        Verdict::Granted { .. } => None,
    };
    verdicts(effects).into_iter().filter_map(outcome).collect()
}

/// The tickets revoked by `effects`, in order.
pub(crate) fn revoked(effects: &[Effect]) -> Vec<Ticket> {
    let revoke = |effect: &Effect| match effect {
        Effect::Revoke { ticket, .. } => Some(*ticket),
        Effect::Verdict { .. }
        | Effect::ManyBands { .. }
        | Effect::Reordered { .. }
        | Effect::Scrape { .. }
        | Effect::Stale { .. } => None,
    };
    effects.iter().filter_map(revoke).collect()
}
