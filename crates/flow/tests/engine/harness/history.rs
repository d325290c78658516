//! What happened in a run, as plain values.

use std::collections::BTreeMap;

use sluice_core::{TerminationCause, Time};
use sluice_flow::{Booking, EndpointKey, Outcome, Park, Partition, RevokeCause, Stages, StartError};

/// A request by the number of its submission.
pub(crate) type Request = u64;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AskFacts {
    pub(crate) tenant: u8,
    pub(crate) priority: i32,
    pub(crate) bytes: u64,
    pub(crate) tokens: u64,
    pub(crate) ttl_millis: Option<u64>,
    pub(crate) ttl_is_invalid: bool,
    pub(crate) ttft_millis: Option<u64>,
    pub(crate) stream_deadline: Option<Time>,
    pub(crate) stages: Stages,
    /// Those without which it cannot be served.
    pub(crate) required: Stages,
    pub(crate) hint: Option<Vec<u8>>,
}

/// One life of the endpoint `e<number>`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) number: u8,
    pub(crate) key: EndpointKey,
    pub(crate) stages: Stages,
    pub(crate) limit: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Submit { request: Request, ask: AskFacts },
    RefuseByHeaders { priority: i32, bytes: u64, result: Option<Outcome> },
    Cancel { request: Request },
    Start { request: Request, bookings: Vec<Booking>, result: Result<(), StartError> },
    Park { request: Request, hint: Vec<u8>, result: Park },
    FirstChunk { request: Request, release_tokens: bool },
    Rebook { request: Request, endpoint: EndpointKey },
    Release { request: Request, cause: TerminationCause, tokens: Option<u64> },
    Pool(Vec<Place>),
    Desired(Vec<i32>),
    Reload(usize),
    Time,
    Drain,
    Shutdown,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Seen {
    Granted { request: Request, reserved: Option<EndpointKey> },
    Dropped { request: Request, outcome: Outcome, retry_after: Option<u8> },
    Revoked { request: Request, cause: RevokeCause },
}

/// What has been counted of one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) outcomes: [u64; Outcome::ALL.len()],
    pub(crate) displaced: u64,
    pub(crate) revocations: u64,
    pub(crate) would_gate: u64,
    pub(crate) would_revoke: u64,
}

/// What can be seen after a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct After {
    /// Priority, waiting requests, waiting bytes, ceiling; from the highest priority down.
    pub(crate) bands: Vec<(i32, u64, u64, f64)>,
    pub(crate) waiting: (u64, u64),
    /// By band, from the highest priority down.
    pub(crate) parked: Vec<u64>,
    pub(crate) saturation: Vec<(Partition, f64)>,
    pub(crate) invalid_ttls: u64,
    /// By priority.
    pub(crate) counts: BTreeMap<i32, Counts>,
    pub(crate) granted: u64,
    pub(crate) started: u64,
    pub(crate) next_wakeup: Option<Time>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) now: Time,
    /// Time had passed of which the engine was not told before: what it did because of that, before the
    /// event, cannot be told from what it did because of the event.
    pub(crate) late: bool,
    pub(crate) event: Event,
    pub(crate) effects: Vec<Seen>,
    pub(crate) after: After,
}
