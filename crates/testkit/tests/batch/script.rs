//! A server that answers as it is told.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::Value;
use sluice_core::{Clock, SystemClock, Time};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const WHILE: Duration = Duration::from_millis(100);

/// What a server does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Refusal {
        status: u16,
        headers: Vec<(&'static str, &'static str)>,
        body: &'static str,
    },
    /// Events with this data, then the end.
    Stream(Vec<String>, End),
    Silence,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    InOrder,
    /// In order, after a while.
    Late,
    /// After a while too: a connection that breaks takes with it what was not flushed.
    Cut,
    Never,
}

/// One request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Time,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// Gives its answers one by one; there must be one for each request.
pub(crate) struct ScriptedServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    clock: SystemClock,
    answers: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<Asked>>,
    /// Streams that were read to their end.
    heard_out: Mutex<usize>,
}

impl ScriptedServer {
    pub(crate) async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Mutex::new(answers.into_iter().collect());
        let (clock, asked, heard_out) = (SystemClock::start(), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { clock, answers, asked, heard_out });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, shared, _serving: serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1/completions", self.address)
    }

    /// All requests so far, in their order.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    pub(crate) fn heard_out(&self) -> usize {
        *self.shared.heard_out.lock().unwrap()
    }
}

async fn answer(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let asked = Asked { at: shared.clock.now(), headers, body: serde_json::from_slice(&body).unwrap() };
    shared.asked.lock().unwrap().push(asked);
    let answer = shared.answers.lock().unwrap().pop_front().expect("one request more than answers");
    match answer {
        Answer::Refusal { status, headers, body } => {
            let headers =
                headers.into_iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            (StatusCode::from_u16(status).unwrap(), HeaderMap::from_iter(headers), body).into_response()
        }
        Answer::Stream(events, end) => {
            let frames = stream::unfold((events.into_iter(), shared), move |(mut events, shared)| async move {
                let frame = match events.next() {
                    Some(data) => Ok(Bytes::from(format!("data: {data}\n\n"))),
                    None => {
                        ending(end, &shared).await?;
                        Err(io::Error::other("cut"))
                    }
                };
                Some((frame, (events, shared)))
            });
            Body::from_stream(frames).into_response()
        }
        Answer::Silence => std::future::pending().await,
    }
}

/// `None` if the stream ends in order.
async fn ending(end: End, shared: &Shared) -> Option<()> {
    match end {
        End::InOrder => {}
        End::Late => tokio::time::sleep(WHILE).await,
        End::Cut => {
            tokio::time::sleep(WHILE).await;
            return Some(());
        }
        End::Never => std::future::pending().await,
    }
    *shared.heard_out.lock().unwrap() += 1;
    None
}
