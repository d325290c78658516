//! What a session does when nothing comes for a while.

use std::time::Duration;

use sluice_core::{TerminationCause, Time};

use super::Session;
use crate::action::{Action, Close, Notice};
use crate::message::BodyMode;
use crate::phases::{Answer, Held, Reading, RequestPhase, ResponsePhase, Routing, Tail};
use crate::reject::Refusal;
use crate::reply::Reply;

/// A body that nobody announced comes within this time after the headers, or not at all.
pub(super) const UNANNOUNCED_BODY: Duration = Duration::from_millis(150);

/// A stream on which nothing has come by then is none of a proxy, which opens it for a message that it has. It would hold
/// up the end of the process.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);

/// How long a proxy waits for an answer if it does not tell: the default of Envoy's `message_timeout`.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

/// A request that gets its endpoint at once needs no patience, however late it began to wait.
const AT_ONCE: Duration = Duration::from_millis(10);

/// The longest wait that a proxy grants.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// A wait that is known to end needs a little more, so that the end comes from here and not from the proxy.
const MARGIN: Duration = Duration::from_secs(5);

impl Session {
    /// When [`Session::on_time`] has something to do, if nothing comes before. It never moves to an earlier time but by
    /// another verb.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        if self.closed {
            return None;
        }
        if let Some(step) = self.next_step() {
            return Some(step);
        }
        match &self.request {
            RequestPhase::Reading(Reading { give_up: Some(time), .. }) => Some(*time),
            RequestPhase::Reading(reading) => self.stalled_at(reading.progress),
            RequestPhase::Routing(routing) => routing.extend,
            RequestPhase::Sent(rest) if matches!(self.response, ResponsePhase::Waiting) => {
                rest.progress.and_then(|progress| self.stalled_at(progress))
            }
            RequestPhase::Waiting => Some(self.facts.opened.saturating_add(FIRST_MESSAGE)),
            RequestPhase::Sent(_) | RequestPhase::Over => self.unseen_until(),
        }
    }

    /// Does what is due at `now`.
    ///
    /// `wait_ends` tells when the wait of a request that asked for an endpoint ends at the latest; none: never.
    pub(crate) fn on_time(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        wait_ends: &dyn Fn() -> Option<Time>,
        actions: &mut Vec<Action>,
    ) {
        if self.next_wakeup().is_none_or(|due| now < due) {
            return;
        }
        if self.next_step().is_some() {
            self.take_step(now, actions);
            return;
        }
        match &mut self.request {
            RequestPhase::Reading(Reading { give_up: Some(_), .. }) => {
                actions.push(Action::Notice(Notice::NoBody));
                self.route(
                    now,
                    Tail::Open { held: Held::of(Answer::Echo), ended: false, trailers: false },
                    random,
                    actions,
                );
            }
            RequestPhase::Sent(_) if !matches!(self.response, ResponsePhase::Waiting) => self.leave_unseen(actions),
            RequestPhase::Reading(_) | RequestPhase::Sent(_) => {
                let refusal = Refusal::body_stalled(self.settings.body_progress_timeout);
                self.refuse(&refusal, actions);
            }
            RequestPhase::Routing(Routing { extend, since, .. }) => {
                *extend = None;
                let since = *since;
                self.ask_for_patience(now, since, wait_ends(), actions);
            }
            RequestPhase::Waiting => {
                let what = "no message came on the stream";
                self.terminate(TerminationCause::Error, what, actions);
                self.close(Close::Failed(what), actions);
            }
            RequestPhase::Over => {}
        }
    }

    /// When a body is given up whose last part came at `progress`.
    fn stalled_at(&self, progress: Time) -> Option<Time> {
        let timeout = self.settings.body_progress_timeout;
        (!timeout.is_zero()).then(|| progress.saturating_add(timeout))
    }

    /// When to see whether the proxy has to be asked for patience: after half of its timeout, since a request that was
    /// spoken of can no longer move to another picker. `since` as in [`Routing`]; none where no time is measured.
    pub(super) fn patience_due(&self, now: Time, since: Time, tail: &Tail) -> Option<Time> {
        let due = || since.saturating_add(self.message_timeout() / 2).max(now.saturating_add(AT_ONCE));
        (self.settings.extend_message_timeout && self.is_timed(tail)).then(due)
    }

    /// The proxy ends a request that is not answered in time. Not in full duplex, and where the mode is not known a body
    /// that came before the headers were answered tells that it is full duplex.
    pub(super) fn is_timed(&self, tail: &Tail) -> bool {
        match self.request_mode() {
            BodyMode::FullDuplex => false,
            BodyMode::Other => !matches!(tail, Tail::Whole { body: Some(_), .. }),
            BodyMode::None | BodyMode::Streamed | BodyMode::Buffered | BodyMode::BufferedPartial => true,
        }
    }

    fn message_timeout(&self) -> Duration {
        self.facts.message_timeout.unwrap_or(MESSAGE_TIMEOUT)
    }

    /// Asks the proxy to wait for as long as the request may, if it would not anyway.
    fn ask_for_patience(&mut self, now: Time, since: Time, ends: Option<Time>, actions: &mut Vec<Action>) {
        let from = |start: Time| match ends {
            Some(ends) => ends.saturating_since(start).saturating_add(MARGIN).min(LONGEST_WAIT),
            None => LONGEST_WAIT,
        };
        if from(since) > self.message_timeout() {
            self.reply(Reply::Wait(from(now)), actions);
        }
    }
}
