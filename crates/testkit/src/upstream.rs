use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};
use http_body_util::BodyExt;
use tokio::sync::watch;

use crate::reply::{REPLY_HEADER, Reply};
use crate::server_thread::ServerThread;

/// A model server that records what it gets and answers as it is told, per server or per request.
///
/// It lives on a thread of its own, so that it may serve several tests. Dropping it cuts all its connections.
#[derive(Debug)]
pub struct RecordingUpstream {
    server: ServerThread,
    log: Log,
}

/// A request as it reached the server.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub request_body: RequestBody,
    pub response: ResponseEnd,
}

/// How much of a request's body has arrived.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestBody {
    Arriving,
    /// The client broke off.
    Broken,
    Complete {
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    },
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    Open,
    /// Sent in full.
    Complete,
    /// The client went away first, or the reply was to be cut.
    Aborted,
}

impl RecordedRequest {
    /// The body if all of it has arrived.
    pub fn body(&self) -> Option<&Bytes> {
        match &self.request_body {
            RequestBody::Complete { bytes, .. } => Some(bytes),
            RequestBody::Arriving | RequestBody::Broken => None,
        }
    }
}

impl RecordingUpstream {
    /// Starts a server on 127.0.0.1. A request's header `x-testkit-reply` overrides `reply`, see [`Reply::header`].
    pub fn start(reply: Reply) -> Result<Self> {
        let log = Log(Arc::new(watch::Sender::new(Vec::new())));
        let router = Router::new().fallback(answer).with_state(Arc::new(Server { reply, log: log.clone() }));
        Ok(Self { server: ServerThread::start(router)?, log })
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Everything recorded so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.log.0.borrow().clone()
    }

    /// The first request, past or future, for which `wanted` holds.
    pub async fn find(&self, limit: Duration, wanted: impl Fn(&RecordedRequest) -> bool) -> Result<RecordedRequest> {
        let mut changes = self.log.0.subscribe();
        let search = changes.wait_for(|requests| requests.iter().any(&wanted));
        match tokio::time::timeout(limit, search).await {
            Ok(requests) => requests?.iter().find(|request| wanted(request)).cloned().context("it was there"),
            Err(_) => bail!("no such request within {limit:?}; recorded: {:#?}", self.summary()),
        }
    }

    fn summary(&self) -> Vec<String> {
        let line = |request: &RecordedRequest| {
            let body = request
                .body()
                .map_or_else(|| format!("{:?}", request.request_body), |body| format!("{} bytes", body.len()));
            format!("{} {} ({body}) {:?}", request.method, request.uri, request.response)
        };
        self.log.0.borrow().iter().map(line).collect()
    }
}

#[derive(Clone, Debug)]
struct Log(Arc<watch::Sender<Vec<RecordedRequest>>>);

impl Log {
    /// Adds a request and returns its place.
    fn add(&self, request: RecordedRequest) -> usize {
        let mut place = 0;
        self.0.send_modify(|requests| {
            place = requests.len();
            requests.push(request);
        });
        place
    }

    fn update(&self, place: usize, change: impl FnOnce(&mut RecordedRequest)) {
        self.0.send_modify(|requests| {
            if let Some(request) = requests.get_mut(place) {
                change(request);
            }
        });
    }
}

struct Server {
    reply: Reply,
    log: Log,
}

async fn answer(State(server): State<Arc<Server>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let reply = match head.headers.get(REPLY_HEADER).map(Reply::from_header) {
        Some(Ok(reply)) => reply,
        Some(Err(error)) => return Reply::bad_header(&error),
        None => server.reply.clone(),
    };
    let content_type = head.headers.get(http::header::CONTENT_TYPE).cloned();
    let place = server.log.add(RecordedRequest {
        method: head.method,
        uri: head.uri,
        headers: head.headers,
        request_body: RequestBody::Arriving,
        response: ResponseEnd::Open,
    });
    let ending = Ending { log: server.log.clone(), place, end: ResponseEnd::Aborted };

    let Ok(collected) = body.collect().await else {
        server.log.update(place, |request| request.request_body = RequestBody::Broken);
        return reply.response(Bytes::new(), content_type, ending).await;
    };
    let trailers = collected.trailers().cloned();
    let bytes = collected.to_bytes();
    let complete = RequestBody::Complete { bytes: bytes.clone(), trailers };
    server.log.update(place, |request| request.request_body = complete);
    reply.response(bytes, content_type, ending).await
}

/// Notes the end of a response when it is dropped: aborted, unless it was said to be complete.
pub(crate) struct Ending {
    log: Log,
    place: usize,
    end: ResponseEnd,
}

impl Ending {
    pub(crate) fn complete(&mut self) {
        self.end = ResponseEnd::Complete;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let end = self.end;
        self.log.update(self.place, |request| request.response = end);
    }
}
