//! Clients that put a pool under load, class by class, and what they saw.

mod chat;
mod tally;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sluice_core::{Clock, SystemClock, Time};
use tokio::task::JoinSet;

use self::chat::{Answer, Sender};
pub use self::tally::Tally;

/// How long a client waits before it tries again after an answer that was not what it asked for.
const BACKOFF: Duration = Duration::from_millis(500);

/// Streamed chats of several classes, sent side by side.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Where chats are sent: `http://127.0.0.1:8081/v1/chat/completions`.
    pub url: &'a str,
    pub model: &'a str,
    pub classes: &'a [Class],
    /// For how long requests are sent.
    pub duration: Duration,
    /// Makes the random choices repeatable.
    pub seed: u64,
}

/// Clients that send requests of one kind.
#[derive(Clone, Debug)]
pub struct Class {
    pub name: &'static str,
    pub headers: Vec<(&'static str, &'static str)>,
    pub arrivals: Arrivals,
    /// How many tokens a chat asks for, chosen anew for each, all numbers alike.
    pub tokens: RangeInclusive<u32>,
}

/// When a class sends.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// Open loop: so many at once, again and again, whether or not there were answers; the first ones right away.
    Open { at_once: usize, every: Duration },
    /// Closed loop: so many clients, each with one request after the other.
    Closed { clients: usize },
}

impl Load<'_> {
    /// Sends, waits until everything that was sent has come to its end, and returns what became of each class, in
    /// their order. Dropping the future ends every request.
    pub async fn run(&self) -> Result<Vec<Tally>> {
        let mut parts = JoinSet::new();
        for (index, class) in self.classes.iter().enumerate() {
            let sender = Arc::new(Sender::new(self.url, self.model, &class.headers)?);
            let random = StdRng::seed_from_u64(self.seed.wrapping_add(index as u64));
            let (arrivals, tokens, duration) = (class.arrivals, class.tokens.clone(), self.duration);
            parts.spawn(async move {
                let tally = match arrivals {
                    Arrivals::Open { at_once, every } => {
                        open_loop(sender, random, tokens, at_once, every, duration).await
                    }
                    Arrivals::Closed { clients } => closed_loop(sender, random, tokens, clients, duration).await,
                };
                (index, tally)
            });
        }
        let mut tallies = vec![None; self.classes.len()];
        while let Some(part) = parts.join_next().await {
            let (index, tally) = part.context("a class of clients")?;
            tallies[index] = Some(tally);
        }
        Ok(tallies.into_iter().flatten().collect())
    }
}

async fn open_loop(
    sender: Arc<Sender>,
    mut random: StdRng,
    tokens: RangeInclusive<u32>,
    at_once: usize,
    every: Duration,
    duration: Duration,
) -> Tally {
    let mut answers = JoinSet::new();
    // Ticks that were missed are made up for: a machine that is too slow must not make the load lighter.
    let mut ticks = tokio::time::interval(every);
    for _ in 0..duration.as_nanos().div_ceil(every.as_nanos()) {
        ticks.tick().await;
        for _ in 0..at_once {
            let (sender, length) = (Arc::clone(&sender), random.random_range(tokens.clone()));
            answers.spawn(async move { sender.send(length).await });
        }
    }
    let mut tally = Tally::default();
    for answer in answers.join_all().await {
        tally.count(answer);
    }
    tally
}

async fn closed_loop(
    sender: Arc<Sender>,
    mut random: StdRng,
    tokens: RangeInclusive<u32>,
    clients: usize,
    duration: Duration,
) -> Tally {
    let mut loops = JoinSet::new();
    for _ in 0..clients {
        let (sender, tokens) = (Arc::clone(&sender), tokens.clone());
        let mut random = StdRng::seed_from_u64(random.random());
        loops.spawn(async move {
            let clock = SystemClock::start();
            let mut tally = Tally::default();
            while clock.now().saturating_since(Time::ZERO) < duration {
                let answer = sender.send(random.random_range(tokens.clone())).await;
                tally.count(answer);
                if !matches!(answer, Answer::Served { .. }) {
                    tokio::time::sleep(BACKOFF).await;
                }
            }
            tally
        });
    }
    let mut all = Tally::default();
    for part in loops.join_all().await {
        all.add(part);
    }
    all
}

#[cfg(test)]
#[path = "load/load_tests.rs"]
mod tests;
