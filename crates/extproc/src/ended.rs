use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use sluice_core::TerminationCause;

use crate::action::Outcome;

/// How a request ended, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// The response was delivered in full; where bodies pass the picker by, the client may also have left.
    Natural,
    /// The client left; in the middle of a response the model server may also have broken off.
    ClientDisconnect,
    /// It had to make room.
    Evicted,
    /// The proxy answered in place of the model server, or the stream to the picker broke.
    Error,
    /// The picker answered in place of the model server.
    Refused,
    /// Left to another picker.
    HandedOver,
    /// Its stream ended with the response headers, and whether the response did as well is not known.
    Unaccounted,
    /// The proxy showed nothing of a response that it was asked for.
    Unseen,
}

impl EndCause {
    pub(crate) const ALL: [Self; 8] = [
        Self::Natural,
        Self::ClientDisconnect,
        Self::Evicted,
        Self::Error,
        Self::Refused,
        Self::HandedOver,
        Self::Unaccounted,
        Self::Unseen,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Natural => TerminationCause::Natural.as_str(),
            Self::ClientDisconnect => TerminationCause::ClientDisconnect.as_str(),
            Self::Evicted => TerminationCause::Evicted.as_str(),
            Self::Error => TerminationCause::Error.as_str(),
            Self::Refused => "refused",
            Self::HandedOver => "handed-over",
            Self::Unaccounted => "unaccounted",
            Self::Unseen => "unseen",
        }
    }

    /// `was_revoked`: the request had its place, and was to make room.
    pub(crate) const fn of(outcome: Outcome, was_revoked: bool) -> Self {
        match outcome {
            Outcome::Refused(_) if was_revoked => Self::Evicted,
            Outcome::Refused(_) => Self::Refused,
            Outcome::HandedOver => Self::HandedOver,
            Outcome::Unaccounted { .. } => Self::Unaccounted,
            Outcome::Unseen { .. } => Self::Unseen,
            Outcome::Terminated { cause: TerminationCause::Natural, .. } => Self::Natural,
            Outcome::Terminated { cause: TerminationCause::ClientDisconnect, .. } => Self::ClientDisconnect,
            Outcome::Terminated { cause: TerminationCause::Evicted, .. } => Self::Evicted,
            Outcome::Terminated { cause: TerminationCause::Error, .. } => Self::Error,
        }
    }
}

/// Counts every request once, when it ends.
#[derive(Debug)]
pub(crate) struct Ended([IntCounter; EndCause::ALL.len()]);

impl Ended {
    /// Every cause is on the page from the start.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts = Opts::new("llm_d_epp_request_ended_total", "requests that ended, by the cause");
        let family = IntCounterVec::new(opts, &["cause"])?;
        registry.register(Box::new(family.clone()))?;
        Ok(Self(EndCause::ALL.map(|cause| family.with_label_values(&[cause.as_str()]))))
    }

    pub(crate) fn count(&self, cause: EndCause) {
        self.0[cause as usize].inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_counter_of_its_own() {
        let registry = Registry::new();
        let ended = Ended::register(&registry).unwrap();
        for (times, cause) in EndCause::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| ended.count(cause));
        }
        let families = registry.gather();
        let counted = |cause: EndCause| {
            let metrics = families[0].get_metric().iter();
            let mut found = metrics.filter(|metric| metric.get_label()[0].value() == cause.as_str());
            found.next().unwrap().get_counter().get_value().to_string()
        };
        assert_eq!(EndCause::ALL.map(counted), ["1", "2", "3", "4", "5", "6", "7", "8"]);
    }
}
