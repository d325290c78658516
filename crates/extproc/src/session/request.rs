//! The request side: reading, routing, passing on.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sluice_core::{Api, Headers, Request, RequestId, Time};
use sluice_payload::{ModelReplacement, RequestFields, parse_request};
use sluice_router::Intent;

use super::Session;
use super::rewriting::Renamed;
use super::timing::UNANNOUNCED_BODY;
use crate::action::{Action, Notice};
use crate::error_shape::ErrorShape;
use crate::ids;
use crate::message::{BodyMode, Standing};
use crate::phases::{Answer, Held, Reading, RequestPhase, ResponsePhase, Rest, Routing, Tail};
use crate::reject::Refusal;
use crate::reply::{GATEWAY_HEADERS, Reply, RequestMutation, pieces};
use crate::request_headers::{content_length, expects_continue, is_header_only, is_upgrade, path_of};

impl Session {
    pub(super) fn on_request_headers(
        &mut self,
        now: Time,
        headers: Headers,
        end_of_stream: bool,
        standing: Standing,
        random: &mut dyn FnMut() -> u64,
        actions: &mut Vec<Action>,
    ) {
        if !matches!((&self.request, &self.response), (RequestPhase::Waiting, ResponsePhase::Waiting)) {
            self.out_of_order("request headers", actions);
            return;
        }
        let Standing { refusal, largest, revocable: _ } = standing;
        let refusal = self.refuse_by_headers(self.modes, &headers, end_of_stream).or(refusal);
        self.bound_body(&headers, end_of_stream, largest);
        self.is_upgrade = is_upgrade(&headers);
        let path = path_of(&headers);
        let api = self.settings.parsers.api_of(path);
        self.api = api.unwrap_or(Api::Passthrough);
        // A request without a body has nothing to parse.
        let nobodys = (api.is_none() && !is_header_only(&headers, end_of_stream)).then(|| Refusal::no_parser(path));
        self.error_shape = ErrorShape::of(path, &headers);
        if let Some(refusal) = self.refuse_by_mode(end_of_stream, actions).or(refusal).or(nobodys) {
            self.refuse(&refusal, actions);
            return;
        }
        self.settle_modes(&headers, end_of_stream, actions);
        let mode = self.request_mode();
        let waits_for_answer = self.is_upgrade || expects_continue(&headers);
        let open = |answer| Some(Tail::Open { held: Held::of(answer), ended: false, trailers: false });
        // What is placed by its headers alone, because nothing follows, because the client waits for an answer before it
        // sends more, or because the proxy shows no body before.
        let tail = match mode {
            _ if end_of_stream => Some(Tail::Whole { body: None, trailers: false }),
            BodyMode::None | BodyMode::Streamed => open(Answer::AsIs),
            BodyMode::Buffered | BodyMode::BufferedPartial if waits_for_answer => open(Answer::AsIs),
            BodyMode::FullDuplex | BodyMode::Other if waits_for_answer => open(Answer::Echo),
            _ => None,
        };
        let is_buffered = mode == BodyMode::Buffered;
        if is_buffered && tail.is_none() {
            self.reply(Reply::ContinueRequest, actions);
        }
        actions.push(Action::Holding(self.header_bytes));
        self.request = RequestPhase::Reading(Reading {
            headers,
            received: now,
            body: BytesMut::new(),
            is_buffered,
            progress: now,
            give_up: (mode == BodyMode::Other).then(|| now.saturating_add(UNANNOUNCED_BODY)),
        });
        if let Some(tail) = tail {
            self.route(now, tail, random, actions);
        }
    }

    /// Envoy does not end the request upstream for some of the bodies that do not fit into its buffer.
    fn refuse_by_mode(&self, end_of_stream: bool, actions: &mut Vec<Action>) -> Option<Refusal> {
        let mode = self.request_mode();
        let hangs = mode == BodyMode::BufferedPartial && !end_of_stream;
        hangs.then(|| {
            actions.push(Action::Notice(Notice::RefusedMode { direction: "request", mode }));
            Refusal::body_mode("request", mode)
        })
    }

