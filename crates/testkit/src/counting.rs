use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use sluice_core::{Clock, SystemClock, Time};
use tokio::sync::Semaphore;

use crate::server_thread::ServerThread;

/// How long a request is worked on, in milliseconds. Without it, until somebody [releases](CountingUpstream::release)
/// it.
pub const HOLD_HEADER: &str = "x-testkit-hold-ms";
/// Names a request in the record.
pub const TAG_HEADER: &str = "x-testkit-tag";
/// With this header an answer begins at once and ends when the work is done.
pub const STREAM_HEADER: &str = "x-testkit-stream";

/// A model server that counts: which requests it had open, from when to when.
///
/// A request is open from its headers until just before the last byte of its answer is handed out, or until the server
/// notices that the client is gone. It lives on a thread of its own; dropping it cuts all its connections.
#[derive(Debug)]
pub struct CountingUpstream {
    server: ServerThread,
    record: Arc<Record>,
}

/// One request at the server.
#[derive(Clone, Debug)]
pub struct Visit {
    /// Its header [`TAG_HEADER`].
    pub tag: String,
    pub began: Time,
    /// None while it is open.
    pub ended: Option<VisitEnd>,
}

#[derive(Clone, Copy, Debug)]
pub struct VisitEnd {
    pub at: Time,
    /// The client went away before the answer was complete.
    pub aborted: bool,
}

#[derive(Debug)]
struct Record {
    clock: SystemClock,
    visits: Mutex<Vec<Visit>>,
    /// One permit lets one held request end.
    released: Semaphore,
    /// How many of the open requests it says to run; the others it says to have waiting.
    most_running: AtomicUsize,
    /// It does not tell its metrics.
    silent: AtomicBool,
    /// How often somebody asked for them.
    scrapes: AtomicUsize,
}

impl CountingUpstream {
    pub fn start() -> Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// At a loopback address of the caller's choice.
    pub fn start_at(address: SocketAddr) -> Result<Self> {
        let released = Semaphore::new(0);
        let record = Arc::new(Record {
            clock: SystemClock::start(),
            visits: Mutex::default(),
            released,
            most_running: AtomicUsize::new(usize::MAX),
            silent: AtomicBool::new(false),
            scrapes: AtomicUsize::new(0),
        });
        let router = Router::new().route("/metrics", get(metrics)).fallback(answer).with_state(Arc::clone(&record));
        Ok(Self { server: ServerThread::start_at(address, router, None)?, record })
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The present time on the clock of the [visits](Self::visits).
    pub fn now(&self) -> Time {
        self.record.clock.now()
    }

    /// Has its metrics say from now on that no more than `most` requests run at once.
    pub fn say_running_at_most(&self, most: usize) {
        self.record.most_running.store(most, Ordering::Relaxed);
    }

    /// How often its metrics were asked for.
    pub fn scrapes(&self) -> usize {
        self.record.scrapes.load(Ordering::Relaxed)
    }

    /// Whether it keeps its metrics to itself from now on.
    pub fn be_silent(&self, silent: bool) {
        self.record.silent.store(silent, Ordering::Relaxed);
    }

    /// All requests so far, in the order of their arrival.
    pub fn visits(&self) -> Vec<Visit> {
        self.record.visits().clone()
    }

    /// Their tags.
    pub fn tags(&self) -> Vec<String> {
        self.record.visits().iter().map(|visit| visit.tag.clone()).collect()
    }

    /// How many requests are open.
    pub fn open(&self) -> usize {
        self.record.visits().iter().filter(|visit| visit.ended.is_none()).count()
    }

    /// Lets `count` held requests end, those that came first, or so many that are still to come.
    pub fn release(&self, count: usize) {
        self.record.released.add_permits(count);
    }

    /// The most requests that were open at once.
    pub fn peak(&self) -> usize {
        peak(&self.record.visits(), Duration::ZERO)
    }

    /// The same if an aborted request counts only until `step` before the server noticed: by then its client was gone.
    pub fn peak_without_aborted(&self, step: Duration) -> usize {
        peak(&self.record.visits(), step)
    }
}

impl Record {
    fn visits(&self) -> MutexGuard<'_, Vec<Visit>> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// At one instant, ends come before beginnings.
fn peak(visits: &[Visit], step: Duration) -> usize {
    let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
    let mut changes = Vec::with_capacity(visits.len() * 2);
    for visit in visits {
        changes.push((visit.began, 1_isize));
        if let Some(VisitEnd { at, aborted }) = visit.ended {
            let early = Time::from_nanos(at.as_nanos().saturating_sub(step));
            changes.push((if aborted { early.max(visit.began) } else { at }, -1));
        }
    }
    changes.sort_unstable();
    let mut open = 0_isize;
    let mut most = 0;
    for (_, change) in changes {
        open += change;
        most = most.max(open);
    }
    usize::try_from(most).unwrap_or_default()
}

/// An open request; dropped before [`Open::complete`] it was aborted.
struct Open {
    record: Arc<Record>,
    place: usize,
}

impl Open {
    fn begin(record: Arc<Record>, headers: &HeaderMap) -> Self {
        let tag = headers.get(TAG_HEADER).and_then(|tag| tag.to_str().ok()).unwrap_or_default().to_owned();
        let mut visits = record.visits();
        let place = visits.len();
        visits.push(Visit { tag, began: record.clock.now(), ended: None });
        drop(visits);
        Self { record, place }
    }

