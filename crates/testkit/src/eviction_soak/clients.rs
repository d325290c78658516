use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use model_server_sim::text::expected_text;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::{Client, RequestBuilder};
use serde_json::json;
use sluice_core::{Clock, SystemClock};

use super::{EvictionSoakReport, MODEL, Progress, SEED};
use crate::batch::{Backoff, BatchClient, Cost, Final, Item};
use crate::{Protocol, SseEvents};

/// Works off one list of items after the other.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) url: String,
    pub(super) protocol: Protocol,
    pub(super) clock: SystemClock,
    pub(super) seed: u64,
}

impl Batch {
    /// Together with those of the other protocol more than there are slots.
    const AT_ONCE: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
    const LIST: u64 = 64;

    pub(super) async fn run(self, progress: Arc<Progress>) -> Result<()> {
        let mut random = StdRng::seed_from_u64(self.seed);
        let client = BatchClient {
            protocol: self.protocol,
            objective: Some("batch".to_owned()),
            concurrency: Some(Self::AT_ONCE),
            // Impatient, so that there is always something to evict.
            backoff: Backoff { first: Duration::from_millis(10), longest: Duration::from_millis(40) },
            seed: self.seed,
            ..BatchClient::new(&self.url, MODEL, self.clock)
        };
        let mut list = 0;
        while !progress.is_over() {
            let items: Vec<Item> = (0..Self::LIST).map(|number| self.item(list, number, &mut random)).collect();
            list += 1;
            let ends = client.run(items.clone()).await?;
            ensure!(ends.len() == items.len(), "{} ends for {} items", ends.len(), items.len());
            for (item, end) in items.iter().zip(ends) {
                progress.add(judged(item, &end?)?);
            }
        }
        Ok(())
    }

    /// As often short, so that evictions meet ends, as long.
    fn item(&self, list: u64, number: u64, random: &mut StdRng) -> Item {
        let tokens = if random.random_bool(0.5) { random.random_range(1..8) } else { random.random_range(8..80) };
        Item {
            id: format!("{list}-{number}"),
            prompt: format!("text {number} of list {list} for {:?}", self.protocol),
            max_tokens: NonZeroU32::MIN.saturating_add(tokens - 1),
            deadline: self.clock.now().saturating_add(slack(random)),
        }
    }
}

/// What an item contributes, if it ended as itself and with what the model writes.
fn judged(item: &Item, done: &Final) -> Result<EvictionSoakReport> {
    let Final { item: ended, text, tokens, cost, finished_at: _ } = done;
    let expected = item.max_tokens.get();
    ensure!(ended == item, "{} ended in the place of {}", ended.id, item.id);
    ensure!(*tokens == expected, "{} ended with {tokens} tokens instead of {expected}", item.id);
    ensure!(*text == expected_text(SEED, &item.prompt, expected), "{} ended with another text: {text}", item.id);
    let Cost { attempts, refusals, evictions, cuts, wasted_tokens } = *cost;
    ensure!(refusals == 0, "{} was refused {refusals} times", item.id);
    Ok(EvictionSoakReport {
        items: 1,
        attempts: attempts.into(),
        told: evictions.into(),
        cuts: cuts.into(),
        wasted_tokens,
        ..EvictionSoakReport::default()
    })
}

/// How long a batch request could wait, drawn by lot: by that victims are chosen.
fn slack(random: &mut StdRng) -> Duration {
    Duration::from_millis(random.random_range(0..60_000))
}

/// Sends batch chats and leaves each at a random moment, as if it had been nothing.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) seed: u64,
}

impl Leaving {
    pub(super) async fn run(self, progress: Arc<Progress>) -> Result<()> {
        let mut random = StdRng::seed_from_u64(self.seed);
        while !progress.is_over() {
            let request = chat(&self.client, &self.url, "batch", random.random_range(1..40));
            let request = request.header("x-llm-d-slo-ttft-ms", slack(&mut random).as_millis().to_string());
            let patience = Duration::from_millis(random.random_range(0..150));
            // However it ends: the picker's books are what counts.
            let answer = async {
                drop(SseEvents::of(request.send().await?).collect().await);
                anyhow::Ok(())
            };
            let left = u64::from(tokio::time::timeout(patience, answer).await.is_err());
            progress.add(EvictionSoakReport { left, ..EvictionSoakReport::default() });
            tokio::time::sleep(Duration::from_millis(random.random_range(0..50))).await;
        }
        Ok(())
    }
}

/// Sends short chats that have to be served.
#[derive(Debug)]
pub(super) struct Urgent {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) seed: u64,
}

impl Urgent {
    pub(super) async fn run(self, progress: Arc<Progress>) -> Result<()> {
        let mut random = StdRng::seed_from_u64(self.seed);
        while !progress.is_over() {
            let request = chat(&self.client, &self.url, "interactive", random.random_range(1..5));
            let response = request.send().await?.error_for_status().context("an urgent request")?;
            let events = SseEvents::of(response).collect().await.context("the answer to an urgent request")?;
            ensure!(events.last().is_some_and(|last| last == "[DONE]"), "an urgent request ended with {events:?}");
            progress.add(EvictionSoakReport { urgent: 1, ..EvictionSoakReport::default() });
            tokio::time::sleep(Duration::from_millis(random.random_range(0..80))).await;
        }
        Ok(())
    }
}

/// A streamed chat of exactly so many tokens.
pub(super) fn chat(client: &Client, url: &str, objective: &str, tokens: u32) -> RequestBuilder {
    let body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me about sluices."}],
        "max_tokens": tokens,
        "ignore_eos": true,
        "stream": true,
    });
    let request = client.post(url).header("content-type", "application/json");
    request.header("x-llm-d-inference-objective", objective).body(body.to_string())
}