    pub(super) fn on_request_body(
        &mut self,
        now: Time,
        chunk: Bytes,
        end_of_stream: bool,
        random: &mut dyn FnMut() -> u64,
        actions: &mut Vec<Action>,
    ) {
        self.taken = self.taken.saturating_add(chunk.len() as u64);
        let limit = self.body_limit;
        let header_bytes = self.header_bytes;
        // Only what the client has not got an answer to yet can be refused.
        let is_bounded = !self.is_upgrade && matches!(self.response, ResponsePhase::Waiting);
        match &mut self.request {
            RequestPhase::Reading(reading) => {
                reading.give_up = None;
                reading.progress = now;
                let is_buffered = reading.is_buffered;
                if append(&mut reading.body, chunk, limit.bytes) {
                    actions.push(Action::Holding(header_bytes + reading.body.len() as u64));
                } else {
                    self.refuse(&Refusal::body_too_large(limit), actions);
                    return;
                }
                if is_buffered {
                    self.route(now, Tail::Buffered { trailers: false }, random, actions);
                } else if end_of_stream {
                    let body = Some(reading.body.split().freeze());
                    self.route(now, Tail::Whole { body, trailers: false }, random, actions);
                }
            }
            RequestPhase::Routing(Routing {
                tail: Tail::Open { held: Held::Messages { count, bytes }, ended, .. },
                ..
            }) => {
                *count = count.saturating_add(1);
                *bytes = bytes.saturating_add(chunk.len() as u64);
                *ended |= end_of_stream;
                if *bytes > limit.bytes && is_bounded {
                    self.refuse(&Refusal::body_too_large(limit), actions);
                }
            }
            RequestPhase::Routing(Routing { tail: Tail::Open { held: Held::Bytes(body), ended, .. }, .. })
                if !*ended =>
            {
                *ended = end_of_stream;
                if append(body, chunk, limit.bytes) {
                    actions.push(Action::Holding(header_bytes + body.len() as u64));
                } else {
                    self.refuse(&Refusal::body_too_large(limit), actions);
                }
            }
            RequestPhase::Sent(rest) if rest.answer == Answer::AsIs || !rest.ended => {
                let answer = rest.answer;
                rest.came(now, chunk.len(), end_of_stream);
                if rest.bytes > limit.bytes && is_bounded {
                    self.refuse(&Refusal::body_too_large(limit), actions);
                } else if answer == Answer::AsIs {
                    self.reply(Reply::RequestBodyAsIs, actions);
                } else {
                    self.reply_pieces(chunk, end_of_stream, Reply::RequestBody, actions);
                }
            }
            // An end that was told already, which a proxy in mode BUFFERED would want an answer to.
            RequestPhase::Sent(_)
            | RequestPhase::Routing(Routing { tail: Tail::Whole { .. } | Tail::Open { .. }, .. })
                if chunk.is_empty() => {}
            // The rest of an upload that the response did not wait for.
            RequestPhase::Sent(_) if !matches!(self.response, ResponsePhase::Waiting) => {}
            RequestPhase::Over => {}
            RequestPhase::Waiting | RequestPhase::Routing(_) | RequestPhase::Sent(_) => {
                self.out_of_order("request body", actions);
            }
        }
    }

