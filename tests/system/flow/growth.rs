//! When capacity grows, those who have waited longest get it, all at once.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sluice_testkit::{CountingUpstream, EndpointsFile, Protocol, eventually};

use super::support::{Counted, OBJECTIVE, config};
use crate::support::LIMIT;

const LABEL: &str = "llm-d.ai/max-concurrency";

fn entry(pool: &Counted, server: usize, slots: usize) -> Value {
    let mut entry = EndpointsFile::entry(&format!("server-{server}"), pool.servers[server].address());
    entry["labels"] = json!({LABEL: slots.to_string()});
    entry
}

const WAVE: usize = 400;
const WAVES: usize = 5;

/// Lets 2,000 requests wait while `running` are open. Within a wave the order of arrival is Envoy's; between waves it is
/// known.
async fn fill_queue(pool: &mut Counted, objective: &str, running: usize) {
    for wave in 0..WAVES {
        let client = Protocol::Http2.client().unwrap();
        for index in 0..WAVE {
            let request = pool.chat_from(&client, &format!("wave-{wave}-{index}")).header(OBJECTIVE, objective);
            pool.send(request);
        }
        pool.wait_for(running, (WAVE * (wave + 1)) as u64).await.unwrap();
    }
}

fn tags(pool: &Counted) -> BTreeSet<String> {
    pool.servers.iter().flat_map(CountingUpstream::tags).collect()
}

#[tokio::test]
async fn with_2000_waiting_raised_limits_and_new_endpoints_let_in_the_longest_waiting_and_no_more() {
    let mut pool = Counted::start(2, &config(1, &json!({}), &json!({}))).await.unwrap();
    pool.stack.endpoints.replace_entries(&[entry(&pool, 0, 4)]).unwrap();
    pool.wait_for_endpoints(1).await.unwrap();
    for index in 0..4 {
        let request = pool.chat(&format!("first-{index}"));
        pool.send(request);
    }
    pool.wait_for(4, 0).await.unwrap();
    fill_queue(&mut pool, "standard", 4).await;

    let mut served = tags(&pool);
    let mut expect = |pool: &Counted, wave: usize| {
        served.extend((0..WAVE).map(|index| format!("wave-{wave}-{index}")));
        assert_eq!(tags(pool), served, "wave {wave} is the one that has waited longest");
    };
    pool.stack.endpoints.replace_entries(&[entry(&pool, 0, 4 + WAVE)]).unwrap();
    pool.wait_for(4 + WAVE, 1_600).await.unwrap();
    expect(&pool, 0);
    pool.stack.endpoints.replace_entries(&[entry(&pool, 0, 4 + WAVE), entry(&pool, 1, WAVE)]).unwrap();
    pool.wait_for(4 + 2 * WAVE, 1_200).await.unwrap();
    expect(&pool, 1);
    assert_eq!((pool.servers[0].peak(), pool.servers[1].peak()), (4 + WAVE, WAVE));
    assert_eq!(pool.stack.picker.flow().await.unwrap()["saturation"]["effective"], 1.0);

    // A lower limit takes nothing away, and lets nobody in until it fits again.
    pool.stack.endpoints.replace_entries(&[entry(&pool, 0, 4), entry(&pool, 1, WAVE)]).unwrap();
    eventually(LIMIT, "the picker has taken over the limit", async || {
        let page = pool.stack.picker.flow().await?;
        Ok((page["saturation"]["effective"].as_f64() > Some(1.0)).then_some(()))
    })
    .await
    .unwrap();
    pool.servers[0].release(WAVE);
    pool.wait_for(4 + WAVE, 1_200).await.unwrap();
    pool.servers[0].release(1);
    pool.wait_for(4 + WAVE, 1_199).await.unwrap();
    assert_eq!(pool.servers[0].peak(), 4 + WAVE);

    // All at once.
    pool.stack.endpoints.replace_entries(&[entry(&pool, 0, 4 + 3 * WAVE), entry(&pool, 1, WAVE)]).unwrap();
    pool.wait_for(3 + 4 * WAVE, 0).await.unwrap();
    assert_eq!((pool.servers[0].open(), pool.servers[1].peak()), (3 + 3 * WAVE, WAVE));
}

#[tokio::test]
async fn with_2000_waiting_a_raised_limit_lets_in_the_longest_waiting_up_to_their_ceiling() {
    let mut config = config(1, &json!({"usageLimitPolicyPluginRef": "reserve"}), &json!({}));
    let parameters = json!({"ceilings": [{"priority": 100, "ceiling": 1.0}, {"priority": -10, "ceiling": 0.5}]});
    let policy = json!({"name": "reserve", "type": "priority-holdback-policy", "parameters": parameters});
    config["plugins"].as_array_mut().unwrap().push(policy);
    let mut pool = Counted::start(1, &config).await.unwrap();
    pool.stack.endpoints.replace_entries(&[entry(&pool, 0, 8)]).unwrap();
    pool.wait_for_endpoints(1).await.unwrap();
    for index in 0..4 {
        let request = pool.chat_for("batch", &format!("first-{index}"));
        pool.send(request);
    }
    pool.wait_for(4, 0).await.unwrap();
    fill_queue(&mut pool, "batch", 4).await;

    // Half of the slots for batch: those that run, and one wave.
    pool.stack.endpoints.replace_entries(&[entry(&pool, 0, 2 * (4 + WAVE))]).unwrap();
    pool.wait_for(4 + WAVE, 1_600).await.unwrap();
    let first = (0..4).map(|index| format!("first-{index}"));
    let wave = (0..WAVE).map(|index| format!("wave-0-{index}"));
    assert_eq!(tags(&pool), first.chain(wave).collect());
    let gated = pool.band(-10).await.unwrap()["gated"].clone();
    assert!(gated.as_str().is_some_and(|why| why.contains("its ceiling 0.500")), "{gated}");

    // One that ends is replaced by one, and the reserve stays free for those above.
    pool.servers[0].release(1);
    pool.wait_for(4 + WAVE, 1_599).await.unwrap();
    for index in 0..20 {
        let request = pool.chat_for("interactive", &format!("interactive-{index}"));
        pool.send(request);
    }
    pool.wait_for(4 + WAVE + 20, 1_599).await.unwrap();
}
