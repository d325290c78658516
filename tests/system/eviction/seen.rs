use std::fmt;
use std::time::Duration;

use http::HeaderMap;
use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use sluice_core::{Clock as _, SystemClock};

use crate::flow::support::DROPPED_REASON;

/// Everything that a client has seen of the answer to its request.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    pub(super) end: End,
    /// What the client's HTTP library says of a broken end.
    pub(super) broken: String,
    /// From the last byte to the end.
    pub(super) silence: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The answer is complete, as far as HTTP tells.
    InOrder,
    /// It broke off.
    Cut,
}

/// What became of a request that an eviction may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// Up to the end mark.
    Complete,
    /// A status 429 that says so in its header.
    ToldByStatus,
    /// An event that says so, then a broken end.
    ToldThenCut,
    /// The same with an orderly end.
    ToldThenEnd,
    /// A broken end without a word.
    Cut,
    Other,
}

impl Seen {
    pub(super) async fn all_of(request: RequestBuilder) -> Self {
        Self::rest_of(request.send().await.expect("an answer"), Vec::new()).await
    }

    /// Of an answer of which `body` has been read.
    pub(super) async fn rest_of(mut response: Response, mut body: Vec<u8>) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let clock = SystemClock::start();
        let mut last = clock.now();
        let broken = loop {
            match response.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break None,
                Err(error) => break Some(format!("{error:?}")),
            }
            last = clock.now();
        };
        let end = if broken.is_some() { End::Cut } else { End::InOrder };
        let silence = clock.now().saturating_since(last);
        Self { status, headers, body, end, broken: broken.unwrap_or_default(), silence }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The error of the event that ends an evicted stream, if there is one. Nothing may follow it.
    pub(super) fn error_event(&self) -> Option<Value> {
        let text = self.text();
        let last = text.strip_suffix("\n\n")?.rsplit("\n\n").next()?;
        let data = last.lines().find_map(|line| line.strip_prefix("data: "))?;
        serde_json::from_str::<Value>(data).ok()?.get("error").filter(|error| error.is_object()).cloned()
    }

    pub(super) fn ending(&self) -> Ending {
        let told_by_header = self.headers.get(DROPPED_REASON).is_some_and(|reason| reason == "evicted");
        let told_by_event = self.error_event().is_some_and(|error| error["reason"] == "evicted");
        match (self.status, self.end) {
            (429, End::InOrder) if told_by_header => Ending::ToldByStatus,
            (200, End::Cut) if told_by_event => Ending::ToldThenCut,
            (200, End::InOrder) if told_by_event => Ending::ToldThenEnd,
            (200, End::InOrder) if self.body.ends_with(b"data: [DONE]\n\n") => Ending::Complete,
            (200, End::Cut) => Ending::Cut,
            _ => Ending::Other,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, headers, body: _, end, broken, silence } = self;
        write!(f, "{status} {headers:?} {:?}, {end:?} after {silence:?} {broken}", self.text())
    }
}
