use std::net::SocketAddr;

use bytes::Bytes;
use sluice_core::Headers;
use sluice_data::Subset;
use sluice_router::Vouched;

use crate::reject::Refusal;

/// One message from the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Inbound {
    /// How the proxy will send bodies; told in the first message of a stream, if at all.
    pub(crate) modes: Option<BodyModes>,
    /// The endpoints the gateway allows, if it says.
    pub(crate) subset: Option<Subset>,
    /// Who the proxy says the request is from.
    pub(crate) vouched: Option<Vouched>,
    pub(crate) standing: Standing,
    pub(crate) message: Message,
}

/// What the picker knows of the request whose headers a message brings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// Why it is not let in.
    pub(crate) refusal: Option<Refusal>,
    /// The most bytes that its queue would ever take; none if nothing bounds them, or if that was looked at already.
    pub(crate) largest: Option<u64>,
    /// It may be cut off for more urgent work.
    pub(crate) revocable: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Message {
    RequestHeaders {
        headers: Headers,
        end_of_stream: bool,
    },
    RequestBody {
        chunk: Bytes,
        end_of_stream: bool,
    },
    RequestTrailers,
    ResponseHeaders {
        headers: Headers,
        end_of_stream: bool,
        origin: Origin,
    },
    ResponseBody {
        chunk: Bytes,
        end_of_stream: bool,
    },
    ResponseTrailers,
    /// A message without content, or of a kind this version does not know.
    Unknown,
}

/// Where a response comes from, as far as the proxy tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The proxy's word for how the response came about (`response.code_details`).
    pub(crate) details: Option<String>,
    /// The endpoint that served, where it may be another one than the first that was named.
    pub(crate) served: Option<SocketAddr>,
}

impl Origin {
    /// The proxy made the response up: the endpoint could not be reached, or a timeout of the proxy fired.
    pub(crate) fn is_proxy(&self) -> bool {
        self.details.as_deref().is_some_and(|details| details != "via_upstream")
    }
}

/// How the proxy sends the bodies of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyModes {
    pub(crate) request: BodyMode,
    pub(crate) response: BodyMode,
}

impl BodyModes {
    /// Of a proxy that does not say.
    pub(crate) const UNKNOWN: Self = Self { request: BodyMode::Other, response: BodyMode::Other };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyMode {
    None,
    Streamed,
    Buffered,
    BufferedPartial,
    FullDuplex,
    /// A mode this version does not know.
    Other,
}

impl BodyMode {
    /// The name in the proxy's configuration.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Streamed => "STREAMED",
            Self::Buffered => "BUFFERED",
            Self::BufferedPartial => "BUFFERED_PARTIAL",
            Self::FullDuplex => "FULL_DUPLEX_STREAMED",
            Self::Other => "unknown",
        }
    }
}

/// How the proxy's side of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InboundEnd {
    /// Cleanly: it has nothing more to say.
    HalfClosed,
    /// By a reset of the stream, which may also follow on a clean end.
    Reset,
    /// The connection broke.
    Broken,
    /// Not at all: it takes no replies.
    Unread,
    /// A message was larger than the picker takes.
    TooLarge,
    /// A message could not be decoded.
    Unreadable,
}
