use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use serde::{Deserialize, Serialize};

use crate::upstream::Ending;

pub(crate) const REPLY_HEADER: &str = "x-testkit-reply";

/// What a [`RecordingUpstream`](crate::RecordingUpstream) answers, once it has read the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// 200 with the request's body and content type.
    Echo,
    /// A status and a JSON body.
    Status(u16, serde_json::Value),
    /// Server-sent events `{"event": 0}`, `{"event": 1}` and so on, then `[DONE]`, with a pause before each.
    Events { count: u32, pause_ms: u64 },
    /// The same events without the `[DONE]`; after another pause the connection is cut.
    CutEvents { count: u32, pause_ms: u64 },
    /// A body and then trailers. HTTP/1.1 clients must send `te: trailers`.
    Trailers { body: String, name: String, value: String },
    /// Never a byte.
    Stall,
}

impl Reply {
    /// The header that asks a server for this reply to one request.
    pub fn header(&self) -> Result<(HeaderName, HeaderValue)> {
        let value = HeaderValue::from_str(&serde_json::to_string(self)?).context("a reply in ASCII")?;
        Ok((HeaderName::from_static(REPLY_HEADER), value))
    }

    pub(crate) fn from_header(value: &HeaderValue) -> Result<Self> {
        Ok(serde_json::from_slice(value.as_bytes())?)
    }

    pub(crate) fn bad_header(error: &anyhow::Error) -> Response {
        with_status(StatusCode::BAD_REQUEST, None, Body::from(format!("{REPLY_HEADER}: {error:#}")))
    }

    pub(crate) async fn response(self, body: Bytes, content_type: Option<HeaderValue>, ending: Ending) -> Response {
        let ok = StatusCode::OK;
        match self {
            Self::Echo => with_status(ok, content_type, scripted(vec![Step::Data(body)], End::Complete, ending)),
            Self::Status(status, json) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let steps = vec![Step::Data(json.to_string().into())];
                with_status(status, Some(JSON), scripted(steps, End::Complete, ending))
            }
            Self::Events { count, pause_ms } => {
                let mut steps = events(count, pause_ms);
                steps.extend([Step::Pause(Duration::from_millis(pause_ms)), Step::Data("data: [DONE]\n\n".into())]);
                with_status(ok, Some(EVENT_STREAM), scripted(steps, End::Complete, ending))
            }
            Self::CutEvents { count, pause_ms } => {
                let mut steps = events(count, pause_ms);
                steps.push(Step::Pause(Duration::from_millis(pause_ms)));
                with_status(ok, Some(EVENT_STREAM), scripted(steps, End::Cut, ending))
            }
            Self::Trailers { body, name, value } => {
                let mut trailers = HeaderMap::new();
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(&name), HeaderValue::try_from(&value)) {
                    trailers.insert(name, value);
                }
                let steps = vec![Step::Data(body.into()), Step::Trailers(trailers)];
                let mut response = with_status(ok, None, scripted(steps, End::Complete, ending));
                if let Ok(name) = HeaderValue::try_from(name) {
                    response.headers_mut().insert(header::TRAILER, name);
                }
                response
            }
            Self::Stall => {
                let _open = ending;
                std::future::pending().await
            }
        }
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

fn with_status(status: StatusCode, content_type: Option<HeaderValue>, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(content_type) = content_type {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    response
}

fn events(count: u32, pause_ms: u64) -> Vec<Step> {
    let event = |index| {
        let data = format!("data: {{\"event\": {index}}}\n\n");
        [Step::Pause(Duration::from_millis(pause_ms)), Step::Data(data.into())]
    };
    (0..count).flat_map(event).collect()
}

enum Step {
    Pause(Duration),
    Data(Bytes),
    Trailers(HeaderMap),
}

#[derive(Clone, Copy)]
enum End {
    Complete,
    /// A body error, on which the connection is closed.
    Cut,
}

/// A body that goes through `steps` and then ends as told. `ending` learns whether it came that far.
fn scripted(steps: Vec<Step>, end: End, ending: Ending) -> Body {
    type Frame = hyper::body::Frame<Bytes>;
    let script = (steps.into_iter(), Some((end, ending)));
    let frames = stream::unfold(script, |(mut steps, mut end)| async move {
        for step in steps.by_ref() {
            let frame = match step {
                Step::Pause(pause) => {
                    tokio::time::sleep(pause).await;
                    continue;
                }
                Step::Data(data) => Frame::data(data),
                Step::Trailers(trailers) => {
                    // Nobody asks for what follows trailers.
                    if let Some((End::Complete, mut ending)) = end.take() {
                        ending.complete();
                    }
                    Frame::trailers(trailers)
                }
            };
            return Some((Ok(frame), (steps, end)));
        }
        match end.take()? {
            (End::Complete, mut ending) => {
                ending.complete();
                None
            }
            (End::Cut, _aborted) => Some((Err(io::Error::other("cut")), (steps, None))),
        }
    });
    Body::new(UnsyncBoxBody::new(StreamBody::new(frames)))
}
