//! Notices that a proxy ends its streams with the headers of the response (`response_body_mode: NONE` with
//! `response_trailer_mode: SKIP`), so that nobody knows when a request is over.
//!
//! The proxy does not tell its trailer modes, and one stream alone gives nothing away. Measured with Envoy 1.40:
//!
//! | trailers | the response is | the stream ends |
//! |---|---|---|
//! | SKIP | anything | with a reset, 0.5 to 6 ms after the answer to the headers |
//! | SEND | complete when the headers are answered | the same |
//! | SEND | still being made | half-closed, when the response ends or the client leaves |
//!
//! So event streams are watched, which hardly ever are complete with their headers: [`SUSPICIOUS`] resets in a row, and
//! never one stream that lived on, are no accident. One stream that does live on settles it for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::message::InboundEnd;

/// So many event streams in a row that end with their headers are no accident.
const SUSPICIOUS: u32 = 20;

/// A reset that comes later has other reasons.
const AT_ONCE: Duration = Duration::from_millis(50);

/// What is known of the proxy at the other end of a connection. Proxies that are set up differently may ask the same
/// picker, so a server keeps one for each connection, and gives it as tonic's connect info to the requests that come on it.
#[derive(Clone, Debug, Default)]
pub struct Peer(Arc<TrailerWatch>);

impl Peer {
    pub(crate) fn trailers(&self) -> &TrailerWatch {
        &self.0
    }
}

#[derive(Debug, Default)]
pub(crate) struct TrailerWatch {
    settled: AtomicBool,
    in_a_row: AtomicU32,
}

impl TrailerWatch {
    /// The proxy ends its streams with the headers of the response, as far as is known.
    pub(crate) fn are_skipped(&self) -> bool {
        !self.settled.load(Ordering::Relaxed) && self.in_a_row.load(Ordering::Relaxed) >= SUSPICIOUS
    }

    /// The stream of an event stream whose body passes by has ended, `after` the answer to its headers. Tells whether that
    /// is the one too many.
    pub(crate) fn ended(&self, end: InboundEnd, after: Duration) -> bool {
        if self.settled.load(Ordering::Relaxed) {
            return false;
        }
        match end {
            InboundEnd::Reset if after <= AT_ONCE => {
                self.in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1) == SUSPICIOUS
            }
            // Sooner it may be a client that left before the proxy had the answer.
            InboundEnd::HalfClosed if after > AT_ONCE => {
                self.settled.store(true, Ordering::Relaxed);
                false
            }
            InboundEnd::HalfClosed => {
                self.in_a_row.store(0, Ordering::Relaxed);
                false
            }
            InboundEnd::Reset
            | InboundEnd::Broken
            | InboundEnd::Unread
            | InboundEnd::TooLarge
            | InboundEnd::Unreadable => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_secs(1);

    fn resets(watch: &TrailerWatch, count: u32) -> usize {
        (0..count).filter(|_| watch.ended(InboundEnd::Reset, SOON)).count()
    }

    #[test]
    fn streams_that_all_end_with_their_headers_are_told_once() {
        let watch = TrailerWatch::default();
        assert_eq!(resets(&watch, SUSPICIOUS - 1), 0);
        assert!(!watch.are_skipped());
        assert_eq!(resets(&watch, 1_000), 1);
        assert!(watch.are_skipped());
        assert!(!watch.ended(InboundEnd::HalfClosed, LATE));
        assert!(!watch.are_skipped(), "one that lives on settles it even then");
    }

    #[test]
    fn one_stream_that_lives_on_settles_it() {
        let watch = TrailerWatch::default();
        assert_eq!(resets(&watch, SUSPICIOUS - 1), 0);
        assert!(!watch.ended(InboundEnd::HalfClosed, LATE));
        assert_eq!(resets(&watch, 1_000), 0);
    }

    #[test]
    fn what_may_be_a_client_that_left_settles_nothing_and_breaks_the_row() {
        let watch = TrailerWatch::default();
        assert_eq!(resets(&watch, SUSPICIOUS - 1), 0);
        assert!(!watch.ended(InboundEnd::HalfClosed, SOON));
        assert_eq!(resets(&watch, SUSPICIOUS - 1), 0);
        assert!(!watch.ended(InboundEnd::Reset, LATE));
        assert!(!watch.ended(InboundEnd::Broken, SOON));
        assert_eq!(resets(&watch, 1), 1);
    }
}