    pub(super) fn on_request_trailers(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        actions: &mut Vec<Action>,
    ) {
        match &mut self.request {
            RequestPhase::Reading(reading) if reading.is_buffered => {
                // The one place for a decision would have been the answer to a body.
                self.refuse(&Refusal::trailers_only(), actions);
            }
            RequestPhase::Reading(reading) => {
                // A body without a byte was never announced, so it must not be answered.
                let body = (!reading.body.is_empty()).then(|| reading.body.split().freeze());
                self.route(now, Tail::Whole { body, trailers: true }, random, actions);
            }
            RequestPhase::Routing(Routing { tail, .. }) => {
                let (Tail::Whole { trailers, .. } | Tail::Buffered { trailers, .. } | Tail::Open { trailers, .. }) =
                    tail;
                if std::mem::replace(trailers, true) {
                    self.out_of_order("request trailers", actions);
                }
            }
            RequestPhase::Sent(rest) => {
                rest.end();
                self.reply(Reply::RequestTrailers, actions);
            }
            RequestPhase::Over => {}
            RequestPhase::Waiting => self.out_of_order("request trailers", actions),
        }
    }

    /// Asks for an endpoint for the request that was being read.
    pub(super) fn route(&mut self, now: Time, tail: Tail, random: &mut dyn FnMut() -> u64, actions: &mut Vec<Action>) {
        let RequestPhase::Reading(reading) = std::mem::replace(&mut self.request, RequestPhase::Over) else { return };
        let Reading { headers, received, body: buffered, is_buffered, progress, give_up: _ } = reading;
        let since = if is_buffered { progress } else { received };
        let (body, is_read) = match &tail {
            Tail::Whole { body, .. } => (body.clone().unwrap_or_default(), true),
            Tail::Buffered { .. } => (buffered.freeze(), true),
            Tail::Open { .. } => (Bytes::new(), false),
        };
        let held_bytes = body.len() as u64;
        let body_bytes = if is_read { held_bytes } else { content_length(&headers).unwrap_or_default() };
        let header_only = is_header_only(&headers, matches!(tail, Tail::Whole { body: None, trailers: false }));
        let is_read = is_read && !header_only;
        let fields = if is_read { parse_request(self.api, &body) } else { Ok(RequestFields::default()) };
        let RequestFields { model, stream, max_output_tokens } = match fields {
            Ok(fields) => fields,
            Err(error) => {
                self.refuse(&error.into(), actions);
                return;
            }
        };
        let model: Option<Arc<str>> = model.map(Into::into);
        let choice = self.choose_model(&headers, model.as_ref(), is_read, random);
        if choice.target.is_none() && is_read && (self.api.requires_model() || choice.rewritten_by.is_some()) {
            self.refuse(&Refusal::model_missing(), actions);
            return;
        }
        if !is_read && !header_only {
            self.note_unread(&headers, actions);
        }
        let change = match self.change_model(&choice, model.as_ref(), &body, actions) {
            Ok(change) => change,
            Err(refusal) => {
                self.refuse(&refusal, actions);
                return;
            }
        };
        if change.is_none() && matches!(tail, Tail::Buffered { .. }) {
            // What the proxy has is not held here.
            actions.push(Action::Holding(self.header_bytes));
        }
        let announced = change.as_ref().and_then(|change| announced(&headers, change));
        // Envoy 1.40 takes no other length for a body that it was asked for in place of what it is configured to show, and
        // leaves the client's: whatever reads by that would take the rest for the next request.
        let (content_length, drops_length) =
            if self.asked_for_request { (None, announced.is_some()) } else { (announced, false) };
        self.renamed = Renamed::of(model.as_ref(), &choice);

        let sent_id = headers.last_str("x-request-id").filter(|id| !id.is_empty());
        let new_request_id = if sent_id.is_some() { None } else { Some(ids::uuid(random)) };
        let id = sent_id.or(new_request_id.as_deref()).unwrap_or_default();
        let request = Request {
            id: RequestId(id.into()),
            received,
            api: self.api,
            model,
            target_model: choice.target,
            rewritten_by: choice.rewritten_by,
            stream,
            max_output_tokens,
            body_bytes,
            headers,
        };
        let traceparent = ids::traceparent(&request.headers, random);
        let gateway_headers = GATEWAY_HEADERS.into_iter().filter(|name| request.headers.contains(name));
        let remove = gateway_headers.chain(drops_length.then_some("content-length")).collect();
        let mutation =
            RequestMutation { destination: String::new(), new_request_id, traceparent, content_length, remove };
        let extend = self.patience_due(now, since, &tail);
        self.request = RequestPhase::Routing(Routing { mutation, tail, change, since, extend });
        actions.push(Action::Route(Intent {
            request: Arc::new(request),
            subset: self.subset.take(),
            held_bytes,
            header_only,
            deadline: self.facts.deadline,
        }));
    }

