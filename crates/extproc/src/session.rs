//! One HTTP request as the proxy tells it: a pure state machine, message in, actions out.
//!
//! ```text
//! request    Waiting ─headers─> Reading ─end of body─> Routing ─on_routed─> Sent | Piping (upgrades)
//!                                  └──────── refused at any point ────────> Refused
//! response   Waiting ─headers─> Passing ─end─> Complete
//! ```
//!
//! The two sides advance on their own, because a proxy may answer a request itself before the picker has: then
//! response headers arrive while the request is still being read or routed, and it is dead.
//!
//! Kept by every run: at most one [`Action::Route`]; exactly one [`Action::End`]; [`Action::Close`] is the last
//! action; replies are in the order headers, body, trailers for each direction.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sluice_core::{Api, Headers, Request, RequestId, TerminationCause, Time, TokenUsage};
use sluice_data::Subset;
use sluice_payload::{RequestFields, ResponseFormat, UsageScanner, api_of_path, parse_request};
use sluice_router::Intent;

use crate::action::{Action, Close, Ending, Outcome};
use crate::message::{BodyMode, BodyModes, Inbound, InboundEnd, Message};
use crate::phases::{RequestPhase, ResponsePhase, Tail};
use crate::reject::{Refusal, RefusalStyle};
use crate::reply::{GATEWAY_HEADERS, Piece, Reply, RequestMutation, pieces};
use crate::request_headers::{is_header_only, is_upgrade, path_of};

/// What the settings say about every session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionSettings {
    /// A larger request body is refused with 413.
    pub(crate) max_request_body: u64,
    pub(crate) refusal_style: RefusalStyle,
    /// Refusals say when to come back, where that makes sense.
    pub(crate) retry_after: bool,
}

#[derive(Debug)]
pub(crate) struct Session {
    settings: SessionSettings,
    modes: Option<BodyModes>,
    subset: Option<Subset>,
    api: Api,
    request: RequestPhase,
    response: ResponsePhase,
    /// The status of the response, once its headers came.
    status: Option<u16>,
    usage: TokenUsage,
    ended: bool,
    closed: bool,
}

impl Session {
    pub(crate) const fn new(settings: SessionSettings) -> Self {
        Self {
            settings,
            modes: None,
            subset: None,
            api: Api::Passthrough,
            request: RequestPhase::Waiting,
            response: ResponsePhase::Waiting,
            status: None,
            usage: TokenUsage { prompt: None, completion: None, cached: None },
            ended: false,
            closed: false,
        }
    }

    /// Takes a message that arrived at `now`. `fresh_id` names the request if the client did not.
    pub(crate) fn on_message(
        &mut self,
        now: Time,
        inbound: Inbound,
        fresh_id: impl FnOnce() -> String,
        actions: &mut Vec<Action>,
    ) {
        let Inbound { modes, subset, vouched: _, refusal, message } = inbound;
        if self.closed {
            return;
        }
        self.modes = self.modes.or(modes);
        if subset.is_some() {
            self.subset = subset;
        }
        match message {
            Message::RequestHeaders { headers, end_of_stream } => {
                self.on_request_headers(now, headers, end_of_stream, refusal, fresh_id, actions);
            }
            Message::RequestBody { chunk, end_of_stream } => {
                self.on_request_body(chunk, end_of_stream, fresh_id, actions);
            }
            Message::RequestTrailers => self.on_request_trailers(fresh_id, actions),
            Message::ResponseHeaders { headers, end_of_stream } => {
                self.on_response_headers(&headers, end_of_stream, actions);
            }
            Message::ResponseBody { chunk, end_of_stream } => self.on_response_body(chunk, end_of_stream, actions),
            Message::ResponseTrailers => self.on_response_trailers(actions),
            Message::Unknown => self.out_of_order("a message of an unknown kind", actions),
        }
    }

