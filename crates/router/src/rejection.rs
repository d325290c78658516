use sluice_flow::Outcome;
use sluice_schedule::{Rng, ScheduleError};

use crate::admission;

/// Why a request is not served. `retry_after`: seconds after which trying again makes sense, jittered so that refused
/// clients do not come back together; none where it never does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Its objective is one that nobody has defined, and the settings refuse those.
    #[error("unknown objective {name:?}")]
    UnknownObjective { name: String },
    /// Sheddable work, while the endpoints it may use have no room.
    #[error("system saturated, sheddable request dropped")]
    Shed { retry_after: u64 },
    /// Admission did not let it in, or not in time.
    #[error("{}", admission_text(*outcome))]
    NotAdmitted { outcome: Outcome, retry_after: Option<u64> },
    /// No queue will ever take it, however empty it is: it has more bytes than `limit`. `outcome` is what admission said.
    #[error("the request body is larger than {limit} bytes (maxBytes)")]
    TooLarge { limit: u64, outcome: Outcome },
    /// The pool, or the part of it that the request may use, is empty.
    #[error("failed to find endpoint candidates for serving the request")]
    NoCandidates { retry_after: u64 },
    /// There are endpoints, but none that takes the request.
    #[error("no endpoints available for the given request")]
    NoneAvailable { retry_after: u64 },
    #[error("scheduling failed: {0}")]
    Scheduling(ScheduleError),
}

impl Rejection {
    pub(crate) fn not_admitted(dropped: admission::Rejection, rng: &mut Rng) -> Self {
        let retry_after = dropped.retry_after(rng).map(|duration| duration.as_secs());
        Self::NotAdmitted { outcome: dropped.outcome, retry_after }
    }

    /// Seconds after which trying again makes sense; none where it never does.
    pub const fn retry_after(&self) -> Option<u64> {
        match self {
            Self::UnknownObjective { .. } | Self::TooLarge { .. } | Self::Scheduling(_) => None,
            Self::NotAdmitted { retry_after, .. } => *retry_after,
            Self::Shed { retry_after } | Self::NoCandidates { retry_after } | Self::NoneAvailable { retry_after } => {
                Some(*retry_after)
            }
        }
    }

    /// How it left admission; none if it never came there, or went on to be placed.
    pub const fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::NotAdmitted { outcome, .. } | Self::TooLarge { outcome, .. } => Some(*outcome),
            Self::UnknownObjective { .. }
            | Self::Shed { .. }
            | Self::NoCandidates { .. }
            | Self::NoneAvailable { .. }
            | Self::Scheduling(_) => None,
        }
    }

    pub(crate) fn unknown_objective(name: &[u8]) -> Self {
        Self::UnknownObjective { name: excerpt(name) }
    }
}

/// No more of a client's text than a log line should have.
pub(crate) fn excerpt(text: &[u8]) -> String {
    const LONGEST: usize = 100;
    // No character is longer than four bytes.
    let start = &text[..text.len().min(4 * LONGEST)];
    String::from_utf8_lossy(start).chars().take(LONGEST).collect()
}

const fn admission_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::RejectedCapacity => "request rejected pre-queue: queue at capacity",
        Outcome::RejectedNoEndpoints => "no endpoints available: request rejected pre-queue: no endpoints available",
        Outcome::RejectedOther => {
            "flow controller shutting down: request rejected pre-queue: flow controller is not running"
        }
        Outcome::EvictedTtl => "request timed out in queue: request evicted from queue: request TTL expired",
        Outcome::EvictedNoEndpoints => {
            "request timed out in queue and no endpoints are available: request evicted from queue: \
             request TTL expired"
        }
        Outcome::EvictedContextCancelled => {
            "client disconnected: request evicted from queue: request context cancelled"
        }
        // `Dispatched` is no reason to refuse; it never comes here.
        Outcome::EvictedOther | Outcome::Dispatched => {
            "flow controller shutting down: request evicted from queue: flow controller is not running"
        }
    }
}
