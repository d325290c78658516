//! The response side: passed on as it comes, and read on the way.

use bytes::Bytes;
use sluice_core::{Headers, TerminationCause, Time};
use sluice_payload::{ResponseFormat, UsageScanner};

use super::Session;
use super::rewriting::restored;
use crate::action::Action;
use crate::event_ends::EventEnds;
use crate::message::{BodyMode, Origin};
use crate::phases::{Answer, RequestPhase, ResponsePhase};
use crate::reject::Refusal;
use crate::reply::Reply;

/// What is said of a response of the proxy to a request without an endpoint, where the proxy says nothing of it.
const BEFORE_PLACEMENT: &str = "the proxy answered before the request had an endpoint";

impl Session {
    pub(super) fn on_response_headers(
        &mut self,
        now: Time,
        headers: &Headers,
        end_of_stream: bool,
        origin: Origin,
        actions: &mut Vec<Action>,
    ) {
        if !matches!(self.response, ResponsePhase::Waiting) {
            self.out_of_order("response headers", actions);
            return;
        }
        self.status = headers.last_str(":status").and_then(|status| status.parse().ok());
        let by_proxy = origin.is_proxy();
        let Origin { details, served } = origin;
        match self.request {
            // The proxy sends responses only.
            RequestPhase::Waiting => self.request = RequestPhase::Over,
            RequestPhase::Sent(_) | RequestPhase::Over => {}
            // Nobody but the proxy can have answered, whether it says so or not: the request is dead. Its reasons are better
            // told from here, in the words of the API, as long as the client has seen nothing.
            RequestPhase::Reading(_) | RequestPhase::Routing(_) => {
                let refusal = self.status.and_then(|status| Refusal::given_up_by_proxy(status, details.as_deref()));
                if let Some(refusal) = refusal {
                    self.refuse(&refusal, actions);
                    return;
                }
                self.leave_routing(actions);
                self.request = RequestPhase::Over;
                self.proxy_details = Some(details.clone().unwrap_or_else(|| BEFORE_PLACEMENT.to_owned()));
            }
        }
        if by_proxy {
            self.proxy_details = details;
        } else if self.proxy_details.is_some() {
            // No endpoint was asked, so none has served.
        } else if let Some(served) = served {
            actions.push(Action::Served(served));
        }
        let format = ResponseFormat::of(headers.last_str("content-type"), headers.last_str("content-encoding"));
        let is_event_stream = format == ResponseFormat::EventStream;
        let restorer = if end_of_stream || self.proxy_details.is_some() { None } else { self.restorer(format) };
        let ask =
            if end_of_stream { None } else { self.ask_for_response(headers, is_event_stream, restorer.is_some()) };
        let restorer = self.where_seen(restorer, actions);
        // In its own full duplex the proxy takes the length out; elsewhere it stays, and nothing may be put in.
        let drops_length = ask.is_none() && self.response_mode() == BodyMode::FullDuplex;
        let drop_length = restorer.is_some() && headers.contains("content-length");
        self.response_has_length = headers.contains("content-length") && !drops_length && !drop_length;
        let is_withheld = is_event_stream && !end_of_stream && ask.is_none() && self.may_withhold_headers();
        self.response = ResponsePhase::Passing {
            scanner: UsageScanner::new(format),
            answer: self.response_answer(),
            is_withheld,
            is_event_stream,
            events: EventEnds::default(),
            restorer,
        };
        if is_withheld {
            return;
        }
        self.response_began = now;
        self.reply(Reply::ResponseHeaders { ask, drop_length }, actions);
        if self.response_mode() == BodyMode::None {
            actions.push(Action::BegunUnseen);
        }
        if end_of_stream {
            self.complete(actions);
        }
    }

    /// The headers of an event stream may wait for its first part, so that a client whose request has to make room before
    /// that gets a status in place of a stream that breaks off. Only in full duplex, as the proxy's own setting, does the
    /// proxy measure no time meanwhile, and show the body although its headers are not answered.
    fn may_withhold_headers(&self) -> bool {
        self.revocable && self.proxy_details.is_none() && self.response_mode() == BodyMode::FullDuplex
    }

    /// Answers headers that waited for what comes now.
    fn release_headers(&mut self, actions: &mut Vec<Action>) {
        if let ResponsePhase::Passing { is_withheld, restorer, .. } = &mut self.response
            && std::mem::take(is_withheld)
        {
            let drop_length = restorer.is_some();
            self.reply(Reply::ResponseHeaders { ask: None, drop_length }, actions);
        }
    }

    /// The client has seen nothing of a response: it did not come yet, or its headers wait here.
    pub(super) const fn is_response_unseen(&self) -> bool {
        match &self.response {
            ResponsePhase::Waiting => true,
            ResponsePhase::Passing { is_withheld, .. } => *is_withheld,
            ResponsePhase::Complete => false,
        }
    }

    pub(super) fn on_response_body(
        &mut self,
        now: Time,
        mut chunk: Bytes,
        end_of_stream: bool,
        actions: &mut Vec<Action>,
    ) {
        self.release_headers(actions);
        if self.is_event_due() {
            let Some(whole) = self.cut_chunk(now, chunk, end_of_stream, actions) else { return };
            chunk = whole;
        }
        let ResponsePhase::Passing { scanner, answer, is_event_stream, events, restorer, is_withheld: _ } =
            &mut self.response
        else {
            if matches!(self.response, ResponsePhase::Complete) && chunk.is_empty() {
                // An end that was told already. In the modes that keep the bytes every message is answered.
                if self.response_answer() == Answer::AsIs {
                    self.reply(Reply::ResponseBodyAsIs, actions);
                }
            } else {
                self.out_of_order("response body", actions);
            }
            return;
        };
        self.mode_before = None;
        scanner.push(&chunk);
        if *is_event_stream {
            events.push(&chunk);
        }
        actions.push(Action::Sending(chunk.len() as u64));
        let changed = restored(restorer, &chunk, end_of_stream);
        match (answer, changed) {
            (Answer::Echo, changed) => {
                self.reply_pieces(changed.unwrap_or(chunk), end_of_stream, Reply::ResponseBody, actions);
            }
            (Answer::AsIs, Some(changed)) => self.reply(Reply::ResponseBodyReplaced(changed), actions),
            (Answer::AsIs, None) => self.reply(Reply::ResponseBodyAsIs, actions),
        }
        if end_of_stream {
            self.complete(actions);
        }
    }

    pub(super) fn on_response_trailers(&mut self, actions: &mut Vec<Action>) {
        if matches!(self.response, ResponsePhase::Waiting) {
            self.out_of_order("response trailers", actions);
            return;
        }
        self.release_headers(actions);
        self.release_held(actions);
        self.reply(Reply::ResponseTrailers, actions);
        self.complete(actions);
    }

    /// The end of the response was seen.
    fn complete(&mut self, actions: &mut Vec<Action>) {
        self.usage = self.usage();
        self.events = self.events();
        self.revocation = None;
        self.response = ResponsePhase::Complete;
        let cause = if self.proxy_details.is_some() { TerminationCause::Error } else { TerminationCause::Natural };
        self.terminate(cause, "", actions);
    }
}
