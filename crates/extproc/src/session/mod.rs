//! One HTTP request as the proxy tells it: a pure state machine, message in, actions out.
//!
//! ```text
//! request    Waiting ─headers─> Reading ─body─> Routing ─on_routed─> Sent
//!                │                 │               ^  │
//!                │                 │               │  └── refused, or answered by the proxy ──> Over
//!                └── nothing to read, or not here ─┘
//! response   Waiting ─headers─> Passing ─end─> Complete
//! ```
//!
//! | request body mode | Reading | headers are answered | each body message is answered |
//! |---|---|---|---|
//! | FULL_DUPLEX_STREAMED | whole body | with the decision, after the body | with its bytes |
//! | BUFFERED | whole body | at once, without a decision | with the decision |
//! | STREAMED, NONE | – | with the decision | with one word, after the headers |
//!
//! The two sides advance on their own, because a proxy may answer a request itself before the picker has: then
//! response headers arrive while the request is still being read or routed, and it is dead.
//!
//! Kept by every run: at most one [`Action::Route`]; exactly one [`Action::End`]; [`Action::Close`] is the last
//! action; replies are in the order headers, body, trailers for each direction.
//!
//! Bodies go on as they came, but for the name of the model: [`rewriting`].

mod ending;
mod limits;
mod modes;
mod request;
mod response;
mod revocation;
mod rewriting;
mod timing;

pub(crate) use rewriting::heed_only_vouched;

use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Api, Time, TokenUsage};
use sluice_data::Subset;
use sluice_payload::Parsers;
use sluice_router::ModelRewrites;

use crate::action::Action;
use crate::error_shape::ErrorShape;
use crate::message::{BodyMode, BodyModes, Inbound, Message};
use crate::phases::{RequestPhase, ResponsePhase};
use crate::reject::{Refusal, RefusalStyle};
use crate::reply::Reply;
use crate::request_headers::BodyLimit;
use crate::service::MidStream;
use crate::session::revocation::Revocation;
use crate::session::rewriting::Renamed;

/// What the settings say about every session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionSettings {
    /// What tells the API of a request, and so what of its body is read.
    pub(crate) parsers: Parsers,
    /// Larger request headers are refused with 431.
    pub(crate) max_request_headers: u64,
    /// A larger request body is refused with 413.
    pub(crate) max_request_body: u64,
    /// The bytes of requests that may be held at once. A request that does not fit alone is refused with 413.
    pub(crate) body_memory: u64,
    /// A request whose body stops arriving for so long is refused with 408; zero: never.
    pub(crate) body_progress_timeout: Duration,
    pub(crate) refusal_style: RefusalStyle,
    /// Refusals say when to come back, where that makes sense.
    pub(crate) retry_after: bool,
    /// The bodies to ask for where the proxy lets the picker choose.
    pub(crate) wanted: Wanted,
    /// A proxy whose message timeout is shorter than the wait of a request is asked for patience.
    pub(crate) extend_message_timeout: bool,
    /// A request that cannot stay because the process is about to end is left to another picker.
    pub(crate) hand_over: bool,
    /// How requests in flight are cut off for more urgent work; none if none ever is.
    pub(crate) eviction: Option<MidStream>,
}

#[cfg(test)]
impl SessionSettings {
    pub(crate) const TEST: Self = Self {
        parsers: Parsers::ALL,
        max_request_headers: 500,
        max_request_body: 1_000,
        body_memory: 10_000,
        body_progress_timeout: Duration::from_secs(60),
        refusal_style: RefusalStyle::Api,
        retry_after: true,
        wanted: Wanted { request: false, response: false, revocable: false, models: false },
        extend_message_timeout: true,
        hand_over: false,
        eviction: Some(MidStream::EventThenReset),
    };
}

/// Bodies that are worth their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) request: bool,
    pub(crate) response: bool,
    /// Event streams of requests that may be cut off, so that they can be told why.
    pub(crate) revocable: bool,
    /// Of requests whose models are replaced, and of their responses.
    pub(crate) models: bool,
}

/// What is known of one stream before its first message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamFacts {
    pub(crate) opened: Time,
    /// When the proxy is about to give the stream up: the last moment for a refusal.
    pub(crate) deadline: Option<Time>,
    /// The proxy lets the picker choose the body modes.
    pub(crate) may_choose_modes: bool,
    /// How long the proxy waits for an answer, if it tells.
    pub(crate) message_timeout: Option<Duration>,
    /// The proxy ends its streams with the headers of the response, as far as is known of it.
    pub(crate) skips_trailers: bool,
}

