//! An HTTP/2 client that ends its requests and its connection in ways of its own.

use sluice_testkit::Envoy;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{CHAT, chat};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The first stream of a client.
const STREAM: u32 = 1;
const CANCEL: u32 = 8;
/// A setting: how much of a stream's body the client takes before it says more.
const INITIAL_WINDOW_SIZE: u16 = 4;

/// A connection with one chat on it.
#[derive(Debug)]
pub(super) struct RawHttp2 {
    stream: TcpStream,
}

impl RawHttp2 {
    /// Sends a chat.
    pub(super) async fn chat(envoy: &Envoy) -> Self {
        Self::chat_with(envoy, &[], &[]).await
    }

    /// Sends one with further headers, and reads nothing of the answer but its head.
    pub(super) async fn chat_unread(envoy: &Envoy, headers: &[(&str, &str)]) -> Self {
        let no_window = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &[0; 4]].concat();
        Self::chat_with(envoy, &no_window, headers).await
    }

    async fn chat_with(envoy: &Envoy, settings: &[u8], further: &[(&str, &str)]) -> Self {
        let mut stream = TcpStream::connect(envoy.address()).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut client = Self { stream };
        client.frame(SETTINGS, 0, 0, settings).await;
        // `:method: POST` and `:scheme: http` are entries of the static table, the others literals.
        let mut headers = vec![0x83, 0x86];
        let own = [(":path", CHAT), (":authority", "gateway"), ("content-type", "application/json")];
        for (name, value) in own.iter().chain(further) {
            headers.push(0);
            for text in [*name, *value] {
                headers.push(u8::try_from(text.len()).unwrap());
                headers.extend(text.bytes());
            }
        }
        client.frame(HEADERS, END_HEADERS, STREAM, &headers).await;
        client.frame(DATA, END_STREAM, STREAM, chat("hello", 1, false).to_string().as_bytes()).await;
        client
    }

    pub(super) async fn cancel(&mut self) {
        self.frame(RST_STREAM, 0, STREAM, &CANCEL.to_be_bytes()).await;
    }

    /// Says that it will take nothing more on this connection.
    pub(super) async fn go_away(&mut self) {
        self.frame(GOAWAY, 0, 0, &[0; 8]).await;
    }

    async fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.stream.write_all(&[&head, payload].concat()).await.unwrap();
    }
}
