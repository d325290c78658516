//! The gRPC service, and what all of its streams share.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::{Stream, StreamExt as _, stream};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sluice_core::{Clock, GoDuration};
use sluice_payload::Parsers;
use sluice_router::Router;
use tokio::sync::watch;
use tonic::codegen::{self, http};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::{Response, Status, Streaming};

use crate::body_memory::BodyMemory;
use crate::convert;
use crate::driver::Driver;
use crate::gave_up::GaveUpWatch;
use crate::metrics::Metrics;
use crate::notices::Notices;
use crate::reject::RefusalStyle;
use crate::session::{SessionSettings, StreamFacts, Wanted};
use crate::trailer_watch::Peer;
use crate::unread::{self, GivenUp, UnreadWatch};

/// What a configuration says about streams.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// What tells the API of a request, and so what of its body is read.
    pub parsers: Parsers,
    /// Larger request headers are refused with 431.
    pub max_request_headers: u64,
    /// A larger request body is refused with 413.
    pub max_request_body: u64,
    /// A request whose body stops arriving for so long is refused with 408; zero: never.
    pub body_progress_timeout: Duration,
    /// Bytes of requests, headers and bodies, that may wait here, in all.
    pub body_memory: u64,
    pub refusal_style: RefusalStyle,
    /// Refusals say when to come back, where that makes sense.
    pub retry_after: bool,
    /// Which bodies are asked for where the proxy lets the picker choose.
    pub bodies: Bodies,
    /// Some plugin reads request bodies, so that [`Bodies::Auto`] asks for them.
    pub needs_request_body: bool,
    /// Some plugin reads response bodies, so that [`Bodies::Auto`] asks for them.
    pub needs_response_body: bool,
    /// What endpoints have in flight is bounded in tokens.
    pub bounds_tokens: bool,
    /// A proxy whose message timeout is shorter than the wait of a request is asked for patience, in body modes that have
    /// such a timeout. It has effect where the proxy's `max_message_timeout` allows as much; a request that asked stays
    /// with this picker.
    pub extend_message_timeout: bool,
    /// Requests that wait when the process is about to end are left to another picker, as far as nothing was said of
    /// them yet and the proxy still has all of them; see [`Service::stop_reading`].
    pub hand_over: bool,
    /// How requests in flight are cut off for more urgent work; none if none ever is.
    pub eviction: Option<MidStream>,
    /// The namespace of the proxy's metadata that names objective and fairness id.
    pub vouched_namespace: String,
    /// Bytes of the largest message that is taken from the proxy.
    pub max_message: usize,
}

/// Which bodies to ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bodies {
    /// Those that a plugin needs, the event streams that may be cut off with a word, and those in which the name of the
    /// model is to be replaced.
    #[default]
    Auto,
    /// All.
    Full,
    /// None.
    Headers,
}

/// What the client of an event stream sees when the stream is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MidStream {
    /// An event that says why, then an abnormal end, so that nobody takes the response for complete.
    #[default]
    EventThenReset,
    /// The abnormal end alone.
    Reset,
    /// The event, then an orderly end.
    EventThenEnd,
}

/// The external processor.
#[derive(Clone, Debug)]
pub struct Service(Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    terms: ArcSwap<Terms>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) body_memory: Arc<BodyMemory>,
    pub(crate) notices: Notices,
    /// Of requests on connections without one of their own.
    peer: Peer,
    pub(crate) gave_up: GaveUpWatch,
    pub(crate) open_streams: AtomicUsize,
    unread: Arc<UnreadWatch>,
    /// Whether the process is about to end.
    pub(crate) ending: watch::Sender<bool>,
    next_seed: AtomicU64,
}

/// What the configuration in force decides. A stream keeps to its end what it began with; the scheduler alone is common
/// to all.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) router: Arc<Router>,
    pub(crate) session_settings: SessionSettings,
    pub(crate) bounds_tokens: bool,
    pub(crate) vouched_namespace: String,
    pub(crate) max_message: usize,
}

impl Terms {
    fn new(router: Arc<Router>, settings: ServiceSettings) -> Self {
        let ServiceSettings {
            parsers,
            max_request_headers,
            max_request_body,
            body_progress_timeout,
            body_memory,
            refusal_style,
            retry_after,
            bodies,
            needs_request_body,
            needs_response_body,
            bounds_tokens,
            extend_message_timeout,
            hand_over,
            eviction,
            vouched_namespace,
            max_message,
        } = settings;
        let wanted = match bodies {
            Bodies::Auto => Wanted {
                request: needs_request_body,
                response: needs_response_body,
                revocable: eviction.is_some_and(|how| how != MidStream::Reset),
                models: true,
            },
            Bodies::Full => Wanted { request: true, response: true, revocable: true, models: true },
            Bodies::Headers => Wanted::default(),
        };
        let session_settings = SessionSettings {
            parsers,
            max_request_headers,
            max_request_body,
            body_memory,
            body_progress_timeout,
            refusal_style,
            retry_after,
            wanted,
            extend_message_timeout,
            hand_over,
            eviction,
        };
        Self { router, session_settings, bounds_tokens, vouched_namespace, max_message }
    }
}

impl Service {
    /// `id_seed` makes the ids of requests without one; different in every process.
    pub fn new(
        router: Arc<Router>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        settings: ServiceSettings,
        id_seed: u64,
    ) -> Self {
        let body_memory = Arc::new(BodyMemory::new(settings.body_memory));
        Self(Arc::new(Shared {
            terms: ArcSwap::from_pointee(Terms::new(router, settings)),
            clock,
            metrics,
            body_memory,
            notices: Notices::default(),
            peer: Peer::default(),
            gave_up: GaveUpWatch::default(),
            open_streams: AtomicUsize::new(0),
            unread: Arc::default(),
            ending: watch::Sender::new(false),
            next_seed: AtomicU64::new(id_seed),
        }))
    }

