//! A request in flight that has to make room for more urgent work.
//!
//! | the client has seen | it gets |
//! |---|---|
//! | nothing, or the response is held back, here or by the proxy | a status and a body, as any refusal |
//! | a part of an event stream that passes through here | an event that says why, then the cut |
//! | anything else | the cut |
//!
//! ```text
//!              ┌──── the event is complete ───> Told ── a moment ──┐
//! on_revoked ──┼─ in the middle of an event ─> Due                 v
//!              │                                └── too late ───> Cut ── the proxy ends the stream ──> End
//!              └── no event to be sent ────────────────────────────^
//! ```
//!
//! From `Told` on no message is looked at: whatever is said goes nowhere. The request ends, and its place is free, only
//! when the proxy has ended the stream, however long that takes: until then the model server may still work on it.

use std::time::Duration;

use bytes::Bytes;
use sluice_core::Time;

use super::Session;
use super::rewriting::restored;
use crate::action::{Action, Delivery, Notice};
use crate::message::BodyMode;
use crate::phases::{Answer, RequestPhase, ResponsePhase};
use crate::reject::Refusal;
use crate::reply::{Piece, Reply};
use crate::service::MidStream;

/// An event that was begun is passed on to its end if that comes so soon.
const EVENT_END: Duration = Duration::from_millis(50);

/// The cut follows the last event after so long. A proxy drops what it has not written yet when it is told to cut, and
/// does not say when it has: without a pause HTTP/2 clients of Envoy lose the event, with half of this they get it.
const FLUSH: Duration = Duration::from_millis(10);

/// A proxy ends the stream within milliseconds after the cut. If it has not in so long, the operator is told. The place
/// stays taken: the model server may still work on the request. Other victims have long since been chosen, and a
/// connection on which nobody answers is given up by the server.
const PROXY_END: Duration = Duration::from_secs(5);

/// A request that is being cut off.
#[derive(Debug)]
pub(super) struct Revocation {
    step: Step,
    delivery: Delivery,
    /// What the client is told.
    refusal: Refusal,
    retry_after: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The event has to wait for the end of another, or for an occasion; not beyond this time.
    Due(Time),
    /// The event is on its way. The cut follows at this time.
    Told(Time),
    /// The proxy has to end the stream now. At this time the operator is told that it does not.
    Cut(Time),
    /// The operator was told.
    Overdue,
}

impl Session {
    /// The request was placed and has to go. The client is told to come back after `retry_after`.
    ///
    /// From now on the request counts as evicted, however it ends, unless its response is complete first.
    pub(crate) fn on_revoked(&mut self, now: Time, retry_after: Duration, actions: &mut Vec<Action>) {
        let is_placed = matches!(self.request, RequestPhase::Sent(_));
        // What the proxy answers itself has left the model server already.
        if self.closed || self.ended || self.revocation.is_some() || !is_placed || self.proxy_details.is_some() {
            return;
        }
        let (at_once, is_due) = match &self.response {
            ResponsePhase::Complete => return,
            ResponsePhase::Waiting => (Delivery::Status, false),
            ResponsePhase::Passing { events, .. } if events.is_done() => return,
            ResponsePhase::Passing { .. } if self.is_held_back() => (Delivery::Status, false),
            ResponsePhase::Passing { .. } if !self.takes_event() => (Delivery::Reset, false),
            ResponsePhase::Passing { .. } => (Delivery::Left, true),
        };
        self.revocation = Some(Revocation {
            step: Step::Due(now.saturating_add(EVENT_END)),
            delivery: at_once,
            refusal: Refusal::evicted(retry_after),
            retry_after,
        });
        if !is_due {
            self.cut(now, at_once, actions);
        } else if self.may_speak_unasked() {
            self.send_event(now, &[], actions);
        }
    }

    /// Everything was said that can be said: nothing is passed on any more.
    pub(super) fn is_cut_off(&self) -> bool {
        self.revocation.as_ref().is_some_and(|revocation| !matches!(revocation.step, Step::Due(_)))
    }

    pub(super) fn is_event_due(&self) -> bool {
        self.revocation.as_ref().is_some_and(|revocation| matches!(revocation.step, Step::Due(_)))
    }

    /// How the request is cut off, if it is.
    pub(super) fn delivery(&self) -> Option<Delivery> {
        self.revocation.as_ref().map(|revocation| revocation.delivery)
    }

    /// When the next step is due.
    pub(super) fn next_step(&self) -> Option<Time> {
        match self.revocation.as_ref()?.step {
            Step::Due(time) | Step::Told(time) | Step::Cut(time) => Some(time),
            Step::Overdue => None,
        }
    }