    fn complete(&self) {
        self.end(false);
    }

    /// The first end counts.
    fn end(&self, aborted: bool) {
        let mut visits = self.record.visits();
        let at = self.record.clock.now();
        if let Some(visit) = visits.get_mut(self.place) {
            visit.ended.get_or_insert(VisitEnd { at, aborted });
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.end(true);
    }
}

/// What vLLM would say of itself, as far as anybody asks. It is no visit.
async fn metrics(State(record): State<Arc<Record>>) -> Result<String, StatusCode> {
    record.scrapes.fetch_add(1, Ordering::Relaxed);
    if record.silent.load(Ordering::Relaxed) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let open = record.visits().iter().filter(|visit| visit.ended.is_none()).count();
    let running = open.min(record.most_running.load(Ordering::Relaxed));
    let waiting = open - running;
    Ok(format!("vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"))
}

async fn answer(State(record): State<Arc<Record>>, request: Request<Body>) -> Response {
    let open = Open::begin(Arc::clone(&record), request.headers());
    let hold = request.headers().get(HOLD_HEADER).and_then(|hold| hold.to_str().ok()?.parse().ok());
    let streamed = request.headers().contains_key(STREAM_HEADER);
    // A body that breaks off means that the client is gone: then this future is dropped as well.
    drop(request.into_body().collect().await);
    let work = async move {
        match hold {
            Some(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            None => {
                if let Ok(permit) = record.released.acquire().await {
                    permit.forget();
                }
            }
        }
        open.complete();
    };
    let body = if streamed {
        let first = stream::once(async { Ok::<_, std::convert::Infallible>(Bytes::from_static(b"data: 0\n\n")) });
        let last = stream::once(async {
            work.await;
            Ok(Bytes::from_static(b"data: [DONE]\n\n"))
        });
        Body::from_stream(futures_util::StreamExt::chain(first, last))
    } else {
        work.await;
        Body::from("{}")
    };
    let content_type = if streamed { "text/event-stream" } else { "application/json" };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(began: u64, ended: Option<(u64, bool)>) -> Visit {
        let ended = ended.map(|(at, aborted)| VisitEnd { at: Time::from_millis(at), aborted });
        Visit { tag: String::new(), began: Time::from_millis(began), ended }
    }

    #[test]
    fn a_peak_is_what_was_open_at_once() {
        let visits = [visit(0, Some((10, false))), visit(5, Some((20, false))), visit(10, None), visit(30, None)];
        assert_eq!(peak(&visits, Duration::ZERO), 2);
        assert_eq!(peak(&visits[..1], Duration::ZERO), 1);
        assert_eq!(peak(&[], Duration::ZERO), 0);
    }

    #[test]
    fn an_aborted_request_can_be_counted_to_when_its_client_left() {
        let visits = [visit(0, Some((10, true))), visit(8, None)];
        assert_eq!(peak(&visits, Duration::ZERO), 2);
        assert_eq!(peak(&visits, Duration::from_millis(2)), 1);
        assert_eq!(peak(&visits, Duration::from_secs(1)), 1);
    }

    #[tokio::test]
    async fn requests_are_open_until_they_are_released_done_or_left() {
        let server = CountingUpstream::start().unwrap();
        let url = format!("http://{}/", server.address());
        let client = crate::client::http1().unwrap();
        client.post(&url).header(HOLD_HEADER, "1").header(TAG_HEADER, "short").send().await.unwrap();
        assert_eq!((server.open(), server.tags()), (0, vec!["short".to_owned()]));

        let mut stays = client.post(&url).header(STREAM_HEADER, "1").send().await.unwrap();
        assert_eq!(stays.chunk().await.unwrap().unwrap(), "data: 0\n\n");
        let leaves = client.post(&url).header(STREAM_HEADER, "1").send().await.unwrap();
        assert_eq!((server.open(), server.peak()), (2, 2));
        drop(leaves);
        crate::eventually(Duration::from_secs(10), "one is left", async || Ok((server.open() == 1).then_some(())))
            .await
            .unwrap();
        server.release(1);
        assert_eq!(stays.chunk().await.unwrap().unwrap(), "data: [DONE]\n\n");
        assert_eq!(server.open(), 0);
        let aborted: Vec<_> = server.visits().iter().map(|visit| visit.ended.unwrap().aborted).collect();
        assert_eq!(aborted, [false, false, true]);
    }
}
