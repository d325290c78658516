//! The server: connections, paths, answers.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::json;
use sluice_core::Time;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::api::{Api, ApiError, ApiRequest, Envelope, EventWriter, Model};
use crate::body::{EventStream, ResponseBody};
use crate::engine::Stats;
use crate::inference::Inference;
use crate::settings::{InvalidSettings, Settings};

/// The largest body that a request may have.
pub const MAX_REQUEST_BODY: usize = 64 * 1024 * 1024;

const MAX_HTTP2_STREAMS: u32 = 16_384;
const MAX_HTTP2_RESETS: usize = 16_384;

const JSON: &str = "application/json";

/// A simulated server. Clones are the same server.
#[derive(Clone, Debug)]
pub struct Server(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inference: Arc<Inference>,
    model: Model,
    name: Option<String>,
    /// When the server was made, since 1970.
    made: Duration,
    answers: AtomicU64,
}

impl Server {
    pub fn new(settings: Settings) -> Result<Self, InvalidSettings> {
        settings.check()?;
        Ok(Self(Arc::new(Shared {
            inference: Arc::new(Inference::new(&settings)),
            model: Model::new(&settings),
            name: settings.name,
            made: wall_clock(),
            answers: AtomicU64::new(0),
        })))
    }

    /// What the engine holds at this moment.
    pub fn stats(&self) -> Stats {
        self.0.inference.stats()
    }

    /// Serves HTTP/1.1 and HTTP/2 without TLS, until this future is dropped: every connection is then cut and
    /// every request aborted. Called once per server.
    pub async fn serve(&self, listener: TcpListener) -> io::Result<Infallible> {
        let name = match &self.0.name {
            Some(name) => name.clone(),
            None => listener.local_addr()?.to_string(),
        };
        let frontend = Arc::new(Frontend { server: self.clone(), served_by: served_by(&name)?, name });
        tokio::select! {
            // Steps that are due come before requests that would join them.
            biased;
            never = self.0.inference.drive() => match never {},
            never = accept(&listener, &frontend) => match never {},
        }
    }
}

/// Takes connections; each lives as long as this future.
async fn accept(listener: &TcpListener, frontend: &Arc<Frontend>) -> Infallible {
    const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // What has ended makes room before more is taken in.
            biased;
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, Arc::clone(frontend)));
                }
                // A connection that broke before it was taken, or no descriptor left: neither ends the server.
                Err(_) => tokio::time::sleep(PAUSE_AFTER_ERROR).await,
            },
        }
    }
}

async fn serve_connection(stream: TcpStream, frontend: Arc<Frontend>) {
    // Each token goes out when it comes. Not being able to say so costs latency only.
    stream.set_nodelay(true).ok();
    let service = service_fn(|request| {
        let frontend = Arc::clone(&frontend);
        async move { Ok::<_, Infallible>(frontend.respond(request).await) }
    });
    let mut http = auto::Builder::new(TokioExecutor::new());
    // A gateway may send everything over one connection and give up many requests at a time; the line that they
    // wait in is the engine's, not the connection's.
    http.http2().max_concurrent_streams(MAX_HTTP2_STREAMS).max_pending_accept_reset_streams(MAX_HTTP2_RESETS);
    // An error is the client's doing; dropping the connection has aborted its requests.
    http.serve_connection(TokioIo::new(stream), service).await.ok();
}

/// What the connections of one listener share.
#[derive(Debug)]
struct Frontend {
    server: Server,
    name: String,
    served_by: HeaderValue,
}

impl Frontend {
    async fn respond(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let mut response = self.route(request).await.unwrap_or_else(|error| refuse(&error));
        response.headers_mut().insert("x-served-by", self.served_by.clone());
        response
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<ResponseBody>, ApiError> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let posts = *request.method() == Method::POST;
        match request.uri().path() {
            "/v1/completions" if posts => self.answer(Api::Completions, request).await,
            "/v1/chat/completions" if posts => self.answer(Api::Chat, request).await,
            "/v1/models" if reads => Ok(whole(JSON, self.models())),
            "/health" if reads => Ok(whole("text/plain; charset=utf-8", "")),
            "/metrics" if reads => {
                Ok(whole("text/plain; version=0.0.4; charset=utf-8", self.server.0.inference.render_metrics()?))
            }
            "/v1/completions" | "/v1/chat/completions" | "/v1/models" | "/health" | "/metrics" => {
                Err(ApiError::MethodNotAllowed)
            }
            _ => Err(ApiError::UnknownPath),
        }
    }

    async fn answer(&self, api: Api, request: Request<Incoming>) -> Result<Response<ResponseBody>, ApiError> {
        let shared = &self.server.0;
        let id = self.answer_id(api, &request);
        let body = read_body(request.into_body()).await?;
        let ApiRequest { model, ask, stream, include_usage } = ApiRequest::parse(api, &body, &shared.model)?;
        drop(body);
        let generation = shared.inference.submit(ask)?;
        let created = shared.wall_clock_at(shared.inference.now());
        let envelope = Envelope { api, id, created, model, prompt_tokens: generation.prompt_tokens() };
        if stream {
            let events = EventStream::new(generation, EventWriter::new(envelope, include_usage));
            return Ok(response(StatusCode::OK, "text/event-stream; charset=utf-8", ResponseBody::Right(events)));
        }
        let pieces = generation.collect().await;
        Ok(whole(JSON, envelope.whole(&pieces).to_string()))
    }

    /// The id of an answer: the client's `x-request-id` if there is one, else one that no other answer has.
    fn answer_id(&self, api: Api, request: &Request<Incoming>) -> String {
        let prefix = match api {
            Api::Completions => "cmpl",
            Api::Chat => "chatcmpl",
        };
        match request.headers().get("x-request-id").and_then(|id| id.to_str().ok()) {
            Some(id) => format!("{prefix}-{id}"),
            None => format!("{prefix}-{}-{}", self.name, self.server.0.answers.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn models(&self) -> String {
        let shared = &self.server.0;
        let created = shared.made.as_secs();
        let model = |name: &String| {
            json!({
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": name,
                "parent": null,
                "max_model_len": shared.model.max_len,
            })
        };
        let models: Vec<_> = shared.model.names.iter().map(model).collect();
        json!({"object": "list", "data": models}).to_string()
    }
}

impl Shared {
    /// Seconds since 1970.
    fn wall_clock_at(&self, now: Time) -> u64 {
        (self.made + now.saturating_since(Time::ZERO)).as_secs()
    }
}

async fn read_body(body: Incoming) -> Result<Bytes, ApiError> {
    match Limited::new(body, MAX_REQUEST_BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::TooLarge { limit: MAX_REQUEST_BODY }),
        Err(_) => Err(ApiError::Unreadable),
    }
}

fn refuse(error: &ApiError) -> Response<ResponseBody> {
    response(error.status(), JSON, full(error.body()))
}

fn whole(content_type: &'static str, body: impl Into<Bytes>) -> Response<ResponseBody> {
    response(StatusCode::OK, content_type, full(body))
}

fn full(body: impl Into<Bytes>) -> ResponseBody {
    ResponseBody::Left(Full::new(body.into()))
}

fn response(status: StatusCode, content_type: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn served_by(name: &str) -> io::Result<HeaderValue> {
    HeaderValue::from_str(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

#[expect(clippy::disallowed_methods, reason = "read once, to date the answers; nothing is decided by it")]
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
