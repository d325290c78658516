//! How a stream lets go of what its request holds: because it has to, and when it is over.

use std::error::Error as _;
use std::future::Future as _;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use sluice_core::TerminationCause;
use sluice_flow::RevokeCause;
use sluice_flow::policy::Usage;
use sluice_router::InFlight;
use tonic::Status;

use super::Driver;
use crate::action::{Delivery, Ending, Outcome, Responder};
use crate::convert;
use crate::ended::EndCause;
use crate::eviction_metrics::Evicted;
use crate::message::InboundEnd;
use crate::reject::Refusal;

impl Driver {
    /// Keeps what a placed request holds. A place that is wanted back already, before anything was sent to the endpoint,
    /// is given back at once.
    pub(super) fn keep(&mut self, in_flight: Option<InFlight>) -> Result<(), Refusal> {
        self.in_flight = in_flight;
        if self.learn_of_revocation() {
            return Err(Refusal::evicted(self.terms.router.retry_after(self.priority)));
        }
        Ok(())
    }

    /// Tells whether the place is wanted back and nobody has heard of it yet.
    fn learn_of_revocation(&mut self) -> bool {
        let revocable = self.in_flight.as_mut().filter(|_| self.revocable);
        let is_wanted = revocable.and_then(|lease| lease.revoked().now_or_never()) == Some(RevokeCause::Eviction);
        if is_wanted {
            self.revocable = false;
            self.revoked = Some(self.shared.clock.now());
        }
        is_wanted
    }

    pub(super) fn on_revoked(&mut self, cause: RevokeCause) {
        self.revocable = false;
        match cause {
            RevokeCause::Eviction => {
                let now = self.shared.clock.now();
                self.revoked = Some(now);
                let retry_after = self.terms.router.retry_after(self.priority);
                self.session.on_revoked(now, retry_after, &mut self.actions);
            }
            // Whoever ends the process cuts the streams itself.
            RevokeCause::Shutdown => {}
        }
    }

    /// Reads what had arrived when the stream was dropped, and how the proxy ended it: a proxy that resets a stream has
    /// often ended its side just before.
    fn hear_out(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let next = pin!(self.inbound.message()).poll(&mut context);
            let end = match next {
                Poll::Ready(Ok(Some(request))) => {
                    self.on_message(convert::inbound(request, &self.terms.vouched_namespace));
                    self.act();
                    continue;
                }
                Poll::Pending if self.given_up.is_set() => InboundEnd::Unread,
                Poll::Ready(Ok(None)) | Poll::Pending => InboundEnd::HalfClosed,
                Poll::Ready(Err(status)) => end_of(&status),
            };
            self.on_inbound_end(end);
            self.act();
            return;
        }
    }

    /// Releases what the request holds, and counts it if it failed or had to make room.
    pub(super) fn end(&mut self, ending: &Ending) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let Ending { mut outcome, usage, remark: _, mut evicted, events } = *ending;
        self.stop_routing();
        self.body = None;
        self.running = None;
        if self.learn_of_revocation()
            && let Outcome::Terminated { cause, .. } = &mut outcome
            && *cause != TerminationCause::Natural
        {
            // Had the word been heard first, this end would have been told as one of an eviction.
            *cause = TerminationCause::Evicted;
            evicted = Some(Delivery::Left);
        }
        let was_revoked = self.revoked.is_some();
        let end_cause = EndCause::of(outcome, was_revoked);
        self.shared.metrics.ended(end_cause);
        if let Some(record) = self.record.take() {
            let ending = Ending { outcome, evicted, ..ending.clone() };
            record.close(self.shared.clock.now(), end_cause, self.session.request_bytes(), &ending);
        }
        if let Some(in_flight) = self.in_flight.take() {
            let cause = match outcome {
                Outcome::Terminated { cause, .. } => cause,
                Outcome::Refused(_) if was_revoked => TerminationCause::Evicted,
                Outcome::Refused(_) | Outcome::HandedOver => TerminationCause::Error,
                // There will be no other end.
                Outcome::Unaccounted { .. } | Outcome::Unseen { .. } => TerminationCause::Natural,
            };
            in_flight.finish(cause, usage, Usage { prompt: self.prompt_estimate, output: events });
        }
        if let Some(revoked) = self.revoked {
            let delivery = match outcome {
                Outcome::Refused(_) | Outcome::HandedOver => Delivery::Refused,
                Outcome::Terminated { .. } | Outcome::Unaccounted { .. } | Outcome::Unseen { .. } => {
                    evicted.unwrap_or(Delivery::Completed)
                }
            };
            let took = self.shared.clock.now().saturating_since(revoked);
            let (priority, prompt_estimate) = (self.priority, self.prompt_estimate);
            self.shared.metrics.evicted(Evicted { priority, delivery, took, prompt_estimate, events, usage });
        }
        let error_code = match outcome {
            Outcome::Refused(_) if was_revoked => Some("Evicted"),
            Outcome::Refused(code) => Some(code.as_str()),
            Outcome::Terminated { cause: TerminationCause::Evicted, .. } => Some("Evicted"),
            Outcome::Terminated { responder: Responder::Proxy, .. } => Some("ProxyError"),
            Outcome::Terminated { status: Some(400..), .. }
            | Outcome::Unaccounted { status: Some(400..) }
            | Outcome::Unseen { status: Some(400..) } => Some("ModelServerError"),
            Outcome::Terminated { cause: TerminationCause::Error, .. } => Some("Unknown"),
            Outcome::Terminated { .. } | Outcome::Unaccounted { .. } | Outcome::Unseen { .. } | Outcome::HandedOver => {
                None
            }
        };
        if let Some(error_code) = error_code {
            self.shared.metrics.failed(&self.labels, error_code);
        }
    }
}

/// How the proxy's side ended, told by an error: it cancels when the client leaves.
pub(super) fn end_of(status: &Status) -> InboundEnd {
    tracing::debug!(%status, "the proxy's stream broke");
    match status.code() {
        tonic::Code::Cancelled => InboundEnd::HalfClosed,
        // Found here, not told by the proxy.
        tonic::Code::OutOfRange => InboundEnd::TooLarge,
        tonic::Code::Internal if status.source().is_none() => InboundEnd::Unreadable,
        tonic::Code::Internal => InboundEnd::Reset,
        _ => InboundEnd::Broken,
    }
}

/// The stream may be dropped at any time: the client left, the model server broke off, or the process shuts down.
impl Drop for Driver {
    fn drop(&mut self) {
        if !self.ended && !std::thread::panicking() {
            self.hear_out();
        }
        let cause = TerminationCause::ClientDisconnect;
        let outcome = Outcome::Terminated { cause, status: None, responder: Responder::ModelServer };
        let events = self.session.events();
        self.end(&Ending { events, ..Ending::of(outcome, self.session.usage()) });
        self.shared.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}
