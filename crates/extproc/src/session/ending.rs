//! How requests and streams end.

use std::borrow::Cow;

use sluice_core::{DropReason, TerminationCause, Time};

use super::Session;
use crate::action::{Action, Close, Ending, Notice, Outcome, Responder};
use crate::message::{BodyMode, InboundEnd};
use crate::phases::{RequestPhase, ResponsePhase, Routing};
use crate::reject::Refusal;
use crate::reply::Reply;

/// What an end of the stream leaves open, since the proxy tells both alike.
const CLIENT_OR_SERVER: &str = "the client left or the model server broke off";
const COMPLETE_OR_CLIENT: &str = "the response is complete or the client left";
const UNSEEN: &str = "nothing came of a response whose body was asked for: the proxy goes on without the picker";
const UNKNOWN: &str =
    "the stream ended with the response headers: the response was complete, or the proxy tells no ends";

/// A proxy can give a request to another picker only as long as it has kept all of it: Envoy keeps 64 KiB, in which
/// there is more than the bytes of headers and body.
const MOVABLE: u64 = 60_000;

impl Session {
    /// The proxy's side of the stream has ended.
    pub(crate) fn on_inbound_end(&mut self, now: Time, end: InboundEnd, actions: &mut Vec<Action>) {
        if self.closed {
            return;
        }
        let unusable = match end {
            InboundEnd::TooLarge => Some(Refusal::message_too_large()),
            InboundEnd::Unreadable => Some(Refusal::out_of_order("a message that cannot be decoded")),
            InboundEnd::HalfClosed | InboundEnd::Reset | InboundEnd::Broken | InboundEnd::Unread => None,
        };
        if let Some(refusal) = unusable.filter(|_| self.can_refuse()) {
            self.refuse(&refusal, actions);
            return;
        }
        self.note_settings_of_proxy(now, end, actions);
        self.leave_routing(actions);
        let passing = matches!(self.response, ResponsePhase::Passing { .. });
        let by_stream = matches!(end, InboundEnd::HalfClosed | InboundEnd::Reset);
        // Without body messages the end of the stream is the end of the response. So it is where the picker has asked for
        // them and none came.
        let response_mode = self.mode_before.unwrap_or_else(|| self.response_mode());
        if passing && end == InboundEnd::Reset && self.skips_trailers(response_mode) {
            self.leave(Outcome::Unaccounted { status: self.status }, UNKNOWN, actions);
            return;
        }
        let (cause, remark) = match (by_stream, passing) {
            _ if self.revocation.is_some() => (TerminationCause::Evicted, ""),
            (true, true) if self.proxy_details.is_some() => (TerminationCause::Error, ""),
            (true, true) if response_mode == BodyMode::None => (TerminationCause::Natural, COMPLETE_OR_CLIENT),
            (true, true) => (TerminationCause::ClientDisconnect, CLIENT_OR_SERVER),
            (true, false) => (TerminationCause::ClientDisconnect, ""),
            (false, _) if end == InboundEnd::Unread => (TerminationCause::Error, "the proxy took no replies"),
            (false, _) => (TerminationCause::Error, "the stream from the proxy broke"),
        };
        self.terminate(cause, remark, actions);
        let answered = cause == TerminationCause::Natural || matches!(self.response, ResponsePhase::Complete);
        let done = answered || self.is_cut_off();
        let close = if done { Close::Finished } else { Close::Failed("the request ended before its response") };
        self.close(close, actions);
    }

    /// Nothing has come of a response that the picker has asked for: the proxy goes on without it.
    pub(super) fn leave_unseen(&mut self, actions: &mut Vec<Action>) {
        self.leave(Outcome::Unseen { status: self.status }, UNSEEN, actions);
    }

    /// The request goes on, or not, without the picker.
    fn leave(&mut self, outcome: Outcome, remark: &'static str, actions: &mut Vec<Action>) {
        self.end(outcome, remark, actions);
        self.close(Close::Finished, actions);
    }

    /// Tells what the end of the stream says of how the proxy is set up.
    fn note_settings_of_proxy(&self, now: Time, end: InboundEnd, actions: &mut Vec<Action>) {
        if self.revocation.is_none() && self.is_event_stream_passing_by() {
            let after = now.saturating_since(self.response_began);
            actions.push(Action::PassedBy { end, after });
        }
        match &self.request {
            RequestPhase::Reading(reading)
                if self.asked_for_request && reading.body.is_empty() && end == InboundEnd::Reset =>
            {
                actions.push(Action::Notice(Notice::ModesRefused));
            }
            RequestPhase::Routing(Routing { tail, since, .. })
                if matches!(end, InboundEnd::HalfClosed | InboundEnd::Reset) && self.is_timed(tail) =>
            {
                actions.push(Action::GaveUp { after: now.saturating_since(*since) });
            }
            RequestPhase::Waiting
            | RequestPhase::Reading(_)
            | RequestPhase::Routing(_)
            | RequestPhase::Sent(_)
            | RequestPhase::Over => {}
        }
    }

