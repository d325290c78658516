//! Clients and servers down to the byte, for what no HTTP library would do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_testkit::Envoy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{CHAT, LIMIT, chat};

/// An HTTP/1.1 client's connection.
#[derive(Debug)]
pub(crate) struct RawClient {
    stream: TcpStream,
}

impl RawClient {
    pub(crate) async fn connect(envoy: &Envoy) -> Self {
        Self { stream: TcpStream::connect(envoy.address()).await.unwrap() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends the head of a POST; `headers` are further lines, each with its end.
    pub(crate) async fn post(&mut self, path: &str, headers: &str) {
        self.send(format!("POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{headers}\r\n"))
            .await;
    }

    /// Sends a whole chat; `headers` as in [`Self::post`].
    pub(crate) async fn chat(&mut self, headers: &str) {
        let body = chat("hello", 1, false).to_string();
        self.post(CHAT, &format!("content-length: {}\r\n{headers}", body.len())).await;
        self.send(body).await;
    }

    /// The next head, with its empty line.
    pub(crate) async fn head(&mut self) -> String {
        head(&mut self.stream).await
    }

    /// The next `length` bytes.
    pub(crate) async fn exactly(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        timeout(LIMIT, self.stream.read_exact(&mut bytes)).await.expect("bytes in time").unwrap();
        bytes
    }

    /// A response with a `content-length`: its head and body.
    pub(crate) async fn response(&mut self) -> (String, String) {
        let head = self.head().await;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a content-length");
        let body = self.exactly(length.parse().unwrap()).await;
        (head, String::from_utf8(body).unwrap())
    }

    /// Waits until the other side has closed the connection, in order or with a reset.
    pub(crate) async fn closed(mut self) {
        let mut rest = Vec::new();
        drop(timeout(LIMIT, self.stream.read_to_end(&mut rest)).await.expect("a closed connection in time"));
    }

    /// Ends the client's side only.
    pub(crate) async fn half_close(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Breaks the connection off with a reset.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

/// Reads up to the empty line that ends a head.
pub(crate) async fn head(stream: &mut TcpStream) -> String {
    try_head(stream).await.expect("the head ends")
}

/// None if the other side closes the connection before.
async fn try_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(LIMIT, stream.read_u8()).await.expect("the head ends in time").ok()?);
    }
    Some(String::from_utf8(head).expect("a head is text"))
}

/// What a [`server`] does after it has answered.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// Says back what it hears.
    Echo,
    /// Closes the connection after this time.
    Close(Duration),
    /// Says this again and again, for as long as it is listened to.
    Repeat { what: &'static str, every: Duration },
    /// Says this when it gets a permit, if it is listened to until then, and closes the connection.
    Say { what: &'static str, permit: Arc<Semaphore> },
}

/// A model server that answers the head of each request on `ip` with `answer`, whatever follows the head.
pub(crate) async fn server(ip: &str, answer: &'static str, then: Then, servers: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("a listener has an address");
    servers.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let then = then.clone();
            connections.spawn(async move {
                // A proxy may open a connection and have no use for it any more.
                if try_head(&mut stream).await.is_none() {
                    return;
                }
                stream.write_all(answer.as_bytes()).await.expect("the proxy listens");
                match then {
                    Then::Echo => {
                        let (mut reader, mut writer) = stream.split();
                        drop(tokio::io::copy(&mut reader, &mut writer).await);
                    }
                    Then::Close(after) => tokio::time::sleep(after).await,
                    Then::Repeat { what, every } => {
                        while stream.write_all(what.as_bytes()).await.is_ok() {
                            tokio::time::sleep(every).await;
                        }
                    }
                    Then::Say { what, permit } => {
                        let (mut reader, mut writer) = stream.split();
                        let mut dropped = tokio::io::sink();
                        let gone = tokio::io::copy(&mut reader, &mut dropped);
                        let say = async {
                            permit.acquire().await.expect("it is never closed").forget();
                            drop(writer.write_all(what.as_bytes()).await);
                        };
                        tokio::select! {
                            _ = gone => {}
                            () = say => {}
                        }
                    }
                }
            });
        }
    });
    address
}
