//! Which body modes a session works with: told by the proxy, assumed, or asked for.

use super::{Session, Wanted};
use crate::action::{Action, Notice};
use crate::message::{BodyMode, BodyModes};
use crate::phases::Answer;
use crate::reply::Reply;

impl Session {
    /// Settles the modes when the request headers came, and asks for the body where that is possible and worth it.
    pub(super) fn settle_modes(&mut self, end_of_stream: bool, actions: &mut Vec<Action>) {
        let told = self.modes.unwrap_or(BodyModes { request: BodyMode::Other, response: BodyMode::Other });
        if [told.request, told.response].contains(&BodyMode::Other) {
            actions.push(Action::Notice(Notice::UnknownMode));
        }
        self.modes = Some(told);
        if self.settings.wanted.request && !end_of_stream && self.may_change(told) {
            let asked = BodyModes { request: BodyMode::FullDuplex, ..told };
            self.modes = Some(asked);
            self.asked_for_request = true;
            self.reply(Reply::Modes(asked), actions);
        }
    }

    /// The modes to ask for together with the answer to the response headers. Where the response passes by, they keep the
    /// proxy from ending the stream here.
    pub(super) fn ask_for_response(&mut self, is_event_stream: bool, end_of_stream: bool) -> Option<BodyModes> {
        let told = self.modes?;
        let Wanted { request: _, response, revocable } = self.settings.wanted;
        let is_wanted = response || revocable && self.revocable && is_event_stream;
        if end_of_stream || !self.may_change(told) {
            return None;
        }
        if !is_wanted {
            return (told.response == BodyMode::None).then_some(told);
        }
        let asked = BodyModes { response: BodyMode::FullDuplex, ..told };
        self.modes = Some(asked);
        self.mode_before = Some(told.response);
        Some(asked)
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
