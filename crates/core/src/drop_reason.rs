use std::fmt;

/// Why a request was not served, as told in the header `x-llm-d-request-dropped-reason`.
///
/// `rejected-*`: the request never reached a model server. `evicted`: it did and was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    RejectedSaturated,
    RejectedNoEndpoints,
    RejectedTtlExpired,
    RejectedContextCancelled,
    RejectedShuttingDown,
    Evicted,
}

impl DropReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RejectedSaturated => "rejected-saturated",
            Self::RejectedNoEndpoints => "rejected-no-endpoints",
            Self::RejectedTtlExpired => "rejected-ttl-expired",
            Self::RejectedContextCancelled => "rejected-context-cancelled",
            Self::RejectedShuttingDown => "rejected-shutting-down",
            Self::Evicted => "evicted",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a request that reached a model server ended. Each request ends exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TerminationCause {
    /// The response was delivered in full, whatever its status.
    Natural,
    /// The stream ended before the response did. The client went away; or, in the middle of a response, the model server
    /// broke off, which Envoy tells in exactly the same way.
    ClientDisconnect,
    /// The gateway took the slot back for more urgent work.
    Evicted,
    /// Anything else: the proxy or this process broke off.
    Error,
}

impl TerminationCause {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Natural => "natural",
            Self::ClientDisconnect => "client-disconnect",
            Self::Evicted => "evicted",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for TerminationCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
