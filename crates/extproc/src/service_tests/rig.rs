//! A picker on a loopback port, and a proxy's side of its streams.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Part;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
};
use futures_util::future::BoxFuture;
use prometheus::Registry;
use sluice_core::{
    BoxFuture as Body, Criticality, Endpoint, EndpointId, EndpointUid, Priority, Request, Spawn, SystemClock, Tasks,
    Time, TokenEstimate,
};
use sluice_data::{EndpointSpec, EndpointTable};
use sluice_flow::{BandConfig, Config, EvictionConfig};
use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};
use sluice_router::admission::Admission;
use sluice_router::{
    Gatekeeper, Identities, IdentityRules, Router, RouterParts, SharedModelRewrites, SharedScheduler, TenantLabels,
};
use sluice_schedule::{Candidates, Filter, Next, Picker, Profile, ProfileHandler, ProfileResult, Scheduler};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};

use super::super::*;

#[derive(Debug)]
struct First;

impl ProfileHandler for First {
    fn check(&self, _profile_names: &[&str]) -> Result<(), String> {
        Ok(())
    }

    fn next(&self, _request: &Request, results: &[Option<ProfileResult>]) -> Next {
        if results[0].is_some() { Next::Finish { primary: 0 } } else { Next::Run(0) }
    }
}

impl Picker for First {
    fn pick(
        &self,
        _request: &Request,
        _candidates: &[&Arc<Endpoint>],
        _scores: &[f32],
        _rng: &mut sluice_schedule::Rng,
        picked: &mut smallvec::SmallVec<[usize; 4]>,
    ) {
        picked.push(0);
    }
}

/// Panics on the model `panic`.
#[derive(Debug)]
struct Touchy;

impl Filter for Touchy {
    fn filter(&self, request: &Request, _candidates: &mut Candidates<'_>) {
        assert_ne!(request.model.as_deref(), Some("panic"), "on purpose");
    }
}

/// The machine's clock, until it is stopped.
#[derive(Debug)]
struct StoppableClock {
    running: SystemClock,
    stopped: OnceLock<Time>,
}

impl Clock for StoppableClock {
    fn now(&self) -> Time {
        self.stopped.get().copied().unwrap_or_else(|| self.running.now())
    }
}

/// A picker with the objective `batch` of priority -1, for as long as it lives, over the endpoints 10.0.0.1:80, which it picks, and 10.0.0.2:80.
pub(super) struct Picking {
    pub(super) service: Service,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    clock: Arc<StoppableClock>,
    registry: Registry,
    client: ExternalProcessorClient<Channel>,
    _stop: oneshot::Sender<()>,
}

impl Picking {
    pub(super) async fn start() -> Self {
        Self::start_with(settings(), |_| Gatekeeper::Open).await
    }

    pub(super) async fn start_with(
        settings: ServiceSettings,
        gatekeeper: impl FnOnce(&EndpointTable) -> Gatekeeper,
    ) -> Self {
        Self::start_by(IdentityRules::default(), settings, gatekeeper).await
    }

