//! How far the two sides of a request have come.

use bytes::{Bytes, BytesMut};
use sluice_core::{Headers, Time};
use sluice_payload::{ModelReplacement, ModelRestorer, UsageScanner};

use crate::event_ends::EventEnds;
use crate::reply::RequestMutation;

#[derive(Debug)]
pub(crate) enum RequestPhase {
    Waiting,
    Reading(Reading),
    Routing(Routing),
    Sent(Rest),
    /// Refused, or answered by the proxy itself: what still comes of it is dropped.
    Over,
}

/// A request whose body is collected.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) headers: Headers,
    pub(crate) received: Time,
    pub(crate) body: BytesMut,
    /// The body comes whole, in one message, and the headers are answered already.
    pub(crate) is_buffered: bool,
    /// When the last part came.
    pub(crate) progress: Time,
    /// When to go on without a body. Set where the proxy did not say that it sends one, until one comes.
    pub(crate) give_up: Option<Time>,
}

/// A request that waits for its endpoint.
#[derive(Debug)]
pub(crate) struct Routing {
    pub(crate) mutation: RequestMutation,
    pub(crate) tail: Tail,
    /// The body that goes on in the place of the one that was read, made only then; none if that stays.
    pub(crate) change: Option<ModelReplacement>,
    /// When the message came that is not answered until the request has its endpoint.
    pub(crate) since: Time,
    /// When to see whether the proxy has to be asked for patience.
    pub(crate) extend: Option<Time>,
}

/// What comes after the headers of a request.
#[derive(Debug)]
pub(crate) enum Tail {
    /// All of it is here, and goes back as it came.
    Whole { body: Option<Bytes>, trailers: bool },
    /// The body was read, and is with the proxy.
    Buffered { trailers: bool },
    /// Whatever comes is passed on: the decision does not need it.
    Open { held: Held, ended: bool, trailers: bool },
}

/// What came of an open tail before the request was placed.
#[derive(Debug)]
pub(crate) enum Held {
    Bytes(BytesMut),
    /// So many messages to be answered, of so many bytes.
    Messages {
        count: u32,
        bytes: u64,
    },
}

impl Held {
    pub(crate) fn of(answer: Answer) -> Self {
        match answer {
            Answer::Echo => Self::Bytes(BytesMut::new()),
            Answer::AsIs => Self::Messages { count: 0, bytes: 0 },
        }
    }
}

/// What still comes of a request that was placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) answer: Answer,
    pub(crate) ended: bool,
    /// Bytes of the body that came so far.
    pub(crate) bytes: u64,
    /// When the last part of a body came of which the proxy shows every part. None where no part has to come.
    pub(crate) progress: Option<Time>,
}

impl Rest {
    /// All of the request was here.
    pub(crate) const fn ended(answer: Answer) -> Self {
        Self { answer, ended: true, bytes: 0, progress: None }
    }

    /// A part of the body came.
    pub(crate) fn came(&mut self, now: Time, bytes: usize, end_of_stream: bool) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.progress = self.progress.map(|_| now);
        if end_of_stream {
            self.end();
        }
    }

    pub(crate) const fn end(&mut self) {
        self.ended = true;
        self.progress = None;
    }
}

/// How the messages of a body are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With their bytes: in full duplex the proxy passes on what comes back.
    Echo,
    /// With one word each: the proxy keeps the bytes.
    AsIs,
}

#[derive(Debug)]
pub(crate) enum ResponsePhase {
    Waiting,
    Passing {
        scanner: UsageScanner,
        answer: Answer,
        /// The headers were not answered: they wait here for what follows them, and the client has seen nothing.
        is_withheld: bool,
        is_event_stream: bool,
        /// Of an event stream; empty of any other response.
        events: EventEnds,
        /// Puts the client's name of the model back; none where the endpoint knows it by the same.
        restorer: Option<Box<ModelRestorer>>,
    },
    Complete,
}
