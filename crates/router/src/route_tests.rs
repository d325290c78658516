use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use sluice_core::{
    Api, BoxFuture, Clock, Criticality, DropReason, EndpointId, EndpointUid, Priority, RequestId, Spawn, SystemClock,
    Tasks, TerminationCause, TokenUsage,
};
use sluice_data::EndpointSpec;
use sluice_flow::policy::Usage;
use sluice_flow::{BandConfig, Config, Outcome, Signal};
use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};
use sluice_schedule::{Filter, Next, Picker, Profile, ProfileHandler, ProfileResult};

use super::*;
use crate::admission::Admission;
use crate::{IdentityRules, SheddingGate};

#[path = "route_tests/waiting.rs"]
mod waiting;

/// A clock that a test moves.
#[derive(Debug, Default)]
struct ByHand(AtomicU64);

impl Clock for ByHand {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// No test waits for a timer.
struct NoTasks;

impl Spawn for NoTasks {
    fn spawn(&self, _name: &'static str, _criticality: Criticality, _body: BoxFuture) {}
}

/// Runs the only profile; picks the candidate with the lowest address.
#[derive(Debug)]
struct Lowest;

impl ProfileHandler for Lowest {
    fn check(&self, _profile_names: &[&str]) -> Result<(), String> {
        Ok(())
    }

    fn next(&self, _request: &Request, results: &[Option<ProfileResult>]) -> Next {
        if results[0].is_some() { Next::Finish { primary: 0 } } else { Next::Run(0) }
    }
}

impl Picker for Lowest {
    fn pick(
        &self,
        _request: &Request,
        candidates: &[&Arc<Endpoint>],
        _scores: &[f32],
        _rng: &mut Rng,
        picked: &mut SmallVec<[usize; 4]>,
    ) {
        picked.extend((0..candidates.len()).min_by_key(|&index| candidates[index].address));
    }
}

fn spec(port: u16) -> EndpointSpec {
    EndpointSpec {
        id: EndpointId::new("default", &port.to_string()),
        uid: EndpointUid("1".into()),
        address: SocketAddr::from(([10, 0, 0, 1], port)),
        labels: BTreeMap::new(),
    }
}

fn one_per_endpoint() -> Config {
    let template = BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin));
    let detector = ConcurrencyDetector { max_concurrency: 1, ..ConcurrencyDetector::default() };
    Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(detector))
}

fn scheduler(filters: &[Arc<dyn Filter>]) -> Scheduler {
    let profile = Profile { name: "main".into(), filters: filters.to_vec(), scorers: vec![], picker: Arc::new(Lowest) };
    Scheduler::new(Arc::new(Lowest), vec![profile]).unwrap()
}

struct World {
    table: Arc<EndpointTable>,
    router: Router,
    admission: Option<Admission>,
}

/// Keeps the endpoints whose port is even, or those that are idle.
#[derive(Debug)]
enum Only {
    Even,
    Idle,
}

impl Filter for Only {
    fn filter(&self, _: &Request, candidates: &mut Candidates<'_>) {
        candidates.retain(|endpoint| match self {
            Self::Even => endpoint.address.port().is_multiple_of(2),
            Self::Idle => endpoint.load().requests() == 0,
        });
    }

    fn is_by_load(&self) -> bool {
        matches!(self, Self::Idle)
    }
}

impl World {
    fn new(ports: &[u16], gatekeeper: impl FnOnce(&Arc<EndpointTable>) -> (Gatekeeper, Option<Admission>)) -> Self {
        Self::filtering(&[], ports, gatekeeper)
    }

    fn filtering(
        filters: &[Arc<dyn Filter>],
        ports: &[u16],
        gatekeeper: impl FnOnce(&Arc<EndpointTable>) -> (Gatekeeper, Option<Admission>),
    ) -> Self {
        let table = Arc::new(EndpointTable::default());
        table.replace(ports.iter().copied().map(spec));
        let (gatekeeper, admission) = gatekeeper(&table);
        let router = Router::new(RouterParts {
            table: Arc::clone(&table),
            scheduler: SharedScheduler::new(scheduler(filters)),
            identities: Identities::new(IdentityRules::default(), BTreeMap::new()),
            rewrites: SharedModelRewrites::default(),
            gatekeeper,
            estimate: TokenEstimate::default(),
            admit_header_only: false,
            seed: 1,
            heed_subset: true,
        });
        Self { table, router, admission }
    }