    #[expect(clippy::disallowed_methods, reason = "the runtime of the test ends its tasks")]
    pub(super) async fn start_by(
        rules: IdentityRules,
        settings: ServiceSettings,
        gatekeeper: impl FnOnce(&EndpointTable) -> Gatekeeper,
    ) -> Self {
        let table = Arc::new(EndpointTable::default());
        table.replace([1, 2].map(|number| EndpointSpec {
            id: EndpointId::new("default", &number.to_string()),
            uid: EndpointUid("1".into()),
            address: ([10, 0, 0, number], 80).into(),
            labels: BTreeMap::new(),
        }));
        let endpoints = table.snapshot().endpoints().to_vec();
        let profile =
            Profile { name: "main".into(), filters: vec![Arc::new(Touchy)], scorers: vec![], picker: Arc::new(First) };
        let router = Arc::new(Router::new(RouterParts {
            gatekeeper: gatekeeper(&table),
            table,
            scheduler: SharedScheduler::new(Scheduler::new(Arc::new(First), vec![profile]).unwrap()),
            identities: Identities::new(rules, [("batch".to_owned(), Priority(-1))].into()),
            rewrites: SharedModelRewrites::default(),
            estimate: TokenEstimate::default(),
            admit_header_only: false,
            seed: 1,
            heed_subset: true,
        }));
        let registry = Registry::new();
        let clock = Arc::new(StoppableClock { running: SystemClock::start(), stopped: OnceLock::new() });
        let tenants = TenantLabels::new(10, clock.clone());
        let metrics = Metrics::register(&registry, "p", tenants, false).unwrap();
        let service = Service::new(router, clock.clone(), metrics, settings, 1);

        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = incoming.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::builder().add_service(service.clone().into_server(usize::MAX));
        tokio::spawn(server.serve_with_incoming_shutdown(incoming, async { drop(stopped.await) }));
        let client = ExternalProcessorClient::connect(format!("http://{address}")).await.unwrap();
        Self { service, endpoints, clock, registry, client, _stop: stop }
    }

    /// From now on nothing takes any time, as the streams see it: none of their timeouts ends.
    pub(super) fn stop_clock(&self) {
        self.clock.stopped.set(self.clock.running.now()).unwrap();
    }

    /// Puts other settings in force.
    pub(super) fn reconfigure(&self, settings: ServiceSettings) {
        let router = Arc::clone(&self.service.0.terms.load().router);
        self.service.reconfigure(router, settings);
    }

    /// Opens a stream with `messages`. Ready with the first answer; the stream stays open while the sender lives.
    pub(super) async fn open(&self, messages: Vec<ProcessingRequest>) -> Result<Proxy, Status> {
        self.open_announcing(messages, false).await
    }

    /// The same, announcing that the picker may choose the body modes.
    pub(super) async fn open_announcing(
        &self,
        messages: Vec<ProcessingRequest>,
        may_choose_modes: bool,
    ) -> Result<Proxy, Status> {
        open(self.client.clone(), messages, Announced { may_choose_modes, ..Announced::default() }).await
    }

    /// The same, announcing that the stream ends after `timeout`.
    pub(super) async fn open_within(
        &self,
        timeout: Duration,
        messages: Vec<ProcessingRequest>,
    ) -> Result<Proxy, Status> {
        open(self.client.clone(), messages, Announced { timeout: Some(timeout), ..Announced::default() }).await
    }

    /// Opens a stream that gets no answer for now.
    #[expect(clippy::disallowed_methods, reason = "the runtime of the test ends its tasks")]
    pub(super) async fn open_waiting(&self, messages: Vec<ProcessingRequest>) -> JoinHandle<Result<Proxy, Status>> {
        let before = self.service.open_streams();
        let opening = tokio::spawn(open(self.client.clone(), messages, Announced::default()));
        while self.service.open_streams() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // What was sent with the stream arrives with it, or a moment later.
        tokio::time::sleep(Duration::from_millis(20)).await;
        opening
    }

    /// Sends messages, some after a pause, and then no more. All replies, and the error if one ended the stream.
    pub(super) async fn exchange(
        &self,
        messages: Vec<(ProcessingRequest, bool)>,
        may_choose_modes: bool,
    ) -> (Vec<ProcessingResponse>, Option<Status>) {
        let messages = stream::iter(messages).then(|(message, pause)| async move {
            if pause {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            message
        });
        let mut request = tonic::Request::new(messages);
        if may_choose_modes {
            request.metadata_mut().insert("x-sluice-mode-override", "allowed".parse().unwrap());
        }
        let mut replies = Vec::new();
        let mut stream = match self.client.clone().process(request).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return (replies, Some(status)),
        };
        loop {
            match stream.message().await {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => return (replies, None),
                Err(status) => return (replies, Some(status)),
            }
        }
    }

