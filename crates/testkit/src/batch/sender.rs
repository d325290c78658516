//! One attempt over HTTP.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Result, bail};
use rand::rngs::StdRng;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use serde_json::json;
use sluice_core::{Clock, SystemClock};

use super::BatchClient;
use super::progress::{Ask, Next, Progress, Refusal};
use crate::SseEvents;

const OBJECTIVE: &str = "x-llm-d-inference-objective";
const FAIRNESS_ID: &str = "x-llm-d-inference-fairness-id";
const REMAINING: &str = "x-llm-d-slo-ttft-ms";
const DROP_REASON: &str = "x-llm-d-request-dropped-reason";

/// How much of a refusal's body an error message shows.
const MAX_MESSAGE: usize = 300;

#[derive(Debug)]
pub(super) struct Sender {
    client: Client,
    url: String,
    model: String,
    headers: HeaderMap,
    ignore_eos: bool,
    silence: Duration,
    clock: SystemClock,
}

impl Sender {
    pub(super) fn new(settings: &BatchClient) -> Result<Self> {
        let BatchClient { url, model, protocol, objective, fairness_id, ignore_eos, silence, clock, .. } = settings;
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        for (name, value) in [(OBJECTIVE, objective), (FAIRNESS_ID, fairness_id)] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::try_from(value)?);
            }
        }
        Ok(Self {
            client: protocol.client()?,
            url: url.clone(),
            model: model.clone(),
            headers,
            ignore_eos: *ignore_eos,
            silence: *silence,
            clock: *clock,
        })
    }

    pub(super) async fn attempt(&self, mut progress: Progress, random: &mut StdRng) -> Next {
        let ask = progress.begin(self.clock.now());
        let response = match self.heard(self.send(&ask)).await {
            Ok(response) => response,
            Err(error) => return progress.cut(format!("no answer: {error:#}"), random),
        };
        if response.status() != StatusCode::OK {
            return progress.refused(self.refusal(response).await, random);
        }
        let mut events = SseEvents::of(response);
        loop {
            let data = match self.heard(events.next()).await {
                Ok(Some(data)) => data,
                Ok(None) => return progress.cut("the stream ended early", random),
                Err(error) => return progress.cut(format!("the stream was cut: {error:#}"), random),
            };
            match progress.read(&data, self.clock.now(), random) {
                ControlFlow::Continue(rest) => progress = rest,
                ControlFlow::Break(next) => {
                    if matches!(next, Next::Finish(Ok(_))) {
                        leave(events).await;
                    }
                    return next;
                }
            }
        }
    }

    async fn send(&self, ask: &Ask) -> Result<Response> {
        let Ask { prompt, max_tokens, remaining } = ask;
        let body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": self.ignore_eos,
            "stream": true,
        });
        let request = self.client.post(&self.url).headers(self.headers.clone());
        let request = request.header(REMAINING, remaining.as_millis().to_string());
        Ok(request.body(body.to_string()).send().await?)
    }

    async fn refusal(&self, response: Response) -> Refusal {
        let status = response.status().as_u16();
        let reason = text(response.headers(), DROP_REASON).map(str::to_owned);
        // The other form of the header, a date, is left to the back-off: clocks differ.
        let retry_after =
            text(response.headers(), RETRY_AFTER.as_str()).and_then(|seconds| seconds.trim().parse().ok());
        let body = self.heard(async { Ok(response.text().await?) }).await.unwrap_or_default();
        let message = body.chars().take(MAX_MESSAGE).collect();
        Refusal { status, reason, retry_after: retry_after.map(Duration::from_secs), message }
    }

    async fn heard<T>(&self, what: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(self.silence, what).await {
            Ok(heard) => heard,
            Err(_) => bail!("silence for {:?}", self.silence),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Hears a finished stream out, since to leave before its last byte looks like giving up. Not for long: everything
/// that matters has been said.
async fn leave(events: SseEvents) {
    const LIMIT: Duration = Duration::from_secs(1);
    tokio::time::timeout(LIMIT, events.collect()).await.ok();
}
