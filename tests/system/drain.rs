//! A picker that is told to stop while it is full, to the request: what has been let in goes on, what waits is let in
//! for as long as the window lasts and then told, what does not end in time is cut.

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::join_all;
use reqwest::Response;
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock};
use sluice_testkit::{CountingUpstream, eventually};
use tokio::task::JoinSet;

use crate::flow::support::{Counted, DROPPED_REASON, config, envoy, streamed};
use crate::support::LIMIT;

const WINDOW: Duration = Duration::from_secs(3);
/// How long running streams may take after the window.
const STREAM_LIMIT: Duration = Duration::from_secs(4);

/// How a request ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Complete,
    /// With a status, and the reason that the picker gives.
    Refused(u16, Option<String>),
    /// In the middle of the answer.
    Cut,
}

async fn outcome(mut response: Response) -> Outcome {
    if !response.status().is_success() {
        let reason = response.headers().get(DROPPED_REASON);
        let reason = reason.map(|reason| reason.to_str().unwrap_or_default().to_owned());
        return Outcome::Refused(response.status().as_u16(), reason);
    }
    loop {
        match response.chunk().await {
            Ok(Some(_)) => {}
            Ok(None) => return Outcome::Complete,
            Err(_) => return Outcome::Cut,
        }
    }
}

/// Chats under way; their outcomes with their tags.
struct Chats(JoinSet<Result<(String, Outcome)>>);

impl Chats {
    fn send(&mut self, pool: &Counted, tag: String) {
        let request = pool.chat(&tag);
        self.0.spawn(async move { Ok((tag, outcome(request.send().await?).await)) });
    }

    async fn outcomes(self) -> Result<Vec<(String, Outcome)>> {
        self.0.join_all().await.into_iter().collect()
    }
}

async fn wait_for_visits(server: &CountingUpstream, count: usize) -> Result<()> {
    eventually(LIMIT, "requests at the model server", async || Ok((server.tags().len() == count).then_some(()))).await
}

#[tokio::test]
async fn ten_open_streams_and_twenty_queued_requests_end_as_promised() {
    let config = config(10, &json!({}), &json!({}));
    let arguments = ["--drain-timeout", "3s", "--stream-drain-timeout", "4s"];
    let mut pool = Counted::start_with(1, &config, &arguments, envoy().unwrap()).await.unwrap();
    let mut open = Vec::new();
    for number in 0..10 {
        open.push(streamed(pool.chat(&format!("open-{number}"))).send().await.unwrap());
    }
    let mut queued = Chats(JoinSet::new());
    for number in 0..20 {
        queued.send(&pool, format!("queued-{number}"));
        pool.wait_for(10, number + 1).await.unwrap();
    }
    let late = pool.chat("late");
    let clock = SystemClock::start();
    let server = &pool.servers[0];
    let process = pool.stack.picker.process_mut();

    let told = clock.now();
    let (exit, late, open, queued, ()) = tokio::join!(
        process.terminate(LIMIT),
        // Admission is open still.
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let outcome = outcome(late.send().await.unwrap()).await;
            (outcome, clock.now().saturating_since(told))
        },
        join_all(open.into_iter().map(outcome)),
        queued.outcomes(),
        async {
            // In the window: two streams end, and two requests take their places.
            server.release(2);
            wait_for_visits(server, 12).await.unwrap();
            // After it: six more end by themselves.
            tokio::time::sleep(WINDOW + Duration::from_secs(1)).await;
            server.release(6);
        },
    );
    let took = clock.now().saturating_since(told);

    let refused = Outcome::Refused(503, Some("rejected-shutting-down".to_owned()));
    assert_eq!(late.0, refused);
    assert!((WINDOW..WINDOW + Duration::from_secs(1)).contains(&late.1), "{late:?}");
    assert_eq!(open, [vec![Outcome::Complete; 8], vec![Outcome::Cut; 2]].concat());
    let mut queued = queued.unwrap();
    queued.sort_by_key(|(tag, _)| tag.trim_start_matches("queued-").parse::<u32>().unwrap());
    for (number, (tag, outcome)) in queued.into_iter().enumerate() {
        // Those that were let in have had no answer yet when they are cut.
        let expected = if number < 2 { Outcome::Refused(500, None) } else { refused.clone() };
        assert_eq!(outcome, expected, "{tag}");
    }
    assert_eq!(server.tags().len(), 12);

    assert!(exit.unwrap().success());
    assert!(took >= WINDOW + STREAM_LIMIT && took < WINDOW + STREAM_LIMIT + Duration::from_secs(3), "{took:?}");
    let log = pool.stack.picker.process().output().lines();
    let entry = |message: &str| -> Value {
        let line = log.iter().find(|line| line.contains(message));
        serde_json::from_str(line.context(message.to_owned()).unwrap()).unwrap()
    };
    assert_eq!(entry("no new streams")["streams"], 29, "ten that run, nineteen that wait");
    assert_eq!(entry("streams cut")["streams"], 4);
    assert_eq!(entry("streams cut")["gone"], true, "what they hold is given back");
}

#[tokio::test]
async fn a_picker_with_nothing_to_do_is_gone_after_its_window() {
    let arguments = ["--drain-timeout", "1s", "--stream-drain-timeout", "1h"];
    let config = config(1, &json!({}), &json!({}));
    let mut pool = Counted::start_with(1, &config, &arguments, envoy().unwrap()).await.unwrap();
    let one = pool.chat("one");
    pool.servers[0].release(1);
    assert_eq!(outcome(one.send().await.unwrap()).await, Outcome::Complete);
    let clock = SystemClock::start();
    // Envoy keeps its connection open.
    let exit = pool.stack.picker.process_mut().terminate(LIMIT).await.unwrap();
    let took = clock.now().as_nanos();
    assert!(exit.success());
    assert!(u128::from(took) < Duration::from_secs(3).as_nanos(), "{took} ns");
}