    /// A chat that may be cut off.
    pub(super) async fn batch_chat(&self) -> Result<Proxy, Status> {
        self.open(vec![batch_headers(), request_body(r#"{"model":"m"}"#)]).await
    }

    /// A chat for `model`.
    pub(super) async fn chat(&self, model: &str) -> Result<Proxy, Status> {
        self.open(vec![request_headers(), request_body(&format!(r#"{{"model":"{model}"}}"#))]).await
    }

    pub(super) fn in_flight(&self) -> Vec<u64> {
        self.endpoints.iter().map(|endpoint| endpoint.load().requests()).collect()
    }

    /// Waits until nothing is in flight and no stream is open.
    pub(super) async fn idle(&self) {
        for _ in 0..5_000 {
            if self.in_flight() == [0, 0] && self.service.open_streams() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{:?} in flight, {} streams", self.in_flight(), self.service.open_streams());
    }

    pub(super) fn errors(&self, code: &str) -> f64 {
        self.count("llm_d_epp_request_error_total", code)
    }

    /// The sum of the counters of a family that have this value of a label; `*` for all.
    pub(super) fn count(&self, family: &str, label: &str) -> f64 {
        let families = self.registry.gather();
        let found = families.iter().filter(|found| found.name() == family);
        found
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .filter(|metric| label == "*" || metric.get_label().iter().any(|pair| pair.value() == label))
            .map(|metric| metric.get_counter().get_value())
            .sum()
    }
}

/// What a stream says of itself.
#[derive(Clone, Copy, Default)]
struct Announced {
    may_choose_modes: bool,
    timeout: Option<Duration>,
}

fn open(
    mut client: ExternalProcessorClient<Channel>,
    messages: Vec<ProcessingRequest>,
    announced: Announced,
) -> BoxFuture<'static, Result<Proxy, Status>> {
    let (sender, mut receiver) = mpsc::channel(messages.len().max(8));
    Box::pin(async move {
        for message in messages {
            sender.send(message).await.unwrap();
        }
        let mut request = tonic::Request::new(stream::poll_fn(move |context| receiver.poll_recv(context)));
        if let Some(timeout) = announced.timeout {
            request.set_timeout(timeout);
        }
        if announced.may_choose_modes {
            request.metadata_mut().insert("x-sluice-mode-override", "allowed".parse().unwrap());
        }
        let replies = client.process(request).await?.into_inner();
        Ok(Proxy { sender, replies })
    })
}

/// The proxy's side of a stream.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) sender: mpsc::Sender<ProcessingRequest>,
    pub(super) replies: Streaming<ProcessingResponse>,
}

impl Proxy {
    pub(super) async fn send(&self, message: ProcessingRequest) {
        self.sender.send(message).await.unwrap();
    }

    pub(super) async fn reply(&mut self) -> ProcessingResponse {
        self.replies.message().await.unwrap().expect("a reply")
    }

    pub(super) async fn answer(&mut self) -> Answer {
        self.reply().await.response.expect("an answer")
    }

    /// The status and the body of the refusal that comes next.
    pub(super) async fn refusal(&mut self) -> (i32, String) {
        match self.answer().await {
            Answer::ImmediateResponse(reply) => (reply.status.unwrap().code, String::from_utf8(reply.body).unwrap()),
            other => panic!("no refusal: {other:?}"),
        }
    }
}

struct OnThisRuntime;

impl Spawn for OnThisRuntime {
    #[expect(clippy::disallowed_methods, reason = "the runtime of the test ends its tasks")]
    fn spawn(&self, _name: &'static str, _criticality: Criticality, body: Body) {
        tokio::spawn(body);
    }
}

/// Flow control with one request per endpoint at a time; the others wait.
pub(super) fn one_at_a_time(table: &EndpointTable) -> Admission {
    one_at_a_time_evicting(table, None)
}

/// The same, with running requests that make room.
pub(super) fn one_at_a_time_evicting(table: &EndpointTable, eviction: Option<EvictionConfig>) -> Admission {
    let admission =
        Admission::start(one_at_a_time_config(eviction), Arc::new(SystemClock::start()), &Tasks::new(OnThisRuntime));
    let listener = admission.clone();
    table.listen(move |snapshot| listener.set_pool(snapshot.endpoints()));
    admission
}

/// What such an engine runs on.
pub(super) fn one_at_a_time_config(eviction: Option<EvictionConfig>) -> Config {
    let template = BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin));
    let detector = ConcurrencyDetector { max_concurrency: 1, ..ConcurrencyDetector::default() };
    Config { eviction, ..Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(detector)) }
}

pub(super) fn settings() -> ServiceSettings {
    ServiceSettings {
        parsers: Parsers::ALL,
        max_request_headers: 64 << 10,
        max_request_body: 1 << 20,
        body_progress_timeout: Duration::from_secs(60),
        body_memory: 1 << 20,
        refusal_style: RefusalStyle::Api,
        retry_after: true,
        bodies: Bodies::Auto,
        needs_request_body: false,
        needs_response_body: false,
        bounds_tokens: false,
        extend_message_timeout: true,
        hand_over: false,
        eviction: None,
        vouched_namespace: "sluice".into(),
        max_message: 200 << 10,
    }
}

pub(super) fn request_headers() -> ProcessingRequest {
    request_headers_with(&[])
}

pub(super) fn request_headers_with(lines: &[(&str, &str)]) -> ProcessingRequest {
    let all = [(":method", "POST"), (":path", "/v1/chat/completions")].into_iter().chain(lines.iter().copied());
    message(Part::RequestHeaders(http_headers(all)))
}

/// The headers of a request that may be cut off.
pub(super) fn batch_headers() -> ProcessingRequest {
    request_headers_with(&[("x-llm-d-inference-objective", "batch"), ("x-request-id", "same")])
}

/// In the first message of a stream a proxy tells how it sends bodies.
pub(super) fn telling(modes: [BodySendMode; 2], message: ProcessingRequest) -> ProcessingRequest {
    let [request_body_mode, response_body_mode] = modes.map(i32::from);
    let config = ProtocolConfiguration { request_body_mode, response_body_mode, ..Default::default() };
    ProcessingRequest { protocol_config: Some(config), ..message }
}

pub(super) fn request_body(body: &str) -> ProcessingRequest {
    request_piece(body.as_bytes().to_vec(), true)
}

pub(super) fn request_piece(body: Vec<u8>, end_of_stream: bool) -> ProcessingRequest {
    message(Part::RequestBody(HttpBody { body, end_of_stream, ..HttpBody::default() }))
}

pub(super) fn response_headers(lines: &[(&str, &str)]) -> ProcessingRequest {
    message(Part::ResponseHeaders(http_headers(lines.iter().copied())))
}

pub(super) fn response_chunk(body: &str) -> ProcessingRequest {
    message(Part::ResponseBody(HttpBody { body: body.into(), ..HttpBody::default() }))
}

pub(super) fn response_end() -> ProcessingRequest {
    message(Part::ResponseBody(HttpBody { end_of_stream: true, ..HttpBody::default() }))
}

pub(super) fn response_trailers() -> ProcessingRequest {
    message(Part::ResponseTrailers(HttpTrailers::default()))
}

fn http_headers<'a>(lines: impl Iterator<Item = (&'a str, &'a str)>) -> HttpHeaders {
    let line = |(key, value): (&str, &str)| HeaderValue {
        key: key.into(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    HttpHeaders { headers: Some(HeaderMap { headers: lines.map(line).collect() }), ..HttpHeaders::default() }
}

fn message(request: Part) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..ProcessingRequest::default() }
}
