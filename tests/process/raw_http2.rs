//! A client of HTTP/2 down to the frame, for what no library would do.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::support::PATIENCE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PING: u8 = 6;

pub(crate) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// The first stream of a client.
pub(crate) const STREAM: u32 = 1;
/// A setting: how much of a stream's body the client takes before it says more.
const INITIAL_WINDOW_SIZE: u16 = 4;

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// A connection with one stream to the external processor.
#[derive(Debug)]
pub(crate) struct RawHttp2(TcpStream);

impl RawHttp2 {
    /// Opens the stream. It takes `window` bytes of what comes on it.
    pub(crate) fn open(address: &str, window: u32) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Self(stream);
        client.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        client.set_window(window);
        // `:method: POST` and `:scheme: http` are entries of the static table, the others literals.
        let mut headers = vec![0x83, 0x86];
        for (name, value) in [
            (":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
            (":authority", "picker"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            headers.push(0);
            for text in [name, value] {
                headers.push(u8::try_from(text.len()).unwrap());
                headers.extend(text.bytes());
            }
        }
        client.frame(HEADERS, END_HEADERS, STREAM, &headers);
        client
    }

    /// Takes `window` bytes of the stream, with what it has taken of them so far.
    pub(crate) fn set_window(&mut self, window: u32) {
        let setting = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window.to_be_bytes()].concat();
        self.frame(SETTINGS, 0, 0, &setting);
    }

    /// Sends a message of gRPC.
    pub(crate) fn message(&mut self, message: &[u8]) {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        self.frame(DATA, 0, STREAM, &[&[0][..], &length, message].concat());
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.write_all(&[&head, payload].concat()).unwrap();
    }

    /// The next frame. Whether it lives is answered.
    pub(crate) fn next(&mut self) -> Frame {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).expect("a frame before the connection is given up");
        let [high, middle, low, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        self.0.read_exact(&mut payload).unwrap();
        if kind == PING && flags & ACK == 0 {
            self.frame(PING, ACK, 0, &payload);
        }
        Frame { kind, flags, stream: u32::from_be_bytes(stream) }
    }

    /// The next frame of the stream.
    pub(crate) fn next_of_stream(&mut self) -> Frame {
        loop {
            let frame = self.next();
            if frame.stream == STREAM {
                return frame;
            }
        }
    }
}

/// The message by which a proxy asks where a request without a body may go.
pub(crate) fn request_headers() -> Vec<u8> {
    let field =
        |number: u8, content: &[u8]| [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat();
    let header = |name: &str, value: &str| field(1, &[field(1, name.as_bytes()), field(3, value.as_bytes())].concat());
    let headers = [header(":method", "GET"), header(":path", "/v1/models")].concat();
    let end_of_stream = [3 << 3, 1];
    field(2, &[&field(1, &headers)[..], &end_of_stream].concat())
}
