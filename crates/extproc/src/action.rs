use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use sluice_core::{TerminationCause, TokenUsage};
use sluice_router::Intent;

use crate::message::{BodyMode, InboundEnd};
use crate::reject::Code;
use crate::reply::Reply;

/// What the driver of a session has to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Find an endpoint; answer with [`Session::on_routed`](crate::session::Session::on_routed).
    Route(Intent),
    /// Forget the routing under way: the request is dead.
    StopRouting,
    Reply(Reply),
    /// So many bytes of the request, headers and body, are kept here from now on.
    Holding(u64),
    /// Another endpoint serves the request than the one that was booked.
    Served(SocketAddr),
    /// So many bytes of the response go to the client.
    Sending(u64),
    /// The response goes to the client from here on, and its body is not seen.
    BegunUnseen,
    /// The stream of an event stream whose body passes by ended so long after the answer to its headers.
    PassedBy {
        end: InboundEnd,
        after: Duration,
    },
    /// The stream of a request that waited ended so long after the message that it had no answer to.
    GaveUp {
        after: Duration,
    },
    /// Tell the operator, once, that the proxy is set up in a way that costs something.
    Notice(Notice),
    /// The request is over: release what it holds and count it.
    End(Ending),
    /// End the stream.
    Close(Close),
}

/// What an operator should know about the proxy's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Requests in this mode are refused.
    RefusedMode { direction: &'static str, mode: BodyMode },
    /// The proxy does not say how it sends bodies, or in words that are not known.
    UnknownMode,
    /// Bodies do not come although they should: requests are placed without.
    NoBody,
    /// Streams end with the headers of the response, so that nobody knows when requests end.
    Unaccountable,
    /// The picker has asked for other body modes, as the proxy's configuration says that it may, and was refused.
    ModesRefused,
    /// Waiting requests end so long after they came, as by the proxy's clock.
    MessageTimeout { after: Duration },
    /// The bodies of responses pass by, so that nobody knows when a prompt has been worked through.
    PromptsStayCharged,
    /// The bodies of requests pass by, so that the models which rules replace stay.
    ModelsStay { mode: BodyMode },
    /// The bodies of responses pass by, so that clients see by which name a model server knows their model.
    TargetsShow,
    /// Streams live on although their requests were cut off.
    Unending,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    pub(crate) usage: TokenUsage,
    /// What the outcome does not say: what could not be told apart, or what the proxy said of it.
    pub(crate) remark: Cow<'static, str>,
    /// How a request was cut off; none if it was not.
    pub(crate) evicted: Option<Delivery>,
    /// Events of its response that went to the client.
    pub(crate) events: u64,
}

impl Ending {
    /// There is no more to be said of it.
    pub(crate) const fn of(outcome: Outcome, usage: TokenUsage) -> Self {
        Self { outcome, usage, remark: Cow::Borrowed(""), evicted: None, events: 0 }
    }
}

/// How the client of a request that was cut off for more urgent work learned of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Delivery {
    /// By a refusal, before the request was sent to its endpoint.
    Refused,
    /// By a status in place of the response.
    Status,
    /// By an event in the stream.
    Event,
    /// By the end of the stream alone.
    Reset,
    /// Not at all: the stream ended first.
    Left,
    /// Not at all: the response was complete first.
    Completed,
}

impl Delivery {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Status => "status",
            Self::Event => "event",
            Self::Reset => "reset",
            Self::Left => "left",
            Self::Completed => "completed",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Refused(Code),
    /// Left to another picker, without an answer.
    HandedOver,
    /// The stream ended with the headers of the response, as all do on its connection: the response was complete by then,
    /// or nobody will tell when it is.
    Unaccounted {
        status: Option<u16>,
    },
    /// Nothing came of a response that was asked for: the proxy goes on with it, and nobody will tell when it ends.
    Unseen {
        status: Option<u16>,
    },
    Terminated {
        cause: TerminationCause,
        /// The status of the response, if there was one.
        status: Option<u16>,
        responder: Responder,
    },
}

impl Outcome {
    /// The status that the client got, if it got one and the picker knows it.
    pub(crate) const fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(code) => Some(code.http_status()),
            Self::Unaccounted { status } | Self::Unseen { status } | Self::Terminated { status, .. } => *status,
            Self::HandedOver => None,
        }
    }
}

/// Who made a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Responder {
    ModelServer,
    Proxy,
}

/// How the picker's side of a stream ends. A proxy takes a clean end for "go on without the picker", so it is
/// reserved for requests that are finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    Finished,
    Failed(&'static str),
}
