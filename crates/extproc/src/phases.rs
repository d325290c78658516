//! How far the two sides of a request have come.

use bytes::{Bytes, BytesMut};
use sluice_core::{Headers, Time};
use sluice_payload::UsageScanner;

use crate::reply::RequestMutation;

#[derive(Debug)]
pub(crate) enum RequestPhase {
    Waiting,
    Reading {
        headers: Headers,
        received: Time,
        body: BytesMut,
    },
    Routing {
        mutation: RequestMutation,
        tail: Tail,
    },
    Sent,
    /// Sent, and what follows is passed on as it comes.
    Piping,
    Refused,
}

/// What comes after the headers of a request.
#[derive(Debug)]
pub(crate) enum Tail {
    Whole {
        body: Option<Bytes>,
        trailers: bool,
    },
    /// An upgraded connection: no end is waited for. `held` came before the request was placed, and `ended` tells that
    /// nothing more will.
    Pipe {
        held: BytesMut,
        ended: bool,
    },
}

#[derive(Debug)]
pub(crate) enum ResponsePhase {
    Waiting,
    Passing(UsageScanner),
    Complete,
}