    /// Another configuration is in force. Streams that are open go on by the one that they began with, but for the memory
    /// that requests may take in all: if they take more than the new budget, later ones have to wait until they fit.
    pub fn reconfigure(&self, router: Arc<Router>, settings: ServiceSettings) {
        self.0.body_memory.set_budget(settings.body_memory);
        self.0.terms.store(Arc::new(Terms::new(router, settings)));
    }

    /// The gRPC service. `max_reply` bounds one message to the proxy, in bytes.
    pub const fn into_server(self, max_reply: usize) -> Server {
        Server { service: self, max_reply }
    }

    /// Streams that have not ended yet.
    pub fn open_streams(&self) -> usize {
        self.0.open_streams.load(Ordering::Relaxed)
    }

    /// No stream is open, and the proxies have begun to take the last reply of each one that has ended. The rest of a
    /// reply that is longer than the room that the proxy had for it may still be on its way.
    pub fn is_idle(&self) -> bool {
        self.open_streams() == 0 && self.0.unread.len() == 0
    }

    /// Ends the streams whose proxies leave a reply untaken for a minute; never ready.
    pub async fn give_up_unread(self) {
        loop {
            tokio::time::sleep(unread::INTERVAL).await;
            let streams = self.0.unread.give_up(self.0.clock.now());
            if streams > 0 {
                tracing::warn!(streams, "streams given up: their proxies do not take the replies");
            }
        }
    }

    /// The process is about to end: turns away requests whose bodies are still arriving, now and from now on. Those that
    /// wait for an endpoint follow when admission closes.
    pub fn stop_reading(&self) {
        self.0.ending.send_replace(true);
    }
}

impl Shared {
    /// Random numbers that no other call gives.
    pub(crate) fn random(&self) -> impl FnMut() -> u64 {
        let mut rng = SmallRng::seed_from_u64(self.next_seed.fetch_add(1, Ordering::Relaxed));
        move || rng.next_u64()
    }
}

/// Serves a [`Service`] over gRPC.
#[derive(Clone, Debug)]
pub struct Server {
    service: Service,
    max_reply: usize,
}

impl NamedService for Server {
    const NAME: &'static str = <ExternalProcessorServer<Service> as NamedService>::NAME;
}

/// A server of gRPC has one bound on messages for all of its life. This one makes another for each stream, with what is in
/// force then.
impl<B> codegen::Service<http::Request<B>> for Server
where
    B: codegen::Body + Send + 'static,
    B::Error: Into<codegen::StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = codegen::BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let terms = self.service.0.terms.load_full();
        let server = ExternalProcessorServer::new(self.service.clone());
        let server = server.max_decoding_message_size(terms.max_message);
        request.extensions_mut().insert(terms);
        let given_up = GivenUp::default();
        request.extensions_mut().insert(given_up.clone());
        let unread = Arc::clone(&self.service.0.unread);
        let response = server.max_encoding_message_size(self.max_reply).call(request);
        Box::pin(async move { Ok(response.await?.map(|replies| unread.watch(replies, given_up))) })
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
        let peer = request.extensions().get::<Peer>().unwrap_or(&self.0.peer).clone();
        let opened = self.0.clock.now();
        let facts = StreamFacts {
            opened,
            deadline: timeout.map(|timeout| opened.saturating_add(in_time(timeout))),
            may_choose_modes: may_choose_modes(request.metadata()),
            message_timeout: message_timeout(request.metadata()),
            skips_trailers: peer.trailers().are_skipped(),
        };
        let terms = request.extensions().get::<Arc<Terms>>().map_or_else(|| self.0.terms.load_full(), Arc::clone);
        let given_up = request.extensions().get::<GivenUp>().cloned().unwrap_or_default();
        let driver = Driver::new(Arc::clone(&self.0), terms, peer, given_up, request.into_inner(), facts);
        let mut driver = Box::new(driver);
        let Some(first) = driver.next_reply().await.transpose()? else {
            return Ok(Response::new(Box::pin(stream::empty())));
        };
        let rest = stream::unfold(driver, |mut driver| async move {
            let reply = driver.next_reply().await?;
            Some((reply, driver))
        });
        let replies = stream::iter([Ok(first)]).chain(rest);
        Ok(Response::new(Box::pin(replies.map(|reply| reply.map(convert::outbound)))))
    }
}

/// A proxy does not say by itself whether it takes other body modes than the configured ones, and fails the request if
/// it does not: its configuration announces it.
fn may_choose_modes(metadata: &MetadataMap) -> bool {
    metadata.get("x-sluice-mode-override").is_some_and(|value| value.as_bytes() == b"allowed")
}

/// Nor does it say how long it waits for an answer outside full duplex: its configuration may announce that as well, in
/// the same words.
fn message_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("x-sluice-message-timeout")?.to_str().ok()?;
    text.parse::<GoDuration>().ok()?.non_negative()
}

/// How long a request may wait on a stream that ends after `timeout`, so that its refusal still arrives: both sides give
/// a stream without a reply up when the time is over, and the client would not learn why.
fn in_time(timeout: Duration) -> Duration {
    const MARGIN: Duration = Duration::from_millis(100);
    timeout - (timeout / 10).min(MARGIN)
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

#[cfg(test)]
#[path = "service_tests/mod.rs"]
mod tests;