    /// Takes the answer to [`Action::Route`].
    pub(crate) fn on_routed(&mut self, routed: Result<String, Refusal>, actions: &mut Vec<Action>) {
        let (mutation, tail) = match std::mem::replace(&mut self.request, RequestPhase::Sent) {
            RequestPhase::Routing { mutation, tail } => (mutation, tail),
            other => {
                self.request = other;
                return;
            }
        };
        let destination = match routed {
            Ok(destination) => destination,
            Err(refusal) => {
                self.refuse(&refusal, actions);
                return;
            }
        };
        actions.push(Action::Reply(Reply::RequestHeaders(RequestMutation { destination, ..mutation })));
        match tail {
            Tail::Whole { body, trailers } => {
                if let Some(body) = body {
                    // If trailers follow, they end the body.
                    reply_pieces(body, !trailers, Reply::RequestBody, actions);
                }
                if trailers {
                    actions.push(Action::Reply(Reply::RequestTrailers));
                }
            }
            Tail::Pipe { held, ended } => {
                self.request = RequestPhase::Piping;
                if ended || !held.is_empty() {
                    reply_pieces(held.freeze(), ended, Reply::RequestBody, actions);
                }
            }
        }
    }

    /// The tokens reported so far.
    pub(crate) const fn usage(&self) -> TokenUsage {
        match &self.response {
            ResponsePhase::Passing(scanner) => scanner.usage(),
            ResponsePhase::Waiting | ResponsePhase::Complete => self.usage,
        }
    }

    /// The proxy's side of the stream has ended.
    pub(crate) fn on_inbound_end(&mut self, end: InboundEnd, actions: &mut Vec<Action>) {
        if self.closed {
            return;
        }
        let was_routing = matches!(self.request, RequestPhase::Routing { .. });
        if was_routing {
            self.request = RequestPhase::Sent;
            actions.push(Action::StopRouting);
        }
        let unseen_response = self.modes.is_some_and(|modes| modes.response == BodyMode::None)
            && matches!(self.response, ResponsePhase::Passing(_));
        if unseen_response {
            self.response = ResponsePhase::Complete;
            self.terminate(TerminationCause::Natural, actions);
        }
        if self.ended {
            self.close(Close::Finished, actions);
            return;
        }
        let answered = matches!(self.response, ResponsePhase::Passing(_));
        let cause = match end {
            InboundEnd::Failed if answered => TerminationCause::Error,
            InboundEnd::Failed | InboundEnd::HalfClosed => TerminationCause::ClientDisconnect,
        };
        self.terminate(cause, actions);
        self.close(Close::Failed("the request ended before its response"), actions);
    }

    fn on_request_headers(
        &mut self,
        now: Time,
        headers: Headers,
        end_of_stream: bool,
        refusal: Option<Refusal>,
        fresh_id: impl FnOnce() -> String,
        actions: &mut Vec<Action>,
    ) {
        if !matches!((&self.request, &self.response), (RequestPhase::Waiting, ResponsePhase::Waiting)) {
            self.out_of_order("request headers", actions);
            return;
        }
        self.api = api_of_path(path_of(&headers));
        if let Some(refusal) = refusal.or_else(|| self.early_refusal(&headers, end_of_stream)) {
            self.refuse(&refusal, actions);
            return;
        }
        let pipe = !end_of_stream && is_upgrade(&headers);
        self.request = RequestPhase::Reading { headers, received: now, body: BytesMut::new() };
        if pipe {
            self.route(Tail::Pipe { held: BytesMut::new(), ended: false }, fresh_id, actions);
        } else if end_of_stream {
            self.route(Tail::Whole { body: None, trailers: false }, fresh_id, actions);
        }
    }

    /// What the headers alone rule out.
    fn early_refusal(&self, headers: &Headers, end_of_stream: bool) -> Option<Refusal> {
        if let Some(modes) = self.modes {
            if modes.request != BodyMode::FullDuplex && !end_of_stream {
                return Some(Refusal::body_mode("request", modes.request.as_str()));
            }
            if !matches!(modes.response, BodyMode::FullDuplex | BodyMode::None) {
                return Some(Refusal::body_mode("response", modes.response.as_str()));
            }
        }
        let announced = headers.last_str("content-length").and_then(|length| length.parse::<u64>().ok());
        announced
            .filter(|&length| length > self.settings.max_request_body)
            .map(|_| Refusal::body_too_large(self.settings.max_request_body))
    }

