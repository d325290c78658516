use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_core::{Endpoint, TerminationCause, TokenUsage};
use sluice_data as data;
use sluice_flow::policy::Usage;
use sluice_flow::{Ended, RevokeCause, TokensAtFirstChunk};

use crate::admission;

/// A request on its way through an endpoint. Dropping it unfinished counts as broken off; either way what it holds is
/// free when the call returns.
#[derive(Debug)]
#[must_use = "dropping it releases the endpoint at once"]
pub struct InFlight(Kind);

#[derive(Debug)]
enum Kind {
    /// Nothing bounds what an endpoint may have in flight.
    Counted { booking: data::InFlight, at_first_chunk: TokensAtFirstChunk },
    /// Holds a lease of the admission engine.
    Leased {
        lease: admission::InFlight,
        at_first_chunk: TokensAtFirstChunk,
        /// Something of the response's body has come.
        has_begun: bool,
        sent: Arc<AtomicU64>,
    },
}

impl InFlight {
    pub(crate) const fn counted(booking: data::InFlight, at_first_chunk: TokensAtFirstChunk) -> Self {
        Self(Kind::Counted { booking, at_first_chunk })
    }

    /// `sent` is read by the engine when it looks for a victim.
    pub(crate) const fn leased(
        lease: admission::InFlight,
        at_first_chunk: TokensAtFirstChunk,
        sent: Arc<AtomicU64>,
    ) -> Self {
        Self(Kind::Leased { lease, at_first_chunk, has_begun: false, sent })
    }

    /// Ready when the request has to be cut off; it counts until it is finished or dropped. Safe to drop and ask again.
    pub async fn revoked(&mut self) -> RevokeCause {
        match &mut self.0 {
            Kind::Counted { .. } => pending().await,
            Kind::Leased { lease, .. } => lease.revoked().await,
        }
    }

    /// `bytes` of the response go to the client.
    pub fn sending(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        match &mut self.0 {
            Kind::Counted { booking, at_first_chunk: TokensAtFirstChunk::Release } => booking.release_tokens(),
            Kind::Counted { booking: _, at_first_chunk: TokensAtFirstChunk::Keep } => {}
            Kind::Leased { lease, at_first_chunk, has_begun, sent } => {
                sent.fetch_add(bytes, Ordering::Relaxed);
                if !std::mem::replace(has_begun, true) {
                    lease.first_chunk(*at_first_chunk);
                }
            }
        }
    }

    /// The response goes to the client, and none of its bytes will be [told](Self::sending): it counts as one, so that a
    /// request whose client has seen nothing is the cheaper victim. When its prefill is over is not known.
    pub fn begun_unseen(&mut self) {
        if let Kind::Leased { sent, .. } = &self.0 {
            sent.fetch_max(1, Ordering::Relaxed);
        }
    }

    /// Another endpoint than the booked one serves the request, and counts it from now on.
    pub(crate) fn move_to(&mut self, endpoint: &Arc<Endpoint>) {
        match &mut self.0 {
            Kind::Counted { booking, .. } => booking.move_to(endpoint),
            Kind::Leased { lease, .. } => lease.move_to(endpoint),
        }
    }

    /// The request is over. `reported` is what the model server says of its usage, if it does; `seen` is what can be told
    /// without it: the estimate of the prompt, and about a token for each event of the answer.
    pub fn finish(self, cause: TerminationCause, reported: TokenUsage, seen: Usage) {
        if let Kind::Leased { lease, .. } = self.0 {
            lease.finish(Ended { cause, usage: usage(cause, reported, seen) });
        }
    }
}

/// What a request has used, as far as is known. A client that goes away before the report comes pays for what was seen.
fn usage(cause: TerminationCause, reported: TokenUsage, seen: Usage) -> Option<Usage> {
    let is_reported = reported.prompt.is_some() || reported.completion.is_some();
    (is_reported || cause == TerminationCause::ClientDisconnect).then(|| Usage {
        prompt: reported.prompt.unwrap_or(seen.prompt),
        output: reported.completion.unwrap_or(seen.output),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_believed_and_a_client_that_left_pays_for_what_was_seen() {
        let (full, none) = (TokenUsage { prompt: Some(7), completion: Some(3), cached: None }, TokenUsage::default());
        let half = TokenUsage { completion: Some(3), ..none };
        let seen = Usage { prompt: 100, output: 20 };
        let used = |prompt, output| Some(Usage { prompt, output });
        for (cause, reported, expected) in [
            (TerminationCause::Natural, full, used(7, 3)),
            (TerminationCause::Natural, half, used(100, 3)),
            (TerminationCause::Natural, none, None),
            (TerminationCause::ClientDisconnect, full, used(7, 3)),
            (TerminationCause::ClientDisconnect, half, used(100, 3)),
            (TerminationCause::ClientDisconnect, none, used(100, 20)),
            (TerminationCause::Error, none, None),
        ] {
            assert_eq!(usage(cause, reported, seen), expected, "{cause:?} {reported:?}");
        }
    }
}
