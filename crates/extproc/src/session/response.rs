//! The response side: passed on as it comes, and read on the way.

use bytes::Bytes;
use sluice_core::{Headers, TerminationCause, Time};
use sluice_payload::{ResponseFormat, UsageScanner};

use super::Session;
use crate::action::Action;
use crate::event_ends::EventEnds;
use crate::message::Origin;
use crate::phases::{Answer, RequestPhase, ResponsePhase};
use crate::reject::Refusal;
use crate::reply::Reply;

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
        let Origin { details, upstream, served } = origin;
        match self.request {
            // The proxy sends responses only.
            RequestPhase::Waiting => self.request = RequestPhase::Over,
            RequestPhase::Sent(_) | RequestPhase::Over => {}
            // Nobody but the proxy can have answered: the request is dead. Its reasons are better told from here, in the
            // words of the API, as long as the client has seen nothing.
            RequestPhase::Reading(_) | RequestPhase::Routing(_) => {
                let refusal = self.status.and_then(|status| Refusal::given_up_by_proxy(status, details.as_deref()));
                if let Some(refusal) = refusal.filter(|_| !upstream) {
                    self.refuse(&refusal, actions);
                    return;
                }
                self.leave_routing(actions);
                self.request = RequestPhase::Over;
            }
        }
        if by_proxy {
            self.proxy_details = details;
        } else if let Some(served) = served {
            actions.push(Action::Served(served));
        }
        let format = ResponseFormat::of(headers.last_str("content-type"), headers.last_str("content-encoding"));
        let is_event_stream = format == ResponseFormat::EventStream;
        let ask = self.ask_for_response(is_event_stream, end_of_stream);
        self.response = ResponsePhase::Passing {
            scanner: UsageScanner::new(format),
            answer: self.response_answer(),
            is_event_stream,
            events: EventEnds::default(),
        };
        self.response_began = now;
        self.reply(Reply::ResponseHeaders { ask }, actions);
        if end_of_stream {
            self.complete(actions);
        }
    }

    pub(super) fn on_response_body(
        &mut self,
        now: Time,
        mut chunk: Bytes,
        end_of_stream: bool,
        actions: &mut Vec<Action>,
    ) {
        if self.is_event_due() {
            let Some(whole) = self.cut_chunk(now, chunk, end_of_stream, actions) else { return };
            chunk = whole;
        }
        let ResponsePhase::Passing { scanner, answer, is_event_stream, events } = &mut self.response else {
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
        scanner.push(&chunk);
        if self.revocable && *is_event_stream {
            events.push(&chunk);
        }
        actions.push(Action::Sending(chunk.len() as u64));
        match answer {
            Answer::Echo => self.reply_pieces(chunk, end_of_stream, Reply::ResponseBody, actions),
            Answer::AsIs => self.reply(Reply::ResponseBodyAsIs, actions),
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
