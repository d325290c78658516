use sluice_core::{TerminationCause, TokenUsage};
use sluice_router::Intent;

use crate::reject::Code;
use crate::reply::Reply;

/// What the driver of a session has to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Find an endpoint; answer with [`Session::on_routed`].
    Route(Intent),
    /// Forget the routing under way: the request is dead.
    StopRouting,
    Reply(Reply),
    /// So many bytes of the response go to the client.
    Sending(u64),
    /// The request is over: release what it holds and count it.
    End(Ending),
    /// End the stream.
    Close(Close),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    pub(crate) usage: TokenUsage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Refused(Code),
    Terminated {
        cause: TerminationCause,
        /// The status of the response, if there was one.
        status: Option<u16>,
    },
}

/// How the picker's side of a stream ends. A proxy takes a clean end for "go on without the picker", so it is
/// reserved for requests that are finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    Finished,
    Failed(&'static str),
}
