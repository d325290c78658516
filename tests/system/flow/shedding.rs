//! What flow control is for: batch work waits for room instead of failing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock, Time};
use tokio::task::JoinSet;

use super::support::{Counted, config, for_millis};
use crate::support::LIMIT;

/// How often each status came while 256 batch clients, each with one request at a time, met a pool of 16 slots: for
/// two seconds, and for as long as it takes to get `answers` of them.
async fn answers(config: &Value, answers: usize) -> BTreeMap<u16, u64> {
    const RUN: Duration = Duration::from_secs(2);
    const CLIENTS: usize = 256;
    let pool = Counted::start(2, config).await.unwrap();
    let clock = SystemClock::start();
    let count = Arc::new(AtomicUsize::new(0));
    let mut loops = JoinSet::new();
    for _ in 0..CLIENTS {
        let request = for_millis(pool.chat_for("batch", "batch"), 50);
        let count = Arc::clone(&count);
        loops.spawn(async move {
            let mut statuses = Vec::new();
            loop {
                let elapsed = clock.now().saturating_since(Time::ZERO);
                if elapsed > LIMIT || elapsed > RUN && count.load(Ordering::Relaxed) >= answers {
                    return statuses;
                }
                statuses.push(request.try_clone().unwrap().send().await.unwrap().status().as_u16());
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut counts = BTreeMap::new();
    for status in loops.join_all().await.into_iter().flatten() {
        *counts.entry(status).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn without_flow_control_batch_work_is_refused_by_the_thousand_and_with_it_never() {
    let on = config(8, &json!({}), &json!({}));
    let mut off = on.clone();
    off["featureGates"] = json!([]);

    let off = answers(&off, 2_500).await;
    println!("without flow control: {off:?}");
    assert!(off[&429] >= 1_000, "{off:?}");
    assert_eq!(off.keys().copied().collect::<Vec<_>>(), [200, 429], "{off:?}");

    let on = answers(&on, 0).await;
    println!("with flow control: {on:?}");
    assert_eq!(on.keys().copied().collect::<Vec<_>>(), [200], "{on:?}");
}
