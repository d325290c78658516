use std::sync::atomic::{AtomicBool, Ordering};

use crate::action::Notice;

/// What was said already: each thing is worth one line in the log of a process, not one per request.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    refused_mode: AtomicBool,
    unknown_mode: AtomicBool,
    no_body: AtomicBool,
    unaccountable: AtomicBool,
    modes_refused: AtomicBool,
    message_timeout: AtomicBool,
    prompts_stay_charged: AtomicBool,
    models_stay: AtomicBool,
    targets_show: AtomicBool,
    unending: AtomicBool,
}

impl Notices {
    /// Says it if it was not said before, and tells whether it did.
    pub(crate) fn say(&self, notice: Notice) -> bool {
        let said = match notice {
            Notice::RefusedMode { .. } => &self.refused_mode,
            Notice::UnknownMode => &self.unknown_mode,
            Notice::NoBody => &self.no_body,
            Notice::Unaccountable => &self.unaccountable,
            Notice::ModesRefused => &self.modes_refused,
            Notice::MessageTimeout { .. } => &self.message_timeout,
            Notice::PromptsStayCharged => &self.prompts_stay_charged,
            Notice::ModelsStay { .. } => &self.models_stay,
            Notice::TargetsShow => &self.targets_show,
            Notice::Unending => &self.unending,
        };
        // The load keeps the line in the cache of every thread.
        if said.load(Ordering::Relaxed) || said.swap(true, Ordering::Relaxed) {
            return false;
        }
        match notice {
            Notice::RefusedMode { direction, mode } => tracing::error!(
                direction,
                mode = mode.as_str(),
                "requests are refused: the proxy hangs on some bodies in this mode; set {direction}_body_mode to \
                 FULL_DUPLEX_STREAMED or BUFFERED"
            ),
            Notice::UnknownMode => tracing::warn!(
                "the proxy does not say how it sends bodies, or in words that are not known: FULL_DUPLEX_STREAMED is assumed"
            ),
            Notice::NoBody => tracing::warn!(
                "no body came with a request that should have one: such requests are placed by their headers; set \
                 request_body_mode to FULL_DUPLEX_STREAMED in the proxy"
            ),
            Notice::Unaccountable => tracing::error!(
                "streams end with the headers of the response, one after the other: unless all those responses were complete \
                 by then, requests count no longer than until their responses begin; set response_trailer_mode to SEND in \
                 the proxy, if it is not"
            ),
            Notice::ModesRefused => tracing::error!(
                "requests fail: the proxy's configuration announces that the picker may choose the body modes \
                 (x-sluice-mode-override), but the proxy refuses it: set allow_mode_override in the proxy, or take the \
                 announcement out"
            ),
            Notice::MessageTimeout { after } => tracing::warn!(
                ?after,
                "waiting requests end at the same age, one after the other: unless clients give up so soon, the proxy's \
                 message_timeout is too short; set message_timeout, or max_message_timeout, to 3600s in the proxy"
            ),
            Notice::PromptsStayCharged => tracing::warn!(
                "the proxy keeps the bodies of responses to itself, so that the tokens of a prompt count until its response \
                 ends instead of until its first part: set response_body_mode to FULL_DUPLEX_STREAMED, or bound requests \
                 instead of tokens"
            ),
            Notice::ModelsStay { mode } => tracing::error!(
                mode = mode.as_str(),
                "the models of requests are not replaced, because the proxy does not show their bodies before they are \
                 placed: set request_body_mode to FULL_DUPLEX_STREAMED or BUFFERED in the proxy, or sluice.bodies to auto \
                 where the picker may choose"
            ),
            Notice::TargetsShow => tracing::warn!(
                "clients are told by which name the model server knows their model, because the proxy keeps the bodies of \
                 responses to itself: set response_body_mode to FULL_DUPLEX_STREAMED in the proxy"
            ),
            Notice::Unending => tracing::error!(
                "the proxy does not end streams that it was told to cut off: the places of evicted requests stay taken until it \
                 does"
            ),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::BodyMode;

    #[test]
    fn each_thing_is_said_once() {
        let notices = Notices::default();
        let refused = |mode| Notice::RefusedMode { direction: "request", mode };
        assert!(notices.say(refused(BodyMode::BufferedPartial)));
        assert!(!notices.say(refused(BodyMode::Other)));
        for notice in [
            Notice::UnknownMode,
            Notice::NoBody,
            Notice::Unaccountable,
            Notice::ModesRefused,
            Notice::MessageTimeout { after: Duration::from_secs(1) },
            Notice::PromptsStayCharged,
            Notice::ModelsStay { mode: BodyMode::None },
            Notice::TargetsShow,
            Notice::Unending,
        ] {
            assert!(notices.say(notice));
            assert!(!notices.say(notice));
        }
    }
}
