use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

use crate::load::{EndpointKey, Stage};

/// One endpoint that a request is about to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking {
    pub endpoint: EndpointKey,
    /// What the endpoint does for the request; a prefill is over with the first chunk of the response.
    pub stage: Stage,
    /// Tokens the endpoint really has to work on.
    pub tokens: u64,
}

/// What a lease turns into.
#[derive(Clone, Debug, Default)]
pub struct Start {
    pub bookings: SmallVec<[Booking; 2]>,
    /// Bytes of the response that went to the client so far, read when a victim is chosen.
    pub progress: Option<Arc<AtomicU64>>,
}

impl Start {
    /// The whole request on one endpoint.
    pub fn on(endpoint: EndpointKey, tokens: u64) -> Self {
        let booking = Booking { endpoint, stage: Stage::Decode, tokens };
        Self { bookings: SmallVec::from_slice(&[booking]), progress: None }
    }
}

/// Why a lease was not started. It is granted still, unless it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// This endpoint has no room: pick again without it, or park.
    Full(EndpointKey),
    /// This endpoint has left the pool: pick again.
    Left(EndpointKey),
    /// The ticket holds no unstarted lease.
    NotGranted,
}

/// What became of an attempt to park.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Park {
    /// The lease has ended and a further verdict will come.
    Waiting,
    /// One of its endpoints has room after all: the lease holds, pick again.
    RoomAppeared(EndpointKey),
    /// The ticket holds no unstarted lease.
    NotGranted,
}

/// What the first chunk of a response says about the tokens of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensAtFirstChunk {
    /// They include an estimate of the output: they stay until the end.
    Keep,
    /// They stand for the prompt only, which has been worked through.
    Release,
}
