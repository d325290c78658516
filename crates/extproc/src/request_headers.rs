//! What request headers say about how the request is to be treated.

use sluice_core::Headers;

/// A request with more lines is refused; the next one is read, to tell. Each costs more than its bytes.
pub(crate) const MAX_HEADER_LINES: usize = 1_000;

/// The most bytes that a body may have, and the setting that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyLimit {
    pub(crate) bytes: u64,
    pub(crate) setting: &'static str,
}

impl BodyLimit {
    /// Of every request.
    pub(crate) const fn of_requests(bytes: u64) -> Self {
        Self { bytes, setting: "maxRequestBody" }
    }

    /// Of those that wait in the same queue.
    pub(crate) const fn of_queue(bytes: u64) -> Self {
        Self { bytes, setting: "maxBytes" }
    }

    /// Of all that wait here.
    pub(crate) const fn of_memory(bytes: u64) -> Self {
        Self { bytes, setting: "bodyMemory" }
    }

    /// The smaller one.
    pub(crate) const fn or(self, other: Self) -> Self {
        if other.bytes < self.bytes { other } else { self }
    }
}

/// The path the client asked for, wherever a gateway may have put it.
pub(crate) fn path_of(headers: &Headers) -> &str {
    [":path", "x-original-path", "x-forwarded-path"]
        .iter()
        .find_map(|name| headers.last_str(name).filter(|path| !path.is_empty()))
        .unwrap_or("/v1/completions")
}

/// Whether the client wants to go on with another protocol, as WebSockets do: it waits for the response before it sends.
pub(crate) fn is_upgrade(headers: &Headers) -> bool {
    headers.contains("upgrade") || headers.last_str(":method") == Some("CONNECT")
}

/// Whether the client sends its body only when it is asked for it. A proxy shows this where it leaves the asking to the
/// model server.
pub(crate) fn expects_continue(headers: &Headers) -> bool {
    headers.last_str("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
}

/// Whether a request asks for none of the model's time.
pub(crate) fn is_header_only(headers: &Headers, end_of_stream: bool) -> bool {
    end_of_stream && matches!(headers.last_str(":method"), Some("GET" | "HEAD" | "OPTIONS" | "DELETE"))
}

/// The length of the body, if the client announces it.
pub(crate) fn content_length(headers: &Headers) -> Option<u64> {
    headers.last_str("content-length")?.parse().ok()
}
