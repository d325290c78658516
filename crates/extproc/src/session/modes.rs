//! Which body modes a session works with: told by the proxy, assumed, or asked for.

use std::time::Duration;

use sluice_core::{Headers, Time};

use super::{Session, Wanted};
use crate::action::{Action, Notice};
use crate::message::{BodyMode, BodyModes};
use crate::phases::{Answer, ResponsePhase};
use crate::reply::Reply;

/// Longer than a model takes to its first token. A proxy that goes on without the picker after that delivers the response;
/// only its end is not known.
const UNSEEN: Duration = Duration::from_secs(300);

impl Session {
    /// Settles the modes when the request headers came, and asks for the body where that is possible and worth it.
    pub(super) fn settle_modes(&mut self, headers: &Headers, end_of_stream: bool, actions: &mut Vec<Action>) {
        let told = self.modes.unwrap_or(BodyModes::UNKNOWN);
        if [told.request, told.response].contains(&BodyMode::Other) {
            actions.push(Action::Notice(Notice::UnknownMode));
        }
        self.modes = Some(told);
        if self.asks_for_request(told, headers, end_of_stream) {
            let asked = BodyModes { request: BodyMode::FullDuplex, ..told };
            self.modes = Some(asked);
            self.asked_for_request = true;
            self.reply(Reply::Modes(asked), actions);
        }
    }

    /// The body of the request comes only if it is asked for, and it is worth that.
    pub(super) fn asks_for_request(&self, told: BodyModes, headers: &Headers, end_of_stream: bool) -> bool {
        let Wanted { request, models, response: _, revocable: _ } = self.settings.wanted;
        !end_of_stream && self.may_change(told) && (request || models && self.may_rewrite(headers))
    }

    /// The modes to ask for together with the answer to the response headers. Where the response passes by, they keep the
    /// proxy from ending the stream here.
    ///
    /// Envoy 1.40 never goes on with a response that is asked for in full duplex when its trailers are there already and
    /// nothing is between them and the headers; in mode STREAMED it does. So only what may have to be cut off with a last
    /// event comes in full duplex, where that may be said at any time, and for the rest see
    /// [`unseen_until`](Self::unseen_until).
    ///
    /// `renames`: the response has another name of the model than the client's.
    pub(super) fn ask_for_response(
        &mut self,
        headers: &Headers,
        is_event_stream: bool,
        renames: bool,
    ) -> Option<BodyModes> {
        let told = self.modes?;
        if !self.may_change(told) {
            return None;
        }
        let Wanted { request: _, response, revocable, models } = self.settings.wanted;
        let takes_event = revocable && self.revocable && is_event_stream;
        let response = response || models && renames;
        let wanted = match told.response {
            _ if takes_event && !headers.contains("trailer") => BodyMode::FullDuplex,
            _ if takes_event || response => BodyMode::Streamed,
            as_told => as_told,
        };
        if wanted == told.response {
            // In mode NONE the stream would end here.
            return (wanted == BodyMode::None).then_some(told);
        }
        let asked = BodyModes { response: wanted, ..told };
        self.modes = Some(asked);
        self.mode_before = Some(told.response);
        Some(asked)
    }

    /// When a response that was asked for, and of which nothing came, is left to the proxy.
    pub(super) fn unseen_until(&self) -> Option<Time> {
        let is_unseen = self.mode_before.is_some() && matches!(self.response, ResponsePhase::Passing { .. });
        is_unseen.then(|| self.response_began.saturating_add(UNSEEN))
    }

    /// A proxy that lets the picker choose at all takes other modes in place of these two only: it fails the request
    /// that any other is changed for. What was asked for before stays.
    fn may_change(&self, modes: BodyModes) -> bool {
        let changeable = |mode| matches!(mode, BodyMode::None | BodyMode::Streamed);
        let request = changeable(modes.request) || self.asked_for_request;
        self.facts.may_choose_modes && request && changeable(modes.response)
    }

    pub(super) fn request_mode(&self) -> BodyMode {
        self.modes.map_or(BodyMode::Other, |modes| modes.request)
    }

    /// How response bodies are answered. Where the mode is not known, full duplex is assumed: a streaming proxy
    /// understands that answer as well.
    pub(super) fn response_answer(&self) -> Answer {
        match self.response_mode() {
            BodyMode::FullDuplex | BodyMode::Other => Answer::Echo,
            BodyMode::None | BodyMode::Streamed | BodyMode::Buffered | BodyMode::BufferedPartial => Answer::AsIs,
        }
    }

    pub(super) fn response_mode(&self) -> BodyMode {
        self.modes.map_or(BodyMode::Other, |modes| modes.response)
    }
}
