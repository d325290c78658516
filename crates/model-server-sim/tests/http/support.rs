//! A server in this process and a client that shows every byte.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use model_server_sim::engine::Stats;
use model_server_sim::{Server, Settings};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Longer than anything takes that is going to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn count(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

/// A server so fast that tests need not wait for it.
pub(crate) fn fast() -> Settings {
    Settings {
        time_per_output_token: Duration::from_micros(10),
        prefill_rate: count(100_000_000),
        ..Settings::default()
    }
}

/// A server that is stopped by dropping it.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    server: Server,
    serving: JoinSet<()>,
}

impl TestServer {
    pub(crate) async fn start(settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::new(settings).unwrap();
        let mut serving = JoinSet::new();
        serving.spawn({
            let server = server.clone();
            async move { match server.serve(listener).await.unwrap() {} }
        });
        Self { address, server, serving }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.server.stats()
    }

    pub(crate) async fn stop(mut self) {
        self.serving.shutdown().await;
    }

    /// Waits until the engine is as `wanted`, and says if it did not get there in time.
    pub(crate) async fn until(&self, within: Duration, wanted: impl Fn(Stats) -> bool) -> bool {
        let wait = async {
            while !wanted(self.stats()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(within, wait).await.is_ok()
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(self.address).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request(Method::GET, path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.request(Method::POST, path, body).await
    }

    pub(crate) async fn request(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Answer {
        let mut connection = self.connect().await;
        let response = connection.send(method, path, body).await;
        Answer::read(response).await
    }

    /// Asks for a completion of `prompt` with further fields, in one piece.
    pub(crate) async fn complete(&self, body: Value) -> Value {
        self.post("/v1/completions", body.to_string()).await.success()
    }

    /// Asks for a chat in one piece.
    pub(crate) async fn chat(&self, body: Value) -> Value {
        self.post("/v1/chat/completions", body.to_string()).await.success()
    }
}

/// A connection that is closed by dropping it.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, driver) = handshake(TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // How it ends shows in the response.
            driver.await.ok();
        });
        Self { sender, _driver: tasks }
    }

    pub(crate) async fn send(&mut self, method: Method, path: &str, body: impl Into<Bytes>) -> Response<Incoming> {
        let request = Request::builder().method(method).uri(path).header("host", "test");
        let request = request.body(Full::new(body.into())).unwrap();
        timeout(PATIENCE, self.sender.send_request(request)).await.expect("no answer").unwrap()
    }

    pub(crate) async fn post(&mut self, path: &str, body: Value) -> Response<Incoming> {
        self.send(Method::POST, path, body.to_string()).await
    }
}

/// A response, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = timeout(PATIENCE, body.collect()).await.expect("no end").unwrap().to_bytes();
        Self { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub(crate) fn success(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self.json()
    }

    /// The data of all events but the end mark, which must be there.
    pub(crate) fn events(&self) -> Vec<Value> {
        let events = self.body.strip_suffix("data: [DONE]\n\n").expect("an end mark");
        events
            .split_terminator("\n\n")
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }
}

/// The text of a whole completion.
pub(crate) fn text(completion: &Value) -> &str {
    completion["choices"][0]["text"].as_str().unwrap()
}

/// The text of a whole chat.
pub(crate) fn content(chat: &Value) -> &str {
    chat["choices"][0]["message"]["content"].as_str().unwrap()
}
