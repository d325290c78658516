//! What flow control is for: batch work waits for room instead of failing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock, Time};
use tokio::task::JoinSet;

use super::support::{Counted, config, for_millis};

/// How often each status came while 256 batch clients, each with one request at a time, met a pool of 16 slots.
async fn answers(config: &Value) -> BTreeMap<u16, u64> {
    const RUN: Duration = Duration::from_secs(2);
    const CLIENTS: usize = 256;
    let pool = Counted::start(2, config).await.unwrap();
    let clock = SystemClock::start();
    let mut loops = JoinSet::new();
    for _ in 0..CLIENTS {
        let request = for_millis(pool.chat_for("batch", "batch"), 50);
        loops.spawn(async move {
            let mut answers = Vec::new();
            while clock.now().saturating_since(Time::ZERO) < RUN {
                answers.push(request.try_clone().unwrap().send().await.unwrap().status().as_u16());
            }
            answers
        });
    }
    let mut counts = BTreeMap::new();
    for status in loops.join_all().await.into_iter().flatten() {
        *counts.entry(status).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn without_flow_control_batch_work_is_refused_by_the_hundred_and_with_it_never() {
    let on = config(8, &json!({}), &json!({}));
    let mut off = on.clone();
    off["featureGates"] = json!([]);

    let off = answers(&off).await;
    println!("without flow control: {off:?}");
    assert!(off[&429] >= 240, "{off:?}");
    assert_eq!(off.keys().copied().collect::<Vec<_>>(), [200, 429], "{off:?}");

    let on = answers(&on).await;
    println!("with flow control: {on:?}");
    assert_eq!(on.keys().copied().collect::<Vec<_>>(), [200], "{on:?}");
}
