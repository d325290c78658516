//! One item on its way: what it has got, and what it does about what befalls it.

use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::time::Duration;

use rand::rngs::StdRng;
use serde::Deserialize;
use serde_json::Value;
use sluice_core::{DropReason, Time};

use super::{Backoff, Cost, Failure, FailureCause, Final, Item};

/// An item that has not ended. Whatever ends it or the present attempt consumes it, so that it ends once.
#[derive(Debug)]
pub(super) struct Progress {
    item: Item,
    backoff: Backoff,
    max_fruitless: NonZeroU32,
    text: String,
    tokens: u32,
    /// Those that were there when the present attempt began.
    tokens_at_begin: u32,
    /// Attempts in a row without a token.
    fruitless: u32,
    cost: Cost,
}

/// What an attempt asks for: the rest of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) prompt: String,
    pub(super) max_tokens: u32,
    /// Until the deadline.
    pub(super) remaining: Duration,
}

/// A refusal of a request, or of going on with its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// As in `x-llm-d-request-dropped-reason`.
    pub(super) reason: Option<String>,
    pub(super) retry_after: Option<Duration>,
    pub(super) message: String,
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Next {
    Retry { progress: Progress, after: Duration },
    Finish(Result<Final, Failure>),
}

impl Progress {
    pub(super) fn new(item: Item, backoff: Backoff, max_fruitless: NonZeroU32) -> Self {
        let (text, cost) = (String::new(), Cost::default());
        Self { item, backoff, max_fruitless, text, tokens: 0, tokens_at_begin: 0, fruitless: 0, cost }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self, now: Time) -> Ask {
        self.cost.attempts += 1;
        self.tokens_at_begin = self.tokens;
        Ask {
            prompt: format!("{}{}", self.item.prompt, self.text),
            max_tokens: self.item.max_tokens.get().saturating_sub(self.tokens),
            remaining: self.item.deadline.saturating_since(now),
        }
    }

    /// An event of the stream came, with this data. Continues if more is to be read; otherwise nothing that may
    /// still come changes how the attempt ended.
    pub(super) fn read(mut self, data: &str, now: Time, random: &mut StdRng) -> ControlFlow<Next, Self> {
        if data == "[DONE]" {
            return ControlFlow::Break(self.finish(now));
        }
        // To go on after something that was not understood might lose a token.
        let Ok(event) = serde_json::from_str(data) else {
            return ControlFlow::Break(self.cut(format!("an event that is no part of a completion: {data}"), random));
        };
        let choice = match event {
            Event::Error { error } => return ControlFlow::Break(self.refused(error.into(), random)),
            Event::Chunk { choices } => choices.into_iter().next(),
        };
        let Some(Choice { text, finish_reason }) = choice else { return ControlFlow::Continue(self) };
        if !text.is_empty() {
            self.take(&text);
        }
        match finish_reason.as_deref() {
            _ if self.tokens >= self.item.max_tokens.get() => ControlFlow::Break(self.finish(now)),
            Some(broken @ ("abort" | "error")) => {
                ControlFlow::Break(self.cut(format!("the model server ended with `{broken}`"), random))
            }
            Some(_) => ControlFlow::Break(self.finish(now)),
            None => ControlFlow::Continue(self),
        }
    }

    /// The request was refused, or the stream was ended by an error in it.
    pub(super) fn refused(mut self, refusal: Refusal, random: &mut StdRng) -> Next {
        let evicted = refusal.is_eviction();
        if evicted {
            self.cost.evictions += 1;
        } else {
            self.cost.refusals += 1;
        }
        let may_retry = refusal.may_retry();
        let Refusal { status, reason, retry_after, message } = refusal;
        if !may_retry {
            return Next::Finish(Err(self.fail(FailureCause::Refused { status, message })));
        }
        // Who was evicted had been let in: there is no crowd at the door to stay away from.
        let crowded = !evicted;
        self.retry(crowded, retry_after, random, || format!("{status} {}: {message}", reason.unwrap_or_default()))
    }

    /// No answer came, or the stream ended without saying that the text is complete.
    pub(super) fn cut(mut self, what: impl Into<String>, random: &mut StdRng) -> Next {
        self.cost.cuts += 1;
        self.retry(true, None, random, || what.into())
    }

    fn take(&mut self, text: &str) {
        let went_on = self.tokens == self.tokens_at_begin && self.tokens > 0;
        if went_on {
            let prompt = self.item.prompt.split_ascii_whitespace().count() as u64;
            self.cost.wasted_tokens += prompt + u64::from(self.tokens);
        }
        self.text.push_str(text);
        self.tokens += 1;
    }

    fn retry(
        mut self,
        crowded: bool,
        wish: Option<Duration>,
        random: &mut StdRng,
        what: impl FnOnce() -> String,
    ) -> Next {
        self.fruitless = if self.tokens > self.tokens_at_begin { 0 } else { self.fruitless + 1 };
        if self.fruitless >= self.max_fruitless.get() {
            let cause = FailureCause::Fruitless { attempts: self.fruitless, last: what() };
            return Next::Finish(Err(self.fail(cause)));
        }
        let doublings = if crowded { self.fruitless.saturating_sub(1) } else { 0 };
        let after = self.backoff.wait(doublings, wish, random);
        Next::Retry { progress: self, after }
    }

    fn finish(self, now: Time) -> Next {
        let Self { item, text, tokens, cost, .. } = self;
        Next::Finish(Ok(Final { item, text, tokens, cost, finished_at: now }))
    }

    fn fail(self, cause: FailureCause) -> Failure {
        Failure { id: self.item.id, tokens: self.tokens, cost: self.cost, cause }
    }
}

impl Refusal {
    fn is_eviction(&self) -> bool {
        self.reason.as_deref() == Some(DropReason::Evicted.as_str())
    }

    /// Whether the same request may be served at another time.
    fn may_retry(&self) -> bool {
        matches!(self.status, 408 | 429 | 500..)
    }
}

/// The data of an event, but for the end mark.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Event {
    Error { error: StreamError },
    Chunk { choices: Vec<Choice> },
}

/// A choice without text is one of a chat, which cannot be gone on with from its text alone.
#[derive(Debug, Deserialize)]
struct Choice {
    text: String,
    finish_reason: Option<String>,
}

/// An error in the place of the rest of the stream.
#[derive(Debug, Deserialize)]
struct StreamError {
    #[serde(default)]
    message: String,
    code: Option<Value>,
    reason: Option<String>,
    retry_after_ms: Option<u64>,
}

impl From<StreamError> for Refusal {
    fn from(error: StreamError) -> Self {
        let StreamError { message, code, reason, retry_after_ms } = error;
        let code = code.as_ref().and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let retry_after = retry_after_ms.map(Duration::from_millis);
        // Without a code it is the server that failed in the middle of its work.
        Self { status: code.unwrap_or(500), reason, retry_after, message }
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