    /// Takes the answer to [`Action::Route`].
    pub(crate) fn on_routed(&mut self, now: Time, routed: Result<String, Refusal>, actions: &mut Vec<Action>) {
        if !matches!(self.request, RequestPhase::Routing(_)) {
            return;
        }
        let destination = match routed {
            Ok(destination) => destination,
            Err(refusal) => {
                // Nothing is being routed any more that would have to be stopped.
                self.request = RequestPhase::Over;
                self.refuse(&refusal, actions);
                return;
            }
        };
        let RequestPhase::Routing(Routing { mutation, tail, change, .. }) =
            std::mem::replace(&mut self.request, RequestPhase::Over)
        else {
            return;
        };
        let mutation = RequestMutation { destination, ..mutation };
        let changed = change.map(ModelReplacement::make);
        let (rest, trailers) = match tail {
            Tail::Whole { body, trailers } => {
                self.reply(Reply::RequestHeaders(mutation), actions);
                if let Some(body) = changed.or(body) {
                    // If trailers follow, they end the body.
                    self.reply_pieces(body, !trailers, Reply::RequestBody, actions);
                }
                (Rest::ended(Answer::Echo), trailers)
            }
            Tail::Buffered { trailers } => {
                self.reply(Reply::RequestBodyPlaced(mutation, changed), actions);
                (Rest::ended(Answer::AsIs), trailers)
            }
            Tail::Open { held: Held::Messages { count, bytes }, ended, trailers } => {
                self.reply(Reply::RequestHeaders(mutation), actions);
                for _ in 0..count {
                    self.reply(Reply::RequestBodyAsIs, actions);
                }
                let ended = ended || trailers;
                let is_shown = self.request_mode() == BodyMode::Streamed && !self.is_upgrade;
                let progress = (is_shown && !ended).then_some(now);
                (Rest { answer: Answer::AsIs, ended, bytes, progress }, trailers)
            }
            Tail::Open { held: Held::Bytes(body), ended, trailers } => {
                self.reply(Reply::RequestHeaders(mutation), actions);
                let bytes = body.len() as u64;
                if ended || !body.is_empty() {
                    self.reply_pieces(body.freeze(), ended && !trailers, Reply::RequestBody, actions);
                }
                (Rest { answer: Answer::Echo, ended: ended || trailers, bytes, progress: None }, trailers)
            }
        };
        if trailers {
            self.reply(Reply::RequestTrailers, actions);
        }
        actions.push(Action::Holding(0));
        self.request = RequestPhase::Sent(rest);
    }

    pub(super) fn reply_pieces(
        &mut self,
        body: Bytes,
        end_of_stream: bool,
        reply: fn(crate::reply::Piece) -> Reply,
        actions: &mut Vec<Action>,
    ) {
        self.replied = true;
        actions.extend(pieces(body, end_of_stream).map(|piece| Action::Reply(reply(piece))));
    }
}

/// The length of the body that goes on, if the client has announced one.
fn announced(headers: &Headers, change: &ModelReplacement) -> Option<u64> {
    headers.contains("content-length").then_some(change.length() as u64)
}

/// Adds `chunk` to `body`. False if that would make it longer than `limit`.
fn append(body: &mut BytesMut, chunk: Bytes, limit: u64) -> bool {
    if (body.len() + chunk.len()) as u64 > limit {
        return false;
    }
    if body.is_empty() {
        // The usual prompt comes in one message: it is taken over, not copied.
        *body = chunk.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    } else {
        body.extend_from_slice(&chunk);
    }
    true
}
