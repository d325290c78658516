//! A server whose every byte the test decides, and what else a scraper needs around it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use sluice_core::{BoxFuture, Criticality, EndpointId, EndpointUid, Spawn};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::EndpointSpec;

/// What the server does with a request.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// Sends these bytes and waits for the next request.
    Keep(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Close(Vec<u8>),
    /// Sends these bytes, and a byte more every so often, without end.
    Trickle(Vec<u8>, Duration),
    /// Sends these bytes after a while, and waits for the next request.
    Late(Vec<u8>, Duration),
    /// Sends nothing and waits for the client to go.
    Nothing,
}

impl Answer {
    /// A good answer with `body`, after which the connection stays open.
    pub(super) fn page(body: &str) -> Self {
        Self::Keep(with_headers("200 OK", &[], body.as_bytes()))
    }

    /// A vLLM that has so many requests waiting and running.
    pub(super) fn vllm(waiting: u64, running: u64) -> Self {
        Self::page(&vllm_page(waiting, running))
    }
}

pub(super) fn vllm_page(waiting: u64, running: u64) -> String {
    format!(
        "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n\
         # TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine=\"0\"}} {running}\n\
         # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\n\
         # TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"100\"}} 1\n"
    )
}

pub(super) fn with_headers(status: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
    for header in headers {
        answer += header;
        answer += "\r\n";
    }
    [answer.as_bytes(), b"\r\n", body].concat()
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    _serving: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    answer: Mutex<Answer>,
    heads: Mutex<Vec<String>>,
    connections: AtomicUsize,
    open: AtomicUsize,
}

impl Server {
    pub(super) async fn start(answer: Answer) -> Self {
        Self::start_with(answer, None).await
    }

    pub(super) async fn start_with(answer: Answer, tls: Option<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            answer: Mutex::new(answer),
            heads: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        });
        let acceptor = tls.map(|tls| TlsAcceptor::from(Arc::new(tls)));
        let accepting = Arc::clone(&state);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (state, acceptor) = (Arc::clone(&accepting), acceptor.clone());
                state.connections.fetch_add(1, Ordering::Relaxed);
                connections.spawn(async move {
                    state.open.fetch_add(1, Ordering::Relaxed);
                    match acceptor {
                        None => serve(socket, &state).await,
                        Some(acceptor) => {
                            if let Ok(secured) = acceptor.accept(socket).await {
                                serve(secured, &state).await;
                            }
                        }
                    }
                    state.open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Self { address, state, _serving: serving }
    }

    pub(super) fn answer(&self, answer: Answer) {
        *self.state.answer.lock().unwrap() = answer;
    }

    /// The heads of all requests so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.state.heads.lock().unwrap().clone()
    }

    /// How many connections there have been, and how many are open.
    pub(super) fn connections(&self) -> (usize, usize) {
        (self.state.connections.load(Ordering::Relaxed), self.state.open.load(Ordering::Relaxed))
    }
}

async fn serve(mut socket: impl AsyncRead + AsyncWrite + Unpin, state: &State) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = socket.read_u8().await else { return };
            head.push(byte);
        }
        state.heads.lock().unwrap().push(String::from_utf8(head).unwrap());
        let answer = state.answer.lock().unwrap().clone();
        match answer {
            Answer::Keep(bytes) => {
                if socket.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Answer::Close(bytes) => {
                socket.write_all(&bytes).await.unwrap_or_default();
                socket.shutdown().await.unwrap_or_default();
                return;
            }
            Answer::Trickle(bytes, every) => {
                let mut sent = socket.write_all(&bytes).await;
                while sent.is_ok() {
                    tokio::time::sleep(every).await;
                    sent = socket.write_all(b"#").await;
                }
                return;
            }
            Answer::Late(bytes, after) => {
                tokio::time::sleep(after).await;
                if socket.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Answer::Nothing => {
                socket.read_u8().await.unwrap_or_default();
                return;
            }
        }
        socket.flush().await.unwrap_or_default();
    }
}

/// Runs tasks until it is dropped.
#[derive(Debug, Default)]
pub(super) struct TestTasks(Mutex<JoinSet<()>>, Arc<AtomicUsize>);

impl TestTasks {
    /// Counts the tasks that were started.
    pub(super) fn started(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.1)
    }
}

impl Spawn for TestTasks {
    fn spawn(&self, _name: &'static str, _criticality: Criticality, body: BoxFuture) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.lock().unwrap().spawn(body);
    }
}

pub(super) fn spec(name: &str, address: SocketAddr) -> EndpointSpec {
    EndpointSpec {
        id: EndpointId::new("default", name),
        uid: EndpointUid(name.into()),
        address,
        labels: BTreeMap::new(),
    }
}

/// Waits for what must come true soon; on a busy machine, a little later.
pub(super) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never: {what}");
}
