//! How much a request may bring.

use sluice_core::Headers;

use super::Session;
use super::rewriting::asks_for_too_long;
use crate::message::{BodyMode, BodyModes};
use crate::reject::Refusal;
use crate::request_headers::{BodyLimit, MAX_HEADER_LINES, content_length, expects_continue, is_upgrade};

impl Session {
    /// What these request headers rule out, whoever the request is from. `told` is how the proxy sends bodies.
    pub(crate) fn refuse_by_headers(
        &self,
        told: Option<BodyModes>,
        headers: &Headers,
        end_of_stream: bool,
    ) -> Option<Refusal> {
        if headers.len() > MAX_HEADER_LINES {
            return Some(Refusal::too_many_headers(MAX_HEADER_LINES));
        }
        let limit = self.settings.max_request_headers;
        if header_bytes(headers) > limit {
            return Some(Refusal::headers_too_large(limit));
        }
        if let Some(name) = asks_for_too_long(headers) {
            return Some(Refusal::model_too_long(name));
        }
        let limit = self.limit_of(told, headers, end_of_stream);
        content_length(headers).filter(|&length| length > limit.bytes).map(|_| Refusal::body_too_large(limit))
    }

    /// Notes how large these headers are, and how large the body may be that follows them. `largest` as in
    /// [`Standing`](crate::message::Standing).
    pub(super) fn bound_body(&mut self, headers: &Headers, end_of_stream: bool, largest: Option<u64>) {
        self.header_bytes = header_bytes(headers);
        self.taken = self.header_bytes;
        let limit = self.limit_of(self.modes, headers, end_of_stream);
        self.body_limit = largest.map_or(limit, |bytes| limit.or(BodyLimit::of_queue(bytes)));
    }

    /// Whether the body is collected before the request asks for an endpoint, so that it takes room in its queue.
    /// `told` as above.
    pub(crate) fn holds_body(&self, told: Option<BodyModes>, headers: &Headers, end_of_stream: bool) -> bool {
        let told = told.unwrap_or(BodyModes::UNKNOWN);
        let mode =
            if self.asks_for_request(told, headers, end_of_stream) { BodyMode::FullDuplex } else { told.request };
        let is_shown = match mode {
            BodyMode::FullDuplex | BodyMode::Buffered | BodyMode::Other => true,
            BodyMode::None | BodyMode::Streamed | BodyMode::BufferedPartial => false,
        };
        is_shown && !end_of_stream && !is_upgrade(headers) && !expects_continue(headers)
    }

    /// A request that is held needs memory for its headers as well.
    fn limit_of(&self, told: Option<BodyModes>, headers: &Headers, end_of_stream: bool) -> BodyLimit {
        let limit = BodyLimit::of_requests(self.settings.max_request_body);
        if !self.holds_body(told, headers, end_of_stream) {
            return limit;
        }
        limit.or(BodyLimit::of_memory(self.settings.body_memory.saturating_sub(header_bytes(headers))))
    }
}

fn header_bytes(headers: &Headers) -> u64 {
    headers.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum()
}
