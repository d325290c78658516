//! A connection to one of our ports, from its acceptance until the server has it.
//!
//! ```text
//! accepted ──TLS, where the port has it──> secured ──opening of HTTP/2──> Connection ──> server
//!     └───────────────── within OPENING_TIMEOUT, or it is closed ──────────────┘
//! ```
//!
//! The server sees a connection only when its peer has shown that it speaks HTTP/2: nothing that a peer leaves unsaid
//! holds a file descriptor for longer than [`OPENING_TIMEOUT`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_extproc::Peer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// A peer that has not finished its handshake and begun to speak HTTP/2 by then is sent away.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// What every client of HTTP/2 sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// Why a peer was sent away before the server saw it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotOpened {
    /// As probes do that only want to see an open port.
    #[error("the peer has closed the connection")]
    Closed(#[source] io::Error),
    #[error("the peer has not spoken in time")]
    TooSlow,
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    #[error("the peer speaks TLS to a port that serves plaintext")]
    UnexpectedTls,
    #[error("the peer speaks plaintext to a port that serves TLS")]
    UnexpectedPlaintext,
    #[error("the peer does not speak HTTP/2")]
    NotHttp2,
}

/// A peer that speaks HTTP/2, over TLS or in plaintext.
#[derive(Debug)]
pub(crate) struct Connection {
    io: Io,
    /// What has been read of the peer's opening and not yet handed to the server.
    unread: &'static [u8],
    /// What the streams on it have shown of the proxy.
    peer: Peer,
    /// Ready: the connection is cut.
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

#[derive(Debug)]
enum Io {
    Plaintext(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// Waits for the peer's opening. When `cut` is cancelled later on, the connection fails.
    pub(crate) async fn open(
        socket: TcpStream,
        tls: Option<TlsAcceptor>,
        cut: CancellationToken,
    ) -> Result<Self, NotOpened> {
        let opening = async {
            let mut io = match tls {
                None => Io::Plaintext(socket),
                Some(tls) => Io::Tls(Box::new(tls.accept(socket).await.map_err(handshake_failure)?)),
            };
            read_preface(&mut io).await?;
            Ok(Self { io, unread: PREFACE, peer: Peer::default(), cut: Box::pin(cut.cancelled_owned()) })
        };
        tokio::time::timeout(OPENING_TIMEOUT, opening).await.unwrap_or(Err(NotOpened::TooSlow))
    }
}

fn handshake_failure(error: io::Error) -> NotOpened {
    use rustls::{Error, InvalidMessage};
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    match cause {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => NotOpened::UnexpectedPlaintext,
        Some(_) => NotOpened::Handshake(error),
        None => NotOpened::Closed(error),
    }
}

/// Takes the preface, or finds out at the first byte of another kind that there is none.
async fn read_preface(io: &mut Io) -> Result<(), NotOpened> {
    let mut received = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() {
        let rest = &mut received[length..];
        let more = match io {
            Io::Plaintext(socket) => socket.read(rest).await,
            Io::Tls(stream) => stream.read(rest).await,
        };
        length += match more.map_err(NotOpened::Closed)? {
            0 => return Err(NotOpened::Closed(io::ErrorKind::UnexpectedEof.into())),
            more => more,
        };
        if !PREFACE.starts_with(&received[..length]) {
            let tls = matches!(io, Io::Plaintext(_)) && received[0] == TLS_HANDSHAKE;
            return Err(if tls { NotOpened::UnexpectedTls } else { NotOpened::NotHttp2 });
        }
    }
    Ok(())
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // First, so that no peer can hold it up by sending on and on.
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if !self.unread.is_empty() {
            let (now, later) = self.unread.split_at(self.unread.len().min(buffer.remaining()));
            buffer.put_slice(now);
            self.unread = later;
            return Poll::Ready(Ok(()));
        }
        match &mut self.io {
            Io::Plaintext(socket) => Pin::new(socket).poll_read(context, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plaintext(socket) => Pin::new(socket).poll_write(context, data),
            Io::Tls(stream) => Pin::new(stream).poll_write(context, data),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plaintext(socket) => Pin::new(socket).poll_write_vectored(context, data),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(context, data),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plaintext(socket) => socket.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plaintext(socket) => Pin::new(socket).poll_flush(context),
            Io::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plaintext(socket) => Pin::new(socket).poll_shutdown(context),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Nothing of ours asks who the peer is: where that counts, the handshake has found out.
impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}