    /// Takes the step that is due at `now`.
    pub(super) fn take_step(&mut self, now: Time, actions: &mut Vec<Action>) {
        let Some(Revocation { step, delivery, .. }) = &mut self.revocation else { return };
        match *step {
            Step::Due(_) => self.cut(now, Delivery::Reset, actions),
            Step::Told(_) => {
                let delivery = *delivery;
                self.cut(now, delivery, actions);
            }
            Step::Cut(_) => {
                *step = Step::Overdue;
                actions.push(Action::Notice(Notice::Unending));
            }
            Step::Overdue => {}
        }
    }

    /// A part of the response came while the event is due. What belongs to the present event is passed on, and then the
    /// event. Returns the part if it is passed on as if nothing was the matter.
    pub(super) fn cut_chunk(
        &mut self,
        now: Time,
        mut chunk: Bytes,
        end_of_stream: bool,
        actions: &mut Vec<Action>,
    ) -> Option<Bytes> {
        let ResponsePhase::Passing { scanner, events, restorer, .. } = &mut self.response else { return Some(chunk) };
        let mut after = *events;
        after.push(&chunk);
        if end_of_stream || after.is_done() {
            // Complete after all.
            self.revocation = None;
            return Some(chunk);
        }
        let Some(rest) = events.rest_in(&chunk) else { return Some(chunk) };
        chunk.truncate(rest);
        events.push(&chunk);
        scanner.push(&chunk);
        actions.push(Action::Sending(chunk.len() as u64));
        let head = restored(restorer, &chunk, false).unwrap_or(chunk);
        self.send_event(now, &head, actions);
        None
    }

    /// The client has seen nothing of the response: its headers wait here, or the proxy passes it on as a whole.
    fn is_held_back(&self) -> bool {
        self.is_response_unseen() || matches!(self.response_mode(), BodyMode::Buffered | BodyMode::BufferedPartial)
    }

    /// An event can be put into the response.
    fn takes_event(&self) -> bool {
        let ResponsePhase::Passing { is_event_stream, .. } = self.response else { return false };
        let passes_here = match self.response_mode() {
            BodyMode::FullDuplex | BodyMode::Streamed | BodyMode::Other => true,
            BodyMode::None | BodyMode::Buffered | BodyMode::BufferedPartial => false,
        };
        self.revocable
            && is_event_stream
            && passes_here
            && !self.response_has_length
            && !matches!(self.settings.eviction, None | Some(MidStream::Reset))
    }

    /// In full duplex a part of the response may be sent that answers none: once there was one, so that the proxy is in
    /// the midst of it.
    fn may_speak_unasked(&self) -> bool {
        let ResponsePhase::Passing { answer, events, .. } = &self.response else { return false };
        *answer == Answer::Echo && events.count() > 0 && events.is_between()
    }

    /// Sends `head`, which ends an event, and the last event behind it.
    fn send_event(&mut self, now: Time, head: &[u8], actions: &mut Vec<Action>) {
        let in_full_duplex = self.response_answer() == Answer::Echo;
        // In other modes a stream ends with the model server's.
        let ends = in_full_duplex && self.settings.eviction == Some(MidStream::EventThenEnd);
        let events = self.events();
        let Some(revocation) = &mut self.revocation else { return };
        let retry_after = Some(revocation.retry_after).filter(|_| self.settings.retry_after);
        let event = self.error_shape.last_event(&revocation.refusal, retry_after, events);
        let bytes = if head.is_empty() { Bytes::from(event) } else { [head, event.as_bytes()].concat().into() };
        revocation.delivery = Delivery::Event;
        revocation.step =
            if ends { Step::Cut(now.saturating_add(PROXY_END)) } else { Step::Told(now.saturating_add(FLUSH)) };
        let reply = if in_full_duplex {
            Reply::ResponseBody(Piece { bytes, end_of_stream: ends })
        } else {
            Reply::ResponseBodyReplaced(bytes)
        };
        self.reply(reply, actions);
    }

    fn cut(&mut self, now: Time, delivered: Delivery, actions: &mut Vec<Action>) {
        let Some(revocation) = &mut self.revocation else { return };
        revocation.delivery = delivered;
        revocation.step = Step::Cut(now.saturating_add(PROXY_END));
        if delivered == Delivery::Status {
            self.status = Some(revocation.refusal.code.http_status());
        }
        let reply = revocation.refusal.render(self.settings, self.error_shape);
        self.reply(Reply::Immediate(reply), actions);
    }
}