    fn on_request_body(
        &mut self,
        chunk: Bytes,
        end_of_stream: bool,
        fresh_id: impl FnOnce() -> String,
        actions: &mut Vec<Action>,
    ) {
        let body = match &mut self.request {
            RequestPhase::Reading { body, .. } => body,
            RequestPhase::Routing { tail: Tail::Pipe { held, ended }, .. } if !*ended => {
                *ended = end_of_stream;
                held
            }
            RequestPhase::Piping => {
                reply_pieces(chunk, end_of_stream, Reply::RequestBody, actions);
                return;
            }
            _ => {
                self.unwanted_request_part("request body", actions);
                return;
            }
        };
        if (body.len() + chunk.len()) as u64 > self.settings.max_request_body {
            let refusal = Refusal::body_too_large(self.settings.max_request_body);
            self.refuse(&refusal, actions);
            return;
        }
        if body.is_empty() {
            // The usual prompt comes in one message: it is taken over, not copied.
            *body = chunk.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        } else {
            body.extend_from_slice(&chunk);
        }
        if end_of_stream && let RequestPhase::Reading { body, .. } = &mut self.request {
            let body = Some(body.split().freeze());
            self.route(Tail::Whole { body, trailers: false }, fresh_id, actions);
        }
    }

    fn on_request_trailers(&mut self, fresh_id: impl FnOnce() -> String, actions: &mut Vec<Action>) {
        let RequestPhase::Reading { body, .. } = &mut self.request else {
            if matches!(self.request, RequestPhase::Piping) {
                actions.push(Action::Reply(Reply::RequestTrailers));
            } else {
                self.unwanted_request_part("request trailers", actions);
            }
            return;
        };
        // A body without a byte was never announced, so it must not be answered.
        let body = (!body.is_empty()).then(|| body.split().freeze());
        self.route(Tail::Whole { body, trailers: true }, fresh_id, actions);
    }

    /// The rest of a request that was refused or answered by the proxy is still on its way for a moment.
    fn unwanted_request_part(&mut self, what: &'static str, actions: &mut Vec<Action>) {
        match self.request {
            RequestPhase::Sent if !matches!(self.response, ResponsePhase::Waiting) => {}
            RequestPhase::Refused => {}
            _ => self.out_of_order(what, actions),
        }
    }

    fn route(&mut self, tail: Tail, fresh_id: impl FnOnce() -> String, actions: &mut Vec<Action>) {
        let RequestPhase::Reading { headers, received, .. } =
            std::mem::replace(&mut self.request, RequestPhase::Refused)
        else {
            return;
        };
        let (bytes, is_read, ended) = match &tail {
            Tail::Whole { body, trailers } => (body.as_deref().unwrap_or_default(), true, body.is_none() && !trailers),
            Tail::Pipe { .. } => (&[][..], false, false),
        };
        let header_only = is_header_only(&headers, ended);
        let is_read = is_read && !header_only;
        let fields = if is_read { parse_request(self.api, bytes) } else { Ok(RequestFields::default()) };
        let fields = match fields {
            Ok(fields) => fields,
            Err(error) => {
                self.refuse(&error.into(), actions);
                return;
            }
        };
        if fields.model.is_none() && self.api != Api::Passthrough && is_read {
            self.refuse(&Refusal::model_missing(), actions);
            return;
        }

        let sent_id = headers.last_str("x-request-id").filter(|id| !id.is_empty());
        let new_request_id = if sent_id.is_some() { None } else { Some(fresh_id()) };
        let id = sent_id.or(new_request_id.as_deref()).unwrap_or_default();
        let request = Request {
            id: RequestId(id.into()),
            received,
            api: self.api,
            model: fields.model.map(Into::into),
            stream: fields.stream,
            max_output_tokens: fields.max_output_tokens,
            body_bytes: bytes.len() as u64,
            headers,
        };
        let remove = GATEWAY_HEADERS.into_iter().filter(|name| request.headers.contains(name)).collect();
        let mutation = RequestMutation { destination: String::new(), new_request_id, remove };
        self.request = RequestPhase::Routing { mutation, tail };
        actions.push(Action::Route(Intent {
            request: Arc::new(request),
            subset: self.subset.take(),
            header_only,
            deadline: None,
        }));
    }

