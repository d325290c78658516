//! How soon a newcomer is served by an engine that was full.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use sluice_testkit::{
    Arrivals, Class, EnvoyConfig, Load, PickerConfig, Protocol, Simulator, Stack, Template, eventually, workspace,
};
use tokio::task::JoinSet;

use super::rig::evicting;
use crate::flow::support::OBJECTIVE;
use crate::support::{CHAT, LIMIT, MODEL, chat, picker, post};

/// An engine with a step long enough to be told from everything else.
const STEP: Duration = Duration::from_millis(200);
const SLOTS: u32 = 32;
const FIRST_TOKENS: &str = "vllm:time_to_first_token_seconds_count";
/// Of all requests together.
const FIRST_TOKEN_SECONDS: &str = "vllm:time_to_first_token_seconds_sum";

async fn count(server: &Simulator, series: &str) -> Result<i64> {
    server.metrics().await?.count(series, &[]).with_context(|| format!("no {series}"))
}

async fn seconds(server: &Simulator) -> Result<f64> {
    server.metrics().await?.sum(FIRST_TOKEN_SECONDS, &[]).context("no times to first tokens")
}

#[tokio::test]
async fn a_newcomer_waits_one_step_in_the_engine_and_its_first_token_takes_another() {
    let [program] = workspace::build_programs(["model-server-sim"]).unwrap();
    let (slots, step) = (SLOTS.to_string(), STEP.as_millis().to_string());
    let engine = ["--model", MODEL, "--max-num-seqs", &slots, "--time-per-output-token", &step];
    let server = Simulator::start(&program, &engine).await.unwrap();
    let config = evicting(SLOTS, &json!({}));
    let config = |endpoints: &Path| PickerConfig::custom(&config, endpoints);
    let envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    let stack = Stack::start_configured(picker(), &[], config, envoy, &[server.address()]).await.unwrap();

    let client = Protocol::Http2.client().unwrap();
    let url = stack.envoy.url(CHAT);
    let mut batch = JoinSet::new();
    for _ in 0..SLOTS {
        let request = post(&client, &url, &chat("go on", 20_000, true)).header(OBJECTIVE, "batch");
        batch.spawn(async move { request.send().await.unwrap().bytes().await });
    }
    eventually(LIMIT, "the engine is full, and all have begun", async || {
        Ok((count(&server, FIRST_TOKENS).await? == 32).then_some(()))
    })
    .await
    .unwrap();

    let before = seconds(&server).await.unwrap();
    // One every few steps, and each evicts one.
    let arrivals = Arrivals::Open { at_once: 1, every: STEP * 3 };
    let headers = vec![(OBJECTIVE, "interactive")];
    let classes = [Class { name: "interactive", headers, arrivals, tokens: 30..=30 }];
    let load = Load { url: &url, model: MODEL, classes: &classes, duration: STEP * 3 * 8, seed: 1 };
    let tally = load.run().await.unwrap().pop().unwrap();
    println!("times to first token of eight newcomers: {:?}", tally.ttft);
    assert_eq!((tally.served, tally.sent()), (8, 8));
    // The engine's own figures, which leave out the way there and back: the rest of the step that ran, and one of its
    // own. All requests before found a free slot.
    let in_queue = (seconds(&server).await.unwrap() - before) / 8.0 - STEP.as_secs_f64();
    println!("mean time in the queue of the engine: {in_queue:.3} s");
    assert!(in_queue <= STEP.as_secs_f64(), "{in_queue} s");
    let page = server.metrics().await.unwrap();
    let in_time = page.count("vllm:time_to_first_token_seconds_bucket", &[("le", "0.5")]);
    assert_eq!((in_time, page.count(FIRST_TOKENS, &[])), (Some(40), Some(40)));
    let metrics = stack.picker.metrics().await.unwrap();
    assert_eq!(metrics.count("llm_d_epp_flow_control_revocations_issued_total", &[]), Some(8));
    assert_eq!(count(&server, "vllm:num_requests_running").await.unwrap(), 24, "eight batch requests had to go");
}