    fn open(ports: &[u16]) -> Self {
        Self::new(ports, |_| (Gatekeeper::Open, None))
    }

    /// One request per endpoint.
    fn queueing(ports: &[u16]) -> Self {
        Self::queueing_with(&[], ports)
    }

    fn queueing_with(filters: &[Arc<dyn Filter>], ports: &[u16]) -> Self {
        Self::queueing_by(Arc::new(SystemClock::start()), filters, ports)
    }

    fn queueing_by(clock: Arc<dyn Clock>, filters: &[Arc<dyn Filter>], ports: &[u16]) -> Self {
        Self::queueing_as_by(one_per_endpoint(), clock, filters, ports)
    }

    fn queueing_as(config: Config, ports: &[u16]) -> Self {
        Self::queueing_as_by(config, Arc::new(SystemClock::start()), &[], ports)
    }

    fn queueing_as_by(config: Config, clock: Arc<dyn Clock>, filters: &[Arc<dyn Filter>], ports: &[u16]) -> Self {
        Self::filtering(filters, ports, |table| {
            let admission = Admission::start(config, clock, &Tasks::new(NoTasks));
            let listener = admission.clone();
            table.listen(move |snapshot| listener.set_pool(snapshot.endpoints()));
            (Gatekeeper::FlowControl(admission.clone()), Some(admission))
        })
    }

    fn route(
        &self,
        priority: i32,
        hint: Option<&str>,
    ) -> Pin<Box<dyn Future<Output = Result<Routed, Rejection>> + '_>> {
        let intent = Intent { subset: hint.map(|hint| Subset::parse([hint])), ..intent() };
        let identity = Identity { priority: Priority(priority), tenant: "a".into() };
        Box::pin(self.router.route(intent, identity))
    }

    fn place(&self, priority: i32, hint: Option<&str>) -> Option<Result<Routed, Rejection>> {
        poll(&mut self.route(priority, hint))
    }

    fn loads(&self) -> Vec<u64> {
        self.table.snapshot().endpoints().iter().map(|endpoint| endpoint.load().requests()).collect()
    }
}

fn intent() -> Intent {
    let request = Request {
        id: RequestId("r".into()),
        received: Time::ZERO,
        api: Api::OpenAiChat,
        headers: Headers::new(),
        model: Some("m".into()),
        target_model: Some("m".into()),
        rewritten_by: None,
        stream: true,
        max_output_tokens: None,
        body_bytes: 400,
    };
    Intent { request: Arc::new(request), subset: None, held_bytes: 400, header_only: false, deadline: None }
}

/// The answer, if it is there already.
fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn destination_of(routed: Option<Result<Routed, Rejection>>) -> (String, Option<InFlight>) {
    let routed = routed.expect("it need not wait").expect("it is placed");
    (routed.destination, routed.in_flight)
}

#[test]
fn a_destination_is_a_list_with_ipv6_in_brackets() {
    let targets: Vec<_> = ["10.0.0.1:8000", "[fd00::1]:8000"]
        .into_iter()
        .map(|address| {
            let id = EndpointId::new("default", address);
            Arc::new(Endpoint::new(id, EndpointUid("1".into()), address.parse().unwrap(), BTreeMap::new()))
        })
        .collect();
    assert_eq!(destination(&targets), "10.0.0.1:8000,[fd00::1]:8000");
    assert_eq!(destination(&targets[..1]), "10.0.0.1:8000");
}

#[test]
fn without_a_gate_everybody_is_placed_and_counted() {
    let world = World::open(&[1, 2]);
    let (destination, in_flight) = destination_of(world.place(0, None));
    assert_eq!(destination, "10.0.0.1:1");
    assert_eq!(world.loads(), [1, 0]);
    assert_eq!(world.table.snapshot().endpoints()[0].load().tokens(), 100, "a token for four bytes");
    drop(in_flight);
    assert_eq!(world.loads(), [0, 0]);
}

