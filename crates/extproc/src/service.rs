//! Drives one [`Session`] per stream.
//!
//! There is no task and no channel per stream: the reply stream itself reads what the proxy sends, so a request
//! whose stream is dropped, by a reset or at shutdown, is cleaned up by the drop.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sluice_core::{Clock, TerminationCause, Time, TokenUsage};
use sluice_router::{Identity, InFlight, Intent, Rejection, Resolved, Routed, Router};
use tonic::{Response, Status, Streaming};

use crate::action::{Action, Close, Ending, Outcome};
use crate::convert;
use crate::message::{Inbound, InboundEnd, Message};
use crate::metrics::{Labels, Metrics, Running};
use crate::reject::RefusalStyle;
use crate::reply::Reply;
use crate::request_headers::is_header_only;
use crate::session::{Session, SessionSettings};

/// What the service is told at start.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// A larger request body is refused with 413.
    pub max_request_body: u64,
    pub refusal_style: RefusalStyle,
    /// Refusals say when to come back, where that makes sense.
    pub retry_after: bool,
    /// The namespace of the proxy's metadata that names objective and fairness id.
    pub vouched_namespace: String,
    /// Makes the ids of requests without one; different in every process.
    pub id_seed: u64,
}

/// The external processor.
#[derive(Clone, Debug)]
pub struct Service(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    router: Arc<Router>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    session_settings: SessionSettings,
    vouched_namespace: String,
    next_id: AtomicU64,
    open_streams: AtomicUsize,
}

impl Service {
    pub fn new(router: Arc<Router>, clock: Arc<dyn Clock>, metrics: Metrics, settings: ServiceSettings) -> Self {
        let ServiceSettings { max_request_body, refusal_style, retry_after, vouched_namespace, id_seed } = settings;
        let session_settings = SessionSettings { max_request_body, refusal_style, retry_after };
        let next_id = AtomicU64::new(id_seed);
        let open_streams = AtomicUsize::new(0);
        Self(Arc::new(Shared { router, clock, metrics, session_settings, vouched_namespace, next_id, open_streams }))
    }

    /// The gRPC service. `max_message` bounds one message from the proxy, in bytes.
    pub fn into_server(self, max_message: usize) -> ExternalProcessorServer<Self> {
        ExternalProcessorServer::new(self).max_decoding_message_size(max_message)
    }

    /// Streams that have not ended yet.
    pub fn open_streams(&self) -> usize {
        self.0.open_streams.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// A random UUID (version 4).
    fn fresh_id(&self) -> String {
        let mut rng = SmallRng::seed_from_u64(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (high, low) = (rng.next_u64(), rng.next_u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            low >> 48 & 0x3fff | 0x8000,
            low & 0xffff_ffff_ffff,
        )
    }
}

type ReplyStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalProcessor for Service {
    type ProcessStream = ReplyStream;

    /// Returns with the first reply, not before: until gRPC response headers came, a proxy may still move the
    /// request to another picker.
    async fn process(
        &self,
        request: tonic::Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<ReplyStream>, Status> {
        let timeout = request.metadata().get("grpc-timeout").and_then(|value| grpc_timeout(value.as_bytes()));
        let deadline = timeout.map(|timeout| self.0.clock.now().saturating_add(timeout));
        let mut driver = Box::new(Driver::new(Arc::clone(&self.0), request.into_inner(), deadline));
        let Some(first) = driver.next_reply().await.transpose()? else {
            return Ok(Response::new(Box::pin(stream::empty())));
        };
        let rest = stream::unfold(driver, |mut driver| async move {
            let reply = driver.next_reply().await?;
            Some((reply, driver))
        });
        Ok(Response::new(Box::pin(stream::iter([Ok(first)]).chain(rest))))
    }
}

/// The gRPC header `grpc-timeout`: at most eight digits and a unit.
fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| (1..=8).contains(&digits.len()))?;
    let number: u64 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3_600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

type Routing = Pin<Box<dyn Future<Output = Result<Routed, Rejection>> + Send>>;

/// One stream: its session and everything the request holds.
struct Driver {
    shared: Arc<Shared>,
    inbound: Streaming<ProcessingRequest>,
    /// When the proxy gives the stream up.
    deadline: Option<Time>,
    session: Session,
    /// Scratch for what one step of the session asks for.
    actions: Vec<Action>,
    outbox: VecDeque<Reply>,
    close: Option<Close>,
    routing: Option<Routing>,
    routing_since: Time,
    identity: Option<Identity>,
    labels: Labels,
    in_flight: Option<InFlight>,
    running: Option<Running>,
    ended: bool,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("session", &self.session).finish_non_exhaustive()
    }
}

/// What a stream waits for.
enum Event {
    Inbound(Result<Option<ProcessingRequest>, Status>),
    Routed(Result<Routed, Rejection>),
}

impl Driver {
    fn new(shared: Arc<Shared>, inbound: Streaming<ProcessingRequest>, deadline: Option<Time>) -> Self {
        let session = Session::new(shared.session_settings);
        shared.open_streams.fetch_add(1, Ordering::Relaxed);
        Self {
            shared,
            inbound,
            deadline,
            session,
            actions: Vec::new(),
            outbox: VecDeque::new(),
            close: None,
            routing: None,
            routing_since: Time::ZERO,
            identity: None,
            labels: Labels::default(),
            in_flight: None,
            running: None,
            ended: false,
        }
    }

