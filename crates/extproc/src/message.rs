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
    /// What the request headers alone rule out.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) message: Message,
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
    },
    ResponseBody {
        chunk: Bytes,
        end_of_stream: bool,
    },
    ResponseTrailers,
    /// A message without content, or of a kind this version does not know.
    Unknown,
}

/// How the proxy sends the bodies of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyModes {
    pub(crate) request: BodyMode,
    pub(crate) response: BodyMode,
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
    /// By a reset or a broken connection.
    Failed,
}