    /// The proxy ends its streams with the headers of a response that passes by, as far as is known, so that nothing is known
    /// of its end. One whose length is known was complete when it began.
    fn skips_trailers(&self, response_mode: BodyMode) -> bool {
        self.facts.skips_trailers
            && response_mode == BodyMode::None
            && !self.response_has_length
            && self.revocation.is_none()
            && self.proxy_details.is_none()
    }

    /// What the client gets if the picker itself fails; none if that is too late. To be asked for once, when the session
    /// is used no more.
    pub(crate) fn answer_failure(&self) -> Option<Reply> {
        let reply = || Reply::Immediate(Refusal::failed().render(self.settings, self.error_shape));
        (!self.closed && self.can_refuse()).then(reply)
    }

    /// The client has seen nothing of a response, so that it can still be given another one.
    fn can_refuse(&self) -> bool {
        self.is_response_unseen() && !self.is_cut_off()
    }

    /// A response of the model server that takes its time, of which the picker sees no more than the headers. One whose
    /// length is known was complete when it began.
    fn is_event_stream_passing_by(&self) -> bool {
        let event_stream = matches!(self.response, ResponsePhase::Passing { is_event_stream: true, .. });
        event_stream
            && !self.response_has_length
            && self.response_mode() == BodyMode::None
            && self.status == Some(200)
            && self.proxy_details.is_none()
    }

    /// Another picker can have the request: nothing went out yet, and the proxy still has all that it sent here.
    const fn can_move(&self) -> bool {
        self.settings.hand_over && !self.replied && self.taken <= MOVABLE
    }

    /// Answers in place of the model server, and ends the stream.
    pub(super) fn refuse(&mut self, refusal: &Refusal, actions: &mut Vec<Action>) {
        self.leave_routing(actions);
        self.request = RequestPhase::Over;
        if refusal.reason == Some(DropReason::RejectedShuttingDown) && self.can_move() {
            self.end(Outcome::HandedOver, "", actions);
            self.close(Close::Failed("handed over: this picker is shutting down"), actions);
            return;
        }
        self.reply(Reply::Immediate(refusal.render(self.settings, self.error_shape)), actions);
        self.end(Outcome::Refused(refusal.code), "", actions);
        self.close(Close::Finished, actions);
    }

    /// A message that the protocol does not allow here: the two sides no longer agree what they talk about.
    pub(super) fn out_of_order(&mut self, what: &'static str, actions: &mut Vec<Action>) {
        if self.can_refuse() {
            self.refuse(&Refusal::out_of_order(what), actions);
            return;
        }
        self.leave_routing(actions);
        self.terminate(TerminationCause::Error, what, actions);
        self.close(Close::Failed(what), actions);
    }

    pub(super) fn leave_routing(&mut self, actions: &mut Vec<Action>) {
        if matches!(self.request, RequestPhase::Routing(_)) {
            self.request = RequestPhase::Over;
            actions.push(Action::StopRouting);
        }
    }

    pub(super) fn terminate(&mut self, cause: TerminationCause, remark: &'static str, actions: &mut Vec<Action>) {
        self.usage = self.usage();
        self.events = self.events();
        // Whoever ended it then, it was lost already.
        let evicted = self.revocation.is_some() && cause != TerminationCause::Natural;
        let cause = if evicted { TerminationCause::Evicted } else { cause };
        let responder = if self.proxy_details.is_some() { Responder::Proxy } else { Responder::ModelServer };
        let remark = self.proxy_details.take().map_or(Cow::Borrowed(remark), Cow::Owned);
        self.end(Outcome::Terminated { cause, status: self.status, responder }, remark, actions);
    }

    fn end(&mut self, outcome: Outcome, remark: impl Into<Cow<'static, str>>, actions: &mut Vec<Action>) {
        if !self.ended {
            self.ended = true;
            let (evicted, events) = (self.delivery(), self.events);
            actions.push(Action::End(Ending { outcome, usage: self.usage, remark: remark.into(), evicted, events }));
        }
    }

    pub(super) fn close(&mut self, close: Close, actions: &mut Vec<Action>) {
        self.closed = true;
        actions.push(Action::Close(close));
    }
}
