//! Which body modes a session works with: told by the proxy, assumed, or asked for.

use super::{Session, Wanted};
use crate::action::{Action, Notice};
use crate::message::{BodyMode, BodyModes};
use crate::phases::Answer;
use crate::reply::Reply;

impl Session {
    /// Settles the modes when the request headers came, and asks for others where that is possible and worth it.
    pub(super) fn settle_modes(&mut self, end_of_stream: bool, actions: &mut Vec<Action>) {
        let told = self.modes.unwrap_or(BodyModes { request: BodyMode::Other, response: BodyMode::Other });
        if [told.request, told.response].contains(&BodyMode::Other) {
            actions.push(Action::Notice(Notice::UnknownMode));
        }
        let asked = self.modes_to_ask_for(told, end_of_stream);
        self.modes = Some(asked.unwrap_or(told));
        if let Some(asked) = asked {
            self.reply(Reply::Modes(asked), actions);
        }
    }

    /// A proxy takes a change only while nothing is answered, and only where it sends bodies in none of the modes that
    /// hold headers back.
    fn modes_to_ask_for(&self, told: BodyModes, end_of_stream: bool) -> Option<BodyModes> {
        let changeable = |mode| matches!(mode, BodyMode::None | BodyMode::Streamed);
        if !self.facts.may_choose_modes || !changeable(told.request) || !changeable(told.response) {
            return None;
        }
        let Wanted { request, response } = self.settings.wanted;
        let request = if request && !end_of_stream { BodyMode::FullDuplex } else { told.request };
        let response = if response { BodyMode::FullDuplex } else { told.response };
        let asked = BodyModes { request, response };
        (asked != told).then_some(asked)
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