#[derive(Debug)]
pub(crate) struct Session {
    settings: SessionSettings,
    facts: StreamFacts,
    rewrites: Arc<ModelRewrites>,
    /// As the proxy told, or as the picker asked for instead.
    modes: Option<BodyModes>,
    /// The body of the request is on its way because the picker asked for it.
    asked_for_request: bool,
    /// The response mode before the picker asked for another one, until the proxy is seen to heed that.
    mode_before: Option<BodyMode>,
    subset: Option<Subset>,
    api: Api,
    error_shape: ErrorShape,
    request: RequestPhase,
    response: ResponsePhase,
    /// The endpoint knows the model by another name than the client.
    renamed: Option<Renamed>,
    /// The client was told how long the response is.
    response_has_length: bool,
    /// The status of the response, once its headers came.
    status: Option<u16>,
    /// What the proxy says of a response that it made up.
    proxy_details: Option<String>,
    /// When the response's headers were answered.
    response_began: Time,
    usage: TokenUsage,
    /// Events of a response that is over.
    events: u64,
    /// The request may be cut off for more urgent work.
    revocable: bool,
    /// It is being cut off.
    revocation: Option<Revocation>,
    /// Something went out: the proxy no longer moves the request to another picker.
    replied: bool,
    /// Bytes of the request that came.
    taken: u64,
    /// Those of its headers.
    header_bytes: u64,
    /// The most bytes that its body may have.
    body_limit: BodyLimit,
    /// It asks for another protocol, so that its body has neither a length nor a pace.
    is_upgrade: bool,
    ended: bool,
    closed: bool,
}

impl Session {
    pub(crate) const fn new(settings: SessionSettings, facts: StreamFacts, rewrites: Arc<ModelRewrites>) -> Self {
        Self {
            settings,
            facts,
            rewrites,
            modes: None,
            asked_for_request: false,
            mode_before: None,
            subset: None,
            api: Api::Passthrough,
            error_shape: ErrorShape::OpenAi,
            request: RequestPhase::Waiting,
            response: ResponsePhase::Waiting,
            renamed: None,
            response_has_length: false,
            status: None,
            proxy_details: None,
            response_began: Time::ZERO,
            events: 0,
            usage: TokenUsage { prompt: None, completion: None, cached: None },
            revocable: false,
            revocation: None,
            replied: false,
            taken: 0,
            header_bytes: 0,
            body_limit: BodyLimit::of_requests(settings.max_request_body),
            is_upgrade: false,
            ended: false,
            closed: false,
        }
    }

    /// Takes a message that arrived at `now`. Ids are made from `random` numbers.
    pub(crate) fn on_message(
        &mut self,
        now: Time,
        inbound: Inbound,
        random: &mut dyn FnMut() -> u64,
        actions: &mut Vec<Action>,
    ) {
        // Everything was said of a request that is cut off.
        if self.closed || self.is_cut_off() {
            return;
        }
        let Inbound { modes, subset, vouched: _, standing, message } = inbound;
        self.revocable |= standing.revocable;
        self.modes = self.modes.or(modes);
        if subset.is_some() {
            self.subset = subset;
        }
        match message {
            Message::RequestHeaders { headers, end_of_stream } => {
                self.on_request_headers(now, headers, end_of_stream, standing, random, actions);
            }
            Message::RequestBody { chunk, end_of_stream } => {
                self.on_request_body(now, chunk, end_of_stream, random, actions);
            }
            Message::RequestTrailers => self.on_request_trailers(now, random, actions),
            Message::ResponseHeaders { headers, end_of_stream, origin } => {
                self.on_response_headers(now, &headers, end_of_stream, origin, actions);
            }
            Message::ResponseBody { chunk, end_of_stream } => {
                self.on_response_body(now, chunk, end_of_stream, actions);
            }
            Message::ResponseTrailers => self.on_response_trailers(actions),
            Message::Unknown => self.out_of_order("a message of an unknown kind", actions),
        }
    }

    /// Turns away a request that was not placed yet, for a reason that lies outside of it. A placed one is left alone.
    pub(crate) fn on_refused(&mut self, refusal: &Refusal, actions: &mut Vec<Action>) {
        if !self.closed && matches!(self.request, RequestPhase::Reading(_) | RequestPhase::Routing(_)) {
            self.refuse(refusal, actions);
        }
    }

    /// Nothing is to be done for the request any more.
    pub(crate) const fn is_over(&self) -> bool {
        self.closed
    }

    /// The tokens reported so far.
    pub(crate) const fn usage(&self) -> TokenUsage {
        match &self.response {
            ResponsePhase::Passing { scanner, .. } => scanner.usage(),
            ResponsePhase::Waiting | ResponsePhase::Complete => self.usage,
        }
    }

    /// Events of an event stream that went to the client.
    pub(crate) const fn events(&self) -> u64 {
        match &self.response {
            ResponsePhase::Passing { events, .. } => events.count(),
            ResponsePhase::Waiting | ResponsePhase::Complete => self.events,
        }
    }

    /// What of the request came here: its headers, and as much of its body as the proxy has shown.
    pub(crate) const fn request_bytes(&self) -> u64 {
        self.taken
    }

    /// The body of the request is still on its way to the picker.
    pub(crate) const fn is_reading(&self) -> bool {
        matches!(self.request, RequestPhase::Reading(_))
    }

    fn reply(&mut self, reply: Reply, actions: &mut Vec<Action>) {
        self.replied = true;
        actions.push(Action::Reply(reply));
    }
}

#[cfg(test)]
mod tests;
