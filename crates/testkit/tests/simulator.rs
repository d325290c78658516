//! The simulator launcher, with the real simulator.

use std::time::Duration;

use anyhow::Result;
use reqwest::Response;
use serde_json::json;
use sluice_testkit::{Protocol, Simulator, SseEvents, eventually, workspace};

const LIMIT: Duration = Duration::from_secs(10);

async fn start() -> Result<Simulator> {
    let [program] = workspace::build_programs(["model-server-sim"])?;
    Simulator::start(&program, &["--model", "m", "--name", "server-0"]).await
}

async fn endless_chat(simulator: &Simulator) -> Result<Response> {
    let url = format!("http://{}/v1/chat/completions", simulator.address());
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "m", "stream": true, "ignore_eos": true, "max_tokens": 10_000, "messages": messages});
    let request = Protocol::Http1.client()?.post(url).header("content-type", "application/json");
    Ok(request.body(body.to_string()).send().await?)
}

#[tokio::test]
async fn metrics_follow_a_running_stream() {
    let simulator = start().await.unwrap();
    let running = async || -> Result<_> {
        let page = simulator.metrics().await?;
        Ok(page.count("vllm:num_requests_running", &[("model_name", "m")]))
    };
    let response = endless_chat(&simulator).await.unwrap();
    assert_eq!(response.headers()["x-served-by"], "server-0");
    let mut events = SseEvents::of(response);
    events.next().await.unwrap();
    assert_eq!(running().await.unwrap(), Some(1));
    drop(events);
    eventually(LIMIT, "the slot is free", async || Ok(running().await?.filter(|running| *running == 0))).await.unwrap();
}

#[tokio::test]
async fn a_killed_simulator_cuts_its_streams() {
    let mut simulator = start().await.unwrap();
    let mut events = SseEvents::of(endless_chat(&simulator).await.unwrap());
    events.next().await.unwrap();
    simulator.process_mut().kill().unwrap();
    let rest = tokio::time::timeout(LIMIT, events.collect()).await.unwrap();
    assert!(rest.is_err(), "a cut looks like an end");
}

#[tokio::test]
async fn ends_by_itself_when_asked() {
    let mut simulator = start().await.unwrap();
    assert!(simulator.process_mut().terminate(LIMIT).await.unwrap().success());
}