    /// The next message to the proxy; `None` is the clean end of a finished request. A panic on the way ends this
    /// stream with an error, and no other.
    async fn next_reply(&mut self) -> Option<Result<ProcessingResponse, Status>> {
        match AssertUnwindSafe(self.advance()).catch_unwind().await {
            Ok(reply) => reply,
            Err(_panic) => {
                self.end(Outcome::Terminated { cause: TerminationCause::Error, status: None }, TokenUsage::default());
                self.outbox.clear();
                self.close = Some(Close::Finished);
                Some(Err(Status::internal("the picker failed on this request")))
            }
        }
    }

    async fn advance(&mut self) -> Option<Result<ProcessingResponse, Status>> {
        loop {
            if let Some(reply) = self.outbox.pop_front() {
                return Some(Ok(convert::outbound(reply)));
            }
            match self.close {
                Some(Close::Finished) => return None,
                Some(Close::Failed(what)) => {
                    self.close = Some(Close::Finished);
                    return Some(Err(Status::unavailable(what)));
                }
                None => {}
            }
            match self.next_event().await {
                Event::Inbound(Ok(Some(request))) => self.on_message(request),
                Event::Inbound(Ok(None)) => self.session.on_inbound_end(InboundEnd::HalfClosed, &mut self.actions),
                Event::Inbound(Err(status)) => self.session.on_inbound_end(end_of(&status), &mut self.actions),
                Event::Routed(routed) => self.on_routed(routed),
            }
            self.act();
        }
    }

    fn on_message(&mut self, request: ProcessingRequest) {
        let now = self.shared.clock.now();
        let mut inbound = convert::inbound(request, &self.shared.vouched_namespace);
        self.identify(&mut inbound);
        self.session.on_message(now, inbound, || self.shared.fresh_id(), &mut self.actions);
    }

    /// Reads what had arrived when the stream was dropped, and how the proxy ended it: a proxy that resets a stream has
    /// often ended its side just before.
    fn hear_out(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let next = pin!(self.inbound.message()).poll(&mut context);
            let end = match next {
                Poll::Ready(Ok(Some(request))) => {
                    self.on_message(request);
                    self.act();
                    continue;
                }
                Poll::Ready(Ok(None)) | Poll::Pending => InboundEnd::HalfClosed,
                Poll::Ready(Err(status)) => end_of(&status),
            };
            self.session.on_inbound_end(end, &mut self.actions);
            self.act();
            return;
        }
    }

    /// With the request headers it is known who the request is from, and sometimes that it need not go on.
    fn identify(&mut self, inbound: &mut Inbound) {
        let Inbound { message: Message::RequestHeaders { headers, end_of_stream }, vouched, refusal, .. } = inbound
        else {
            return;
        };
        let header_only = is_header_only(headers, *end_of_stream);
        match self.shared.router.identify(headers, vouched.as_ref()) {
            Ok(Resolved { identity, unknown_objective }) => {
                if unknown_objective {
                    self.shared.metrics.objective_not_found();
                }
                self.labels = self.shared.metrics.labels(&identity);
                if let Some(rejection) = self.shared.router.refuse_by_headers(&identity, headers, header_only) {
                    if let Rejection::NotAdmitted { outcome, .. } = rejection {
                        self.shared.metrics.queued(&mut self.labels, outcome, Duration::ZERO);
                    }
                    *refusal = Some(rejection.into());
                }
                self.identity = Some(identity);
            }
            Err(rejection) => {
                if matches!(rejection, Rejection::UnknownObjective { .. }) {
                    self.shared.metrics.objective_not_found();
                }
                *refusal = Some(rejection.into());
            }
        }
    }

