//! Replies that a proxy does not take.
//!
//! HTTP/2 hands a reply over when the proxy has room for it, and asks for the next one only then. Until that the stream
//! stands still: nobody hears whether the proxy has ended its side, whether the request has its turn, or whether its place
//! is wanted back. A proxy that leaves a reply where it is for [`PATIENCE`] has given the stream up, whatever else it says
//! on the connection: what the request holds is released, and the stream breaks off as soon as the proxy takes something.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use slotmap::{DefaultKey, SlotMap};
use sluice_core::Time;
use tonic::Status;
use tonic::body::Body;

/// Longer than a connection may be without a sign of life. A proxy that stalls for a moment loses no stream.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// The replies of all streams, from the first one of each on.
#[derive(Debug, Default)]
pub(crate) struct UnreadWatch(Mutex<SlotMap<DefaultKey, Arc<Mutex<Replies>>>>);

/// Tells a stream, when it is dropped, that its proxy takes no replies.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl UnreadWatch {
    /// `replies`, watched. `given_up` is set if they are given up.
    pub(crate) fn watch(self: &Arc<Self>, replies: Body, given_up: GivenUp) -> Body {
        if http_body::Body::is_end_stream(&replies) {
            return replies;
        }
        let replies = Replies { body: Some(replies), given_up, is_unread: false, since: None };
        let replies = Arc::new(Mutex::new(replies));
        let key = lock(&self.0).insert(Arc::clone(&replies));
        Body::new(Watched { watch: Arc::clone(self), key, replies })
    }

    /// Streams whose last replies the proxy has not taken yet, or which live on.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Gives up what no proxy has taken since a call that is [`PATIENCE`] or more before `now`. Tells how many streams.
    pub(crate) fn give_up(&self, now: Time) -> usize {
        let mut given_up = Vec::new();
        lock(&self.0).retain(|_, replies| {
            // Whoever has the lock is being asked for a reply.
            let body = replies.try_lock().ok().and_then(|mut replies| replies.give_up(now));
            let stays = body.is_none();
            given_up.extend(body);
            stays
        });
        let streams = given_up.len();
        for body in given_up {
            // Without the lock: this ends a request, and whoever waited for its place is placed. A panic on the way ends
            // this stream, and no other.
            if catch_unwind(AssertUnwindSafe(|| drop(body))).is_err() {
                tracing::error!("a stream that was given up did not end in order");
            }
        }
        streams
    }
}

/// The replies of one stream.
#[derive(Debug)]
struct Replies {
    /// None: given up.
    body: Option<Body>,
    given_up: GivenUp,
    /// The last one was handed out, and no other was asked for since.
    is_unread: bool,
    /// When that was first seen.
    since: Option<Time>,
}

impl Replies {
    fn give_up(&mut self, now: Time) -> Option<Body> {
        if !self.is_unread {
            return None;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_since(since) < PATIENCE {
            return None;
        }
        self.given_up.0.store(true, Ordering::Relaxed);
        self.body.take()
    }
}

/// Replies as the server asks for them.
#[derive(Debug)]
struct Watched {
    watch: Arc<UnreadWatch>,
    key: DefaultKey,
    replies: Arc<Mutex<Replies>>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut replies = lock(&self.replies);
        replies.is_unread = false;
        replies.since = None;
        let Some(body) = &mut replies.body else {
            return Poll::Ready(Some(Err(Status::aborted("the proxy took no replies"))));
        };
        let frame = Pin::new(body).poll_frame(context);
        replies.is_unread = matches!(frame, Poll::Ready(Some(Ok(_))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.replies).body.as_ref().is_some_and(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.replies).body.as_ref().map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&self.watch.0).remove(self.key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Time {
        Time::from_millis(seconds * 1_000)
    }

    fn replies(is_unread: bool) -> Replies {
        Replies { body: Some(Body::empty()), given_up: GivenUp::default(), is_unread, since: None }
    }

    #[test]
    fn a_reply_is_given_up_when_it_was_unread_for_long_enough() {
        let mut replies = replies(true);
        for now in [100, 105, 159] {
            assert!(replies.give_up(seconds(now)).is_none(), "{now}");
        }
        assert!(!replies.given_up.is_set());
        assert!(replies.give_up(seconds(160)).is_some());
        assert!(replies.given_up.is_set());
        assert!(replies.give_up(seconds(300)).is_none(), "only once");
    }

    #[test]
    fn a_stream_without_an_unread_reply_may_wait_for_ever() {
        let mut replies = replies(false);
        for now in [100, 1_000, 100_000] {
            assert!(replies.give_up(seconds(now)).is_none(), "{now}");
        }
    }

    /// Replies of a stream that cannot end in order.
    struct Touchy;

    impl http_body::Body for Touchy {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"reply")))))
        }
    }

    impl Drop for Touchy {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    #[test]
    fn a_stream_that_panics_when_it_is_given_up_keeps_no_other_from_it() {
        let watch = Arc::new(UnreadWatch::default());
        let mut streams = [0; 3].map(|_| watch.watch(Body::new(Touchy), GivenUp::default()));
        let mut context = Context::from_waker(std::task::Waker::noop());
        for stream in &mut streams {
            assert!(http_body::Body::poll_frame(Pin::new(stream), &mut context).is_ready());
        }
        assert_eq!(watch.give_up(seconds(100)), 0);
        assert_eq!((watch.give_up(seconds(160)), watch.len()), (3, 0));
    }

    #[test]
    fn what_is_asked_for_begins_anew() {
        let watch = Arc::new(UnreadWatch::default());
        let stream = Arc::new(Mutex::new(replies(true)));
        let key = lock(&watch.0).insert(Arc::clone(&stream));
        let mut watched = Watched { watch: Arc::clone(&watch), key, replies: Arc::clone(&stream) };
        assert_eq!(watch.give_up(seconds(100)), 0);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(http_body::Body::poll_frame(Pin::new(&mut watched), &mut context).is_ready());
        lock(&stream).is_unread = true;
        assert_eq!((watch.give_up(seconds(161)), watch.len()), (0, 1));
        assert_eq!((watch.give_up(seconds(221)), watch.len()), (1, 0));
        let Poll::Ready(Some(Err(status))) = http_body::Body::poll_frame(Pin::new(&mut watched), &mut context) else {
            panic!("a stream that was given up has not broken off");
        };
        assert_eq!(status.code(), tonic::Code::Aborted);
    }
}
