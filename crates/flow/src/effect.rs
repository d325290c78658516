use sluice_core::{DropReason, Priority, TerminationCause};

use crate::policy::Usage;
use crate::{EndpointKey, Ticket, Waiter};

/// Something the engine wants done. Effects are values: they own nothing whose drop has consequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The wait is over, one way or the other.
    Verdict { ticket: Ticket, waiter: Waiter, verdict: Verdict },
    /// The started request behind `ticket` must be cut off; its lease counts until it is released.
    Revoke { ticket: Ticket, waiter: Waiter, cause: RevokeCause },
    /// There are more bands than [`SOFT_BAND_LIMIT`]. They are served all the same. Said once, and again only after
    /// there were no more than that.
    ManyBands { bands: usize },
    /// Somebody waits because of an estimate: what this endpoint says of itself now could let them in.
    Scrape { endpoint: EndpointKey },
    /// So many endpoints of a pool of `endpoints` have said nothing of themselves for too long. Said now and then, when it
    /// is another number than before.
    Stale { stale: u64, endpoints: u64 },
    /// A reload has given this band another ordering, and what waits in it another order.
    Reordered { priority: Priority, waiting: u64 },
}

/// Priorities are meant to be few: each band is one more to look through for every grant.
pub const SOFT_BAND_LIMIT: usize = 64;

/// The end of one wait. A ticket that parks after a grant gets a further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A lease is charged: start it, park it or release it.
    Granted {
        /// Where a place is kept for the ticket until it starts or is dropped.
        reserved: Option<EndpointKey>,
    },
    /// The ticket has ended.
    Dropped {
        outcome: Outcome,
        /// Seconds after which a retry has a fair chance, in `1..=15`: the base of a jittered `Retry-After`.
        /// None where a retry is no use.
        retry_after: Option<u8>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RevokeCause {
    /// More urgent work waits for the place.
    Eviction,
    /// The process is about to end.
    Shutdown,
}

/// How admission ended for a ticket: the values of the `outcome` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It was started.
    Dispatched,
    /// A queue limit was hit, it was displaced, or its band sheds.
    RejectedCapacity,
    /// There was nowhere to send it when it came.
    RejectedNoEndpoints,
    /// Admission had closed before it came.
    RejectedOther,
    /// Its time in the queue ran out while the pool had endpoints.
    EvictedTtl,
    /// Its time in the queue ran out while there was nowhere to send it.
    EvictedNoEndpoints,
    /// The client went away before it was started.
    EvictedContextCancelled,
    /// Admission closed while it waited, or it was given up after its grant.
    EvictedOther,
}

impl Outcome {
    pub const ALL: [Self; 8] = [
        Self::Dispatched,
        Self::RejectedCapacity,
        Self::RejectedNoEndpoints,
        Self::RejectedOther,
        Self::EvictedTtl,
        Self::EvictedNoEndpoints,
        Self::EvictedContextCancelled,
        Self::EvictedOther,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dispatched => "Dispatched",
            Self::RejectedCapacity => "RejectedCapacity",
            Self::RejectedNoEndpoints => "RejectedNoEndpoints",
            Self::RejectedOther => "RejectedOther",
            Self::EvictedTtl => "EvictedTTL",
            Self::EvictedNoEndpoints => "EvictedNoEndpoints",
            Self::EvictedContextCancelled => "EvictedContextCancelled",
            Self::EvictedOther => "EvictedOther",
        }
    }

    /// What a client whose verdict this is gets told; none for [`Outcome::Dispatched`].
    pub const fn reason(self) -> Option<DropReason> {
        match self {
            Self::Dispatched => None,
            Self::RejectedCapacity => Some(DropReason::RejectedSaturated),
            Self::RejectedNoEndpoints | Self::EvictedNoEndpoints => Some(DropReason::RejectedNoEndpoints),
            Self::RejectedOther | Self::EvictedOther => Some(DropReason::RejectedShuttingDown),
            Self::EvictedTtl => Some(DropReason::RejectedTtlExpired),
            Self::EvictedContextCancelled => Some(DropReason::RejectedContextCancelled),
        }
    }
}

/// How a started request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub cause: TerminationCause,
    /// What it really used, as far as is known: reported, or what was produced before an abort. None leaves the estimate
    /// standing.
    pub usage: Option<Usage>,
}