    /// Messages come first: one of them may tell that the request is dead, and a dead request must not be placed.
    async fn next_event(&mut self) -> Event {
        let Self { inbound, routing, .. } = self;
        tokio::select! {
            biased;
            message = inbound.message() => Event::Inbound(message),
            routed = async { routing.as_mut().expect("guarded").await }, if routing.is_some() => Event::Routed(routed),
        }
    }

    fn on_routed(&mut self, routed: Result<Routed, Rejection>) {
        self.routing = None;
        let outcome = match &routed {
            Ok(_) => sluice_flow::Outcome::Dispatched,
            Err(Rejection::NotAdmitted { outcome, .. }) => *outcome,
            Err(_) => sluice_flow::Outcome::EvictedOther,
        };
        let result = match routed {
            Ok(Routed { destination, in_flight }) => {
                self.in_flight = in_flight;
                self.running = Some(self.shared.metrics.placed(&mut self.labels));
                Ok(destination)
            }
            Err(rejection) => Err(rejection.into()),
        };
        self.queued(outcome);
        self.session.on_routed(result, &mut self.actions);
    }

    fn act(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Route(intent) => self.start_routing(intent),
                Action::StopRouting => self.stop_routing(),
                Action::Reply(reply) => self.outbox.push_back(reply),
                Action::Sending(bytes) => {
                    if let Some(in_flight) = &mut self.in_flight {
                        in_flight.sending(bytes);
                    }
                }
                Action::End(Ending { outcome, usage }) => {
                    tracing::debug!(?outcome, ?usage, "request ended");
                    self.end(outcome, usage);
                }
                Action::Close(close) => self.close = Some(close),
            }
        }
        self.actions = actions;
    }

    fn start_routing(&mut self, intent: Intent) {
        let Some(identity) = self.identity.take() else { return };
        self.labels.name_model(&intent.request);
        let intent = Intent { deadline: self.deadline, ..intent };
        self.routing_since = self.shared.clock.now();
        let router = Arc::clone(&self.shared.router);
        self.routing = Some(Box::pin(async move { router.route(intent, identity).await }));
    }

    /// The request is dead. If it was waiting, it leaves the queue at once.
    fn stop_routing(&mut self) {
        if self.routing.take().is_some() {
            self.queued(sluice_flow::Outcome::EvictedContextCancelled);
        }
    }

    /// Records how long the request waited for `outcome`.
    fn queued(&mut self, outcome: sluice_flow::Outcome) {
        if self.shared.router.has_queues() {
            let waited = self.shared.clock.now().saturating_since(self.routing_since);
            self.shared.metrics.queued(&mut self.labels, outcome, waited);
        }
    }

    /// Releases what the request holds, and counts it if it failed.
    fn end(&mut self, outcome: Outcome, usage: TokenUsage) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.stop_routing();
        self.running = None;
        if let Some(in_flight) = self.in_flight.take() {
            let cause = match outcome {
                Outcome::Terminated { cause, .. } => cause,
                Outcome::Refused(_) => TerminationCause::Error,
            };
            in_flight.finish(cause, usage);
        }
        let error_code = match outcome {
            Outcome::Refused(code) => Some(code.as_str()),
            Outcome::Terminated { status: Some(400..), .. } => Some("ModelServerError"),
            Outcome::Terminated { cause: TerminationCause::Error, .. } => Some("Unknown"),
            Outcome::Terminated { .. } => None,
        };
        if let Some(error_code) = error_code {
            self.shared.metrics.failed(&self.labels, error_code);
        }
    }
}

/// How the proxy's side ended, told by an error: it cancels when the client leaves, anything else is a failure.
fn end_of(status: &Status) -> InboundEnd {
    tracing::debug!(%status, "the proxy's stream broke");
    if status.code() == tonic::Code::Cancelled { InboundEnd::HalfClosed } else { InboundEnd::Failed }
}

/// The stream may be dropped at any time: the client left, the model server broke off, or the process shuts down.
impl Drop for Driver {
    fn drop(&mut self) {
        if !self.ended && !std::thread::panicking() {
            self.hear_out();
        }
        self.end(Outcome::Terminated { cause: TerminationCause::ClientDisconnect, status: None }, self.session.usage());
        self.shared.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