    fn on_response_headers(&mut self, headers: &Headers, end_of_stream: bool, actions: &mut Vec<Action>) {
        if !matches!(self.response, ResponsePhase::Waiting) {
            self.out_of_order("response headers", actions);
            return;
        }
        match self.request {
            RequestPhase::Sent | RequestPhase::Piping | RequestPhase::Refused => {}
            // Either the proxy sends responses only, or it has answered by itself and the request is dead.
            RequestPhase::Waiting | RequestPhase::Reading { .. } => self.request = RequestPhase::Sent,
            RequestPhase::Routing { .. } => {
                self.request = RequestPhase::Sent;
                actions.push(Action::StopRouting);
            }
        }
        self.status = headers.last_str(":status").and_then(|status| status.parse().ok());
        let format = ResponseFormat::of(headers.last_str("content-type"), headers.last_str("content-encoding"));
        self.response = ResponsePhase::Passing(UsageScanner::new(format));
        actions.push(Action::Reply(Reply::ResponseHeaders));
        if end_of_stream {
            self.complete(actions);
        }
    }

    fn on_response_body(&mut self, chunk: Bytes, end_of_stream: bool, actions: &mut Vec<Action>) {
        let ResponsePhase::Passing(scanner) = &mut self.response else {
            self.out_of_order("response body", actions);
            return;
        };
        scanner.push(&chunk);
        actions.push(Action::Sending(chunk.len() as u64));
        reply_pieces(chunk, end_of_stream, Reply::ResponseBody, actions);
        if end_of_stream {
            self.complete(actions);
        }
    }

    fn on_response_trailers(&mut self, actions: &mut Vec<Action>) {
        if !matches!(self.response, ResponsePhase::Passing(_)) {
            self.out_of_order("response trailers", actions);
            return;
        }
        actions.push(Action::Reply(Reply::ResponseTrailers));
        self.complete(actions);
    }

    fn complete(&mut self, actions: &mut Vec<Action>) {
        if let ResponsePhase::Passing(scanner) = std::mem::replace(&mut self.response, ResponsePhase::Complete) {
            self.usage = scanner.usage();
        }
        self.terminate(TerminationCause::Natural, actions);
    }

    fn refuse(&mut self, refusal: &Refusal, actions: &mut Vec<Action>) {
        self.request = RequestPhase::Refused;
        actions.push(Action::Reply(Reply::Immediate(refusal.render(self.settings, self.api))));
        self.end(Outcome::Refused(refusal.code), actions);
        self.close(Close::Finished, actions);
    }

    fn terminate(&mut self, cause: TerminationCause, actions: &mut Vec<Action>) {
        self.usage = self.usage();
        self.end(Outcome::Terminated { cause, status: self.status }, actions);
    }

    fn end(&mut self, outcome: Outcome, actions: &mut Vec<Action>) {
        if !self.ended {
            self.ended = true;
            actions.push(Action::End(Ending { outcome, usage: self.usage }));
        }
    }

    fn close(&mut self, close: Close, actions: &mut Vec<Action>) {
        self.closed = true;
        actions.push(Action::Close(close));
    }

    /// A message that the protocol does not allow here: the two sides no longer agree what they talk about.
    fn out_of_order(&mut self, what: &'static str, actions: &mut Vec<Action>) {
        if matches!(self.request, RequestPhase::Routing { .. }) {
            self.request = RequestPhase::Sent;
            actions.push(Action::StopRouting);
        }
        self.terminate(TerminationCause::Error, actions);
        self.close(Close::Failed(what), actions);
    }
}

fn reply_pieces(body: Bytes, end_of_stream: bool, reply: fn(Piece) -> Reply, actions: &mut Vec<Action>) {
    actions.extend(pieces(body, end_of_stream).map(|piece| Action::Reply(reply(piece))));
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
