//! What a session does when nothing comes for a while.

use std::time::Duration;

use sluice_core::{GoDuration, Headers, Time};

use super::Session;
use crate::action::{Action, Notice};
use crate::message::BodyMode;
use crate::phases::{Answer, Held, Reading, RequestPhase, ResponsePhase, Routing, Tail};
use crate::reject::Refusal;
use crate::reply::Reply;

/// A body that nobody announced comes within this time after the headers, or not at all.
pub(super) const UNANNOUNCED_BODY: Duration = Duration::from_millis(150);

/// A request that waits longer than this asks the proxy for patience: half of the proxy's default timeout.
const PATIENCE: Duration = Duration::from_millis(100);

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
            RequestPhase::Waiting | RequestPhase::Sent(_) | RequestPhase::Over => None,
        }
    }

    /// Does what is due at `now`.
    pub(crate) fn on_time(&mut self, now: Time, random: &mut dyn FnMut() -> u64, actions: &mut Vec<Action>) {
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
            RequestPhase::Reading(_) | RequestPhase::Sent(_) => {
                let refusal = Refusal::body_stalled(self.settings.body_progress_timeout);
                self.refuse(&refusal, actions);
            }
            RequestPhase::Routing(Routing { extend, until, .. }) => {
                *extend = None;
                let left = until.map_or(LONGEST_WAIT, |until| until.saturating_since(now).saturating_add(MARGIN));
                self.reply(Reply::Wait(left.min(LONGEST_WAIT)), actions);
            }
            RequestPhase::Waiting | RequestPhase::Over => {}
        }
    }

    /// When a body is given up whose last part came at `progress`.
    fn stalled_at(&self, progress: Time) -> Option<Time> {
        let timeout = self.settings.body_progress_timeout;
        (!timeout.is_zero()).then(|| progress.saturating_add(timeout))
    }

    /// When to ask the proxy for patience, for a request that begins to wait at `now`. In full duplex the proxy measures
    /// no time.
    pub(super) fn extension(&self, now: Time) -> Option<Time> {
        let is_timed = !matches!(self.request_mode(), BodyMode::FullDuplex | BodyMode::Other);
        (is_timed && self.settings.extend_message_timeout).then(|| now.saturating_add(PATIENCE))
    }

    /// The end of the wait, where the client or the stream sets one.
    pub(super) fn wait_until(&self, received: Time, headers: &Headers) -> Option<Time> {
        let ttl = headers.last_str("x-llm-d-inference-ttl").and_then(|text| text.trim().parse::<GoDuration>().ok());
        let ttl = ttl.and_then(GoDuration::non_negative).map(|ttl| received.saturating_add(ttl));
        [ttl, self.facts.deadline].into_iter().flatten().min()
    }
}
