use std::time::Duration;

use anyhow::{Result, bail};
use reqwest::Client;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock};

use crate::{Protocol, SseEvents};

/// Sends the chats of one class.
#[derive(Debug)]
pub(super) struct Sender {
    client: Client,
    url: String,
    model: String,
    headers: HeaderMap,
    clock: SystemClock,
}

/// What became of a chat, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The whole stream came.
    Served {
        /// From sending the request to the first piece of text.
        ttft: Duration,
    },
    /// Any status but 200.
    Refused,
    /// No answer, or a stream without its end.
    Broken,
}

impl Sender {
    pub(super) fn new(url: &str, model: &str, headers: &[(&'static str, &'static str)]) -> Result<Self> {
        let mut all = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        for (name, value) in headers {
            all.insert(HeaderName::try_from(*name)?, HeaderValue::try_from(*value)?);
        }
        Ok(Self {
            client: Protocol::Http1.client()?,
            url: url.to_owned(),
            model: model.to_owned(),
            headers: all,
            clock: SystemClock::start(),
        })
    }

    /// Asks for exactly `tokens` tokens and reads the stream to its end.
    pub(super) async fn send(&self, tokens: u32) -> Answer {
        let sent = self.clock.now();
        let request = self.client.post(&self.url).headers(self.headers.clone()).body(self.body(tokens).to_string());
        let Ok(response) = request.send().await else { return Answer::Broken };
        if response.status() != 200 {
            return Answer::Refused;
        }
        let mut events = SseEvents::of(response);
        let ttft = match first_text(&mut events).await {
            Ok(()) => self.clock.now().saturating_since(sent),
            Err(_) => return Answer::Broken,
        };
        match events.collect().await {
            Ok(rest) if rest.last().is_some_and(|event| event == "[DONE]") => Answer::Served { ttft },
            Ok(_) | Err(_) => Answer::Broken,
        }
    }

    fn body(&self, tokens: u32) -> Value {
        json!({
            "model": self.model,
            "messages": [{"role": "user", "content": "Tell me about sluices."}],
            "max_tokens": tokens,
            "ignore_eos": true,
            "stream": true,
        })
    }
}

/// Reads up to the first event with text in it; servers begin with one that names the role only.
async fn first_text(events: &mut SseEvents) -> Result<()> {
    while let Some(event) = events.next().await? {
        let Ok(chunk) = serde_json::from_str::<Value>(&event) else { bail!("no chunk of a chat: {event}") };
        if chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()) {
            return Ok(());
        }
    }
    bail!("a stream without text")
}