#[test]
fn without_a_gate_the_prompt_is_charged_until_the_first_bytes_of_the_answer() {
    let world = World::open(&[1]);
    let tokens = || world.table.snapshot().endpoints()[0].load().tokens();
    let (_, in_flight) = destination_of(world.place(0, None));
    let mut in_flight = in_flight.unwrap();
    in_flight.sending(0);
    assert_eq!(tokens(), 100, "an empty message is no answer");
    in_flight.sending(1);
    in_flight.sending(1);
    assert_eq!((tokens(), world.loads()), (0, vec![1]));
    drop(in_flight);
    assert_eq!((tokens(), world.loads()), (0, vec![0]));
}

#[test]
fn without_a_gate_an_estimate_of_the_output_is_charged_until_the_end() {
    let mut world = World::open(&[1]);
    world.router.estimate.output = Some(sluice_core::OutputEstimate { ratio: 1.0, max: None });
    let (_, in_flight) = destination_of(world.place(0, None));
    let mut in_flight = in_flight.unwrap();
    in_flight.sending(1);
    assert_eq!(world.table.snapshot().endpoints()[0].load().tokens(), 200);
    drop(in_flight);
    assert_eq!(world.table.snapshot().endpoints()[0].load().tokens(), 0);
}

#[test]
fn whatever_refuses_a_request_says_when_the_queues_will_have_drained() {
    let clock = Arc::new(ByHand::default());
    let world = World::queueing_by(Arc::clone(&clock) as _, &[Arc::new(Only::Even)], &[1, 2]);
    let (_, _held) = destination_of(world.place(0, None));
    let mut waiting = world.route(0, None);
    assert!(poll(&mut waiting).is_none());
    // One waits, and nobody has got in for ten seconds.
    clock.0.store(Time::from_secs(10).as_nanos(), Ordering::Relaxed);

    let unsuitable = world.place(0, Some("10.0.0.1:1")).unwrap().unwrap_err();
    assert!(matches!(unsuitable, Rejection::NoneAvailable { retry_after: 10..=20 }), "{unsuitable:?}");
    let intent = Intent { subset: Some(Subset::parse(["10.9.9.9"])), header_only: true, ..intent() };
    let identity = Identity { priority: Priority(0), tenant: "a".into() };
    let nowhere = poll(&mut Box::pin(world.router.route(intent, identity))).unwrap().unwrap_err();
    assert!(matches!(nowhere, Rejection::NoCandidates { retry_after: 10..=20 }), "{nowhere:?}");
    assert!((10..=20).contains(&world.router.retry_after_seconds(Priority(0))));
    assert!((10..=20).contains(&world.router.retry_after(Priority(0)).as_secs()));
}

#[test]
fn an_empty_pool_or_subset_is_a_503_where_nothing_waits() {
    for (world, hint) in [(World::open(&[]), None), (World::open(&[1]), Some("10.9.9.9"))] {
        let rejection = world.place(0, hint).unwrap().unwrap_err();
        assert!(matches!(rejection, Rejection::NoCandidates { retry_after: 1..=2 }), "{rejection:?}");
    }
}

#[test]
fn a_request_without_a_body_is_placed_but_not_counted() {
    let world = World::queueing(&[1]);
    let (_, _held) = destination_of(world.place(0, None));
    let identity = Identity { priority: Priority(0), tenant: "a".into() };
    let intent = Intent { header_only: true, ..intent() };
    let (destination, in_flight) = destination_of(poll(&mut Box::pin(world.router.route(intent, identity))));
    assert_eq!(destination, "10.0.0.1:1", "although the endpoint is full");
    assert!(in_flight.is_none());
}

#[test]
fn only_sheddable_work_is_shed_without_queues() {
    let detector = ConcurrencyDetector { max_concurrency: 1, ..ConcurrencyDetector::default() };
    let world = World::new(&[1], |_| {
        (Gatekeeper::Shedding(SheddingGate::new(Arc::new(detector), Arc::new(SystemClock::start()))), None)
    });
    let (_, held) = destination_of(world.place(-1, None));
    let rejection = world.place(-1, None).unwrap().unwrap_err();
    assert!(matches!(rejection, Rejection::Shed { retry_after: 1..=2 }), "{rejection:?}");
    let (_, second) = destination_of(world.place(0, None));
    assert_eq!(world.loads(), [2]);
    drop((held, second));
    destination_of(world.place(-1, None));
}
