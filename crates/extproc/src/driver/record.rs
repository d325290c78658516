use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Headers, RequestId, Time};

use crate::action::Ending;
use crate::ended::EndCause;

/// What the log says of a request when it has ended, beyond its [`Ending`].
#[derive(Debug)]
pub(super) struct Record {
    opened: Time,
    id: Option<Arc<str>>,
    placed: Option<Placed>,
    response_bytes: u64,
}

#[derive(Debug)]
struct Placed {
    endpoint: String,
    after: Duration,
}

impl Record {
    /// Of a stream that is opened at `now`. None if the log is not to hear of it.
    pub(super) fn open(now: Time) -> Option<Self> {
        let is_wanted = tracing::enabled!(tracing::Level::DEBUG);
        is_wanted.then_some(Self { opened: now, id: None, placed: None, response_bytes: 0 })
    }

    /// The client has named its request.
    pub(super) fn named_by(&mut self, headers: &Headers) {
        self.id = headers.last_str("x-request-id").filter(|id| !id.is_empty()).map(Arc::from);
    }

    pub(super) fn named(&mut self, id: &RequestId) {
        self.id = Some(Arc::clone(&id.0));
    }

    pub(super) fn placed(&mut self, now: Time, endpoint: &str) {
        self.placed = Some(Placed { endpoint: endpoint.to_owned(), after: now.saturating_since(self.opened) });
    }

    /// Another endpoint serves than the one that was named.
    pub(super) fn served_by(&mut self, address: SocketAddr) {
        if let Some(placed) = &mut self.placed {
            placed.endpoint = address.to_string();
        }
    }

    /// So many bytes of the response were seen on their way to the client.
    pub(super) const fn sent(&mut self, bytes: u64) {
        self.response_bytes = self.response_bytes.saturating_add(bytes);
    }

    /// One line for a request that ends at `now`, of which `request_bytes` were seen.
    pub(super) fn close(self, now: Time, cause: EndCause, request_bytes: u64, ending: &Ending) {
        let Self { opened, id, placed, response_bytes } = self;
        let Ending { outcome, usage, remark, evicted, events } = ending;
        let placed = placed.as_ref();
        tracing::debug!(
            request = id.as_deref(),
            cause = cause.as_str(),
            status = outcome.status(),
            endpoint = placed.map(|placed| placed.endpoint.as_str()),
            placed_after = placed.map(|placed| placed.after.as_secs_f64()),
            took = now.saturating_since(opened).as_secs_f64(),
            request_bytes,
            response_bytes,
            events,
            prompt_tokens = usage.prompt,
            completion_tokens = usage.completion,
            evicted = evicted.map(crate::action::Delivery::as_str),
            remark = &**remark,
            "request ended"
        );
    }
}
