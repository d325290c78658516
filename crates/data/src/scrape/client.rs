//! Reads one page from one endpoint, over a connection that is kept for the next time.
//!
//! The connection is driven by whoever reads, so that an endpoint at rest costs nothing.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, HOST, LOCATION, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::tls::CurrentTls;

/// A page takes at most this long, connecting included.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);

/// Bytes of a page, packed and unpacked.
pub(super) const MAX_PAGE: usize = 8 << 20;

/// What is read at once. A page of 60 kB comes in one piece or two.
const READ_BUFFER: usize = 64 << 10;

const UNPACKED_AT_ONCE: u64 = 64 << 10;

/// More answers than anybody sends before the answer: `103 Early Hints` and the like.
const MAX_INFORMATIONAL: u32 = 16;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("no complete answer within {}s", DEADLINE.as_secs())]
    Deadline,
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no TLS: {0}")]
    Tls(io::Error),
    #[error("status {}", .0.as_u16())]
    Status(StatusCode),
    #[error("redirected to {to:?} with status {}, which is not followed", status.as_u16())]
    Redirect { status: StatusCode, to: String },
    #[error("more than {MAX_PAGE} bytes")]
    TooLarge,
    #[error("more than {MAX_INFORMATIONAL} informational answers")]
    Informational,
    #[error("content encoding {0:?}, which was not asked for")]
    Encoding(String),
    #[error("damaged gzip: {0}")]
    Gzip(io::Error),
    #[error("{}", innermost(.0))]
    Broken(hyper::Error),
    #[error("the connection ended before the answer did")]
    Ended,
}

