//! Bodies of responses.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame};

use crate::api::EventWriter;
use crate::inference::{Generation, Piece};

/// A body that is there, or one that comes token by token.
pub(crate) type ResponseBody = Either<Full<Bytes>, EventStream>;

/// An answer as server-sent events. Dropped before its end, as when the client goes away, it aborts the request.
#[derive(Debug)]
pub(crate) struct EventStream {
    generation: Generation,
    writer: EventWriter,
    pieces: Vec<Piece>,
}

impl EventStream {
    pub(crate) fn new(generation: Generation, writer: EventWriter) -> Self {
        Self { generation, writer, pieces: Vec::new() }
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { generation, writer, pieces } = self.get_mut();
        ready!(generation.poll_pieces(cx, pieces));
        if pieces.is_empty() {
            return Poll::Ready(None);
        }
        // Tokens that came out while the last frame was on its way share the next one.
        let events = writer.write(pieces);
        pieces.clear();
        Poll::Ready(Some(Ok(Frame::data(events.into()))))
    }
}
