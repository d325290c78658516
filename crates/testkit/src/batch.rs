//! A client for work that nobody watches: a list of completions, each with a deadline.
//!
//! It comes back after refusals, goes on where a stream was cut or evicted, and ends every item exactly once.
//!
//! ```text
//!            begin: what to ask for
//! Progress ─────────────────────────> Sender ─────> gateway
//!     ^                                 │
//!     └──── read, refused, cut ─────────┘
//!     │
//!     └─> read on │ ask again after a while │ finished
//! ```
//!
//! `Progress` decides, and knows no network and no clock; a `Sender` carries one attempt.

mod backoff;
mod progress;
mod sender;

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::StdRng;
use sluice_core::{SystemClock, Time};
use tokio::task::JoinSet;

use self::progress::{Next, Progress};
use self::sender::Sender;
use crate::Protocol;

pub use self::backoff::Backoff;

/// A completion to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Says which one it is; not sent.
    pub id: String,
    pub prompt: String,
    pub max_tokens: NonZeroU32,
    /// On the client's clock. It is sent with each attempt as the milliseconds that are left, and 0 once it has
    /// passed: late work is still done.
    pub deadline: Time,
}

/// How items are sent, and how much is borne.
///
/// A token is an event with text in a stream, and a word in a prompt, as with the simulated model servers.
#[derive(Clone, Debug)]
pub struct BatchClient {
    /// Where completions are sent: `http://127.0.0.1:8081/v1/completions`.
    pub url: String,
    pub model: String,
    pub protocol: Protocol,
    pub objective: Option<String>,
    pub fairness_id: Option<String>,
    /// Texts go on to `max_tokens` whether or not the model would end them.
    pub ignore_eos: bool,
    /// How many items are worked on at once, in the order of the list; all of them if none. Waiting to try again is
    /// work: an item that was begun is not overtaken by one that was not.
    pub concurrency: Option<NonZeroUsize>,
    pub backoff: Backoff,
    /// After so many attempts in a row without a token an item fails.
    pub max_fruitless: NonZeroU32,
    /// The longest wait for an answer, which includes the gateway's queue, and for each event after it. Silence
    /// beyond it counts as a cut.
    pub silence: Duration,
    /// Makes the random waits repeatable.
    pub seed: u64,
    pub clock: SystemClock,
}

impl BatchClient {
    /// A client over HTTP/1.1 that sends everything at once and is patient.
    pub fn new(url: &str, model: &str, clock: SystemClock) -> Self {
        const MAX_FRUITLESS: NonZeroU32 = NonZeroU32::new(100).expect("not zero");
        Self {
            url: url.to_owned(),
            model: model.to_owned(),
            protocol: Protocol::Http1,
            objective: None,
            fairness_id: None,
            ignore_eos: true,
            concurrency: None,
            backoff: Backoff::default(),
            max_fruitless: MAX_FRUITLESS,
            silence: Duration::from_secs(300),
            seed: 0,
            clock,
        }
    }

    /// Works until every item has ended and returns how, in their order. An error is a setting that cannot be sent.
    /// Dropping the future ends every request.
    pub async fn run(&self, items: Vec<Item>) -> Result<Vec<Result<Final, Failure>>> {
        let sender = Arc::new(Sender::new(self)?);
        let limit = self.concurrency.map_or(usize::MAX, NonZeroUsize::get);
        let mut ends = vec![None; items.len()];
        let mut working = JoinSet::new();
        for (index, item) in items.into_iter().enumerate() {
            if working.len() >= limit {
                place(working.join_next().await, &mut ends)?;
            }
            let progress = Progress::new(item, self.backoff, self.max_fruitless);
            let random = StdRng::seed_from_u64(self.seed.wrapping_add(index as u64));
            let sender = Arc::clone(&sender);
            working.spawn(async move { (index, work(&sender, progress, random).await) });
        }
        while !working.is_empty() {
            place(working.join_next().await, &mut ends)?;
        }
        Ok(ends.into_iter().flatten().collect())
    }
}

/// An item that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Final {
    pub item: Item,
    /// Everything after the prompt, whatever pieces it came in.
    pub text: String,
    pub tokens: u32,
    pub cost: Cost,
    pub finished_at: Time,
}

impl Final {
    pub fn met_deadline(&self) -> bool {
        self.finished_at <= self.item.deadline
    }
}

/// An item that was given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("item {id} failed after {} attempts and {tokens} tokens: {cause}", cost.attempts)]
pub struct Failure {
    pub id: String,
    /// Tokens that had come.
    pub tokens: u32,
    pub cost: Cost,
    pub cause: FailureCause,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailureCause {
    /// An answer that asking again would not change.
    #[error("refused with status {status}: {message}")]
    Refused { status: u16, message: String },
    /// Too many attempts in a row without a token. `last` says what became of the last one.
    #[error("no token in {attempts} attempts, lastly: {last}")]
    Fruitless { attempts: u32, last: String },
}

/// What it took to bring an item to its end. Each attempt but a last, successful one is a refusal, an eviction or a
/// cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub attempts: u32,
    /// Answers other than 200, and errors in a stream, unless they were evictions.
    pub refusals: u32,
    /// The gateway took the slot back and said so.
    pub evictions: u32,
    /// No answer, or a stream that ended without a word.
    pub cuts: u32,
    /// Tokens that a model server has read a second time: prompt and saved text, for each attempt that went on with
    /// a text. What it computed and never sent is not seen from here.
    pub wasted_tokens: u64,
}

type Ended = (usize, Result<Final, Failure>);

fn place(
    joined: Option<Result<Ended, tokio::task::JoinError>>,
    ends: &mut [Option<Result<Final, Failure>>],
) -> Result<()> {
    if let Some(joined) = joined {
        let (index, end) = joined.context("working on an item")?;
        ends[index] = Some(end);
    }
    Ok(())
}

async fn work(sender: &Sender, mut progress: Progress, mut random: StdRng) -> Result<Final, Failure> {
    loop {
        match sender.attempt(progress, &mut random).await {
            Next::Retry { progress: rest, after } => {
                tokio::time::sleep(after).await;
                progress = rest;
            }
            Next::Finish(end) => return end,
        }
    }
}