/// What lies under the library's own words.
fn innermost(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The page that is read from every endpoint.
#[derive(Clone)]
pub(super) struct Page {
    path: PathAndQuery,
    /// None: the port of the endpoint.
    port: Option<u16>,
    /// None: plaintext.
    tls: Option<CurrentTls>,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("path", &self.path).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Page {
    pub(super) const fn new(path: PathAndQuery, port: Option<u16>, tls: Option<CurrentTls>) -> Self {
        Self { path, port, tls }
    }

    /// Reads the page of the endpoint at `address`, over `kept` if that is still good. Ends within [`DEADLINE`]. Returns
    /// the page and the connection for the next time, if it can be used again.
    pub(super) async fn read(
        &self,
        address: SocketAddr,
        kept: Option<Connection>,
    ) -> Result<(Bytes, Option<Connection>), ReadError> {
        let read = tokio::time::timeout(DEADLINE, self.read_over(address, kept));
        read.await.unwrap_or(Err(ReadError::Deadline))
    }

    async fn read_over(
        &self,
        endpoint: SocketAddr,
        kept: Option<Connection>,
    ) -> Result<(Bytes, Option<Connection>), ReadError> {
        let address = SocketAddr::new(endpoint.ip(), self.port.unwrap_or_else(|| endpoint.port()));
        let tls = self.tls.as_ref().map(|current| current.load_full());
        if let Some(kept) = kept.filter(|kept| kept.is_secured_by(tls.as_ref())) {
            match kept.get(self.request(address)).await {
                // The server has closed it in the meantime, as it may.
                Err(Failed { answered: false, .. }) => {}
                done => return done.map_err(|failed| failed.error),
            }
        }
        let connection = Connection::open(address, tls).await?;
        connection.get(self.request(address)).await.map_err(|failed| failed.error)
    }

    fn request(&self, address: SocketAddr) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.path.clone().into();
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::try_from(address.to_string()) {
            headers.insert(HOST, host);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain;version=0.0.4, */*;q=0.1"));
        // Packing costs the model server more than the bytes.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(USER_AGENT, HeaderValue::from_static("sluice"));
        request
    }
}

type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// An open connection to an endpoint.
pub(super) struct Connection {
    requests: http1::SendRequest<Empty<Bytes>>,
    driver: Pin<Box<http1::Connection<TokioIo<Stream>, Empty<Bytes>>>>,
    /// What secures it.
    tls: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Why a request had no success, and whether the beginning of an answer has been seen.
#[derive(Debug)]
struct Failed {
    answered: bool,
    error: ReadError,
}

impl Connection {
    async fn open(address: SocketAddr, tls: Option<Arc<ClientConfig>>) -> Result<Self, ReadError> {
        let socket = TcpStream::connect(address).await.map_err(ReadError::Connect)?;
        socket.set_nodelay(true).map_err(ReadError::Connect)?;
        let stream = match &tls {
            None => Either::Left(socket),
            Some(config) => {
                let name = ServerName::IpAddress(IpAddr::into(address.ip()));
                let secured = TlsConnector::from(Arc::clone(config)).connect(name, socket);
                Either::Right(Box::new(secured.await.map_err(ReadError::Tls)?))
            }
        };
        let mut builder = http1::Builder::new();
        builder.read_buf_exact_size(Some(READ_BUFFER));
        let (requests, driver) = builder.handshake(TokioIo::new(stream)).await.map_err(ReadError::Broken)?;
        Ok(Self { requests, driver: Box::pin(driver), tls })
    }

    /// Whether it was made with what secures new connections now.
    fn is_secured_by(&self, tls: Option<&Arc<ClientConfig>>) -> bool {
        match (&self.tls, tls) {
            (Some(own), Some(current)) => Arc::ptr_eq(own, current),
            (None, None) => true,
            _ => false,
        }
    }

    async fn get(mut self, mut request: Request<Empty<Bytes>>) -> Result<(Bytes, Option<Self>), Failed> {
        let Self { requests, driver, .. } = &mut self;
        let answered = AtomicBool::new(false);
        let informational = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&informational);
        hyper::ext::on_informational(&mut request, move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let exchange = async {
            let unanswered = |error| Failed { answered: false, error: ReadError::Broken(error) };
            requests.ready().await.map_err(unanswered)?;
            let mut response = pin!(requests.send_request(request));
            // The connection is driven before this is looked at, and takes in a bounded number of bytes each time.
            let response = poll_fn(|cx| match response.as_mut().poll(cx) {
                Poll::Pending if informational.load(Ordering::Relaxed) > MAX_INFORMATIONAL => {
                    Poll::Ready(Err(Failed { answered: true, error: ReadError::Informational }))
                }
                polled => polled.map_err(unanswered),
            });
            let response = response.await?;
            answered.store(true, Ordering::Relaxed);
            take_page(response).await.map_err(|error| Failed { answered: true, error })
        };
        let (page, open) = alongside(driver.as_mut(), exchange).await;
        let ended = || Err(Failed { answered: answered.load(Ordering::Relaxed), error: ReadError::Ended });
        Ok((page.unwrap_or_else(ended)?, open.then_some(self)))
    }
}

/// Runs `exchange` and, as long as it takes, the connection that it runs on. None if the connection ended and left it
/// waiting for what can come no more. Tells also whether the connection is open still.
async fn alongside<D: Future, E: Future>(mut driver: Pin<&mut D>, exchange: E) -> (Option<E::Output>, bool) {
    let mut exchange = pin!(exchange);
    let mut open = true;
    poll_fn(move |cx| {
        // Its end says nothing about what has arrived by then.
        if open && driver.as_mut().poll(cx).is_ready() {
            open = false;
        }
        match exchange.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready((Some(output), open)),
            Poll::Pending if open => Poll::Pending,
            Poll::Pending => Poll::Ready((None, open)),
        }
    })
    .await
}

/// The body of a good response, unpacked.
async fn take_page(response: Response<Incoming>) -> Result<Bytes, ReadError> {
    let (head, body) = response.into_parts();
    if head.status.is_redirection() {
        let to = head.headers.get(LOCATION).map(HeaderValue::as_bytes).unwrap_or_default();
        return Err(ReadError::Redirect { status: head.status, to: String::from_utf8_lossy(to).into_owned() });
    }
    if head.status != StatusCode::OK {
        return Err(ReadError::Status(head.status));
    }
    let packed = is_packed(head.headers.get(CONTENT_ENCODING))?;
    let page = collect(body).await?;
    if packed { unpack(&page).await.map(Bytes::from) } else { Ok(page) }
}

/// The whole body; without a copy if it comes in one piece, as it does where it fits into [`READ_BUFFER`] and the network
/// has delivered all of it by the time it is read.
async fn collect(mut body: Incoming) -> Result<Bytes, ReadError> {
    let length = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if length > MAX_PAGE {
        return Err(ReadError::TooLarge);
    }
    let first = next_piece(&mut body).await?.unwrap_or_default();
    let mut next = next_piece(&mut body).await?;
    if next.is_none() {
        return Ok(first);
    }
    let mut page = Vec::with_capacity(length);
    page.extend_from_slice(&first);
    // Each piece goes before the next is read: the connection can use its buffer again.
    drop(first);
    while let Some(piece) = next.take() {
        if page.len() + piece.len() > MAX_PAGE {
            return Err(ReadError::TooLarge);
        }
        page.extend_from_slice(&piece);
        drop(piece);
        next = next_piece(&mut body).await?;
    }
    Ok(page.into())
}

/// At most [`READ_BUFFER`] long.
async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, ReadError> {
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.map_err(ReadError::Broken)?.into_data() {
            return Ok(Some(piece));
        }
    }
    Ok(None)
}

/// Whether a body is packed with gzip, which some servers do unasked.
fn is_packed(encoding: Option<&HeaderValue>) -> Result<bool, ReadError> {
    let Some(encoding) = encoding else { return Ok(false) };
    let is = |name: &str| encoding.as_bytes().eq_ignore_ascii_case(name.as_bytes());
    if is("gzip") || is("x-gzip") {
        Ok(true)
    } else if is("identity") || encoding.is_empty() {
        Ok(false)
    } else {
        Err(ReadError::Encoding(String::from_utf8_lossy(encoding.as_bytes()).into_owned()))
    }
}

/// One stream of gzip: what a server sends that packs its answers. More of them behind each other, which gzip allows, would
/// let a few bytes cost any amount of time.
///
/// In parts, between which others have their turn: a few kB can be a page of the largest size.
pub(super) async fn unpack(packed: &[u8]) -> Result<Vec<u8>, ReadError> {
    let mut page = Vec::new();
    let mut plain = flate2::bufread::GzDecoder::new(packed);
    while (&mut plain).take(UNPACKED_AT_ONCE).read_to_end(&mut page).map_err(ReadError::Gzip)? > 0 {
        if page.len() > MAX_PAGE {
            return Err(ReadError::TooLarge);
        }
        tokio::task::yield_now().await;
    }
    if !plain.into_inner().is_empty() {
        return Err(ReadError::Gzip(io::Error::new(io::ErrorKind::InvalidData, "bytes behind the end")));
    }
    Ok(page)
}
