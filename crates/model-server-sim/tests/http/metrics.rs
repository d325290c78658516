//! What the metrics page says.

use std::time::Duration;

use model_server_sim::Settings;
use serde_json::json;

use crate::support::{TestServer, count, fast};

/// The value of a series, written as on the page but for the labels that every series has.
fn value(page: &str, name: &str, label: Option<&str>) -> f64 {
    let matches = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
            && line.contains(r#"model_name="m""#)
            && label.is_none_or(|label| line.contains(label))
    };
    let line = page.lines().find(matches).unwrap_or_else(|| panic!("no {name} {label:?} in:\n{page}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[track_caller]
fn assert_value(page: &str, name: &str, label: Option<&str>, expected: f64) {
    let value = value(page, name, label);
    assert!((value - expected).abs() < 1e-9, "{name} {label:?}: {value} is not {expected}");
}

#[tokio::test]
async fn the_page_shows_what_runs_and_waits() {
    let settings = Settings {
        models: vec!["m".into()],
        max_num_seqs: count(2),
        time_per_output_token: Duration::from_secs(30),
        kv_cache_blocks: count(8),
        block_size: count(16),
        max_model_len: count(128),
        ..Settings::default()
    };
    let server = TestServer::start(settings).await;
    let mut connections = Vec::new();
    for _ in 0..3 {
        let mut connection = server.connect().await;
        let prompt = "word ".repeat(20);
        connections
            .push((connection.post("/v1/completions", json!({"prompt": prompt, "stream": true})).await, connection));
    }
    let answer = server.get("/metrics").await;
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    // The step under way began when the first request was alone.
    assert_value(&answer.body, "vllm:num_requests_running", None, 1.0);
    assert_value(&answer.body, "vllm:num_requests_waiting", None, 2.0);
    assert_value(&answer.body, "vllm:kv_cache_usage_perc", None, 0.25);
    assert_value(&answer.body, "vllm:cache_config_info", Some(r#"block_size="16""#), 1.0);
    assert_value(&answer.body, "vllm:cache_config_info", Some(r#"num_gpu_blocks="8""#), 1.0);

    drop(connections);
    assert!(server.until(Duration::from_secs(1), |stats| stats.running + stats.waiting == 0).await);
    let page = server.get("/metrics").await.body;
    assert_value(&page, "vllm:request_success_total", Some(r#"finished_reason="abort""#), 3.0);
    assert_value(&page, "vllm:kv_cache_usage_perc", None, 0.0);
}

#[tokio::test]
async fn the_page_counts_what_was_done() {
    let settings = Settings { models: vec!["m".into()], mean_output_tokens: count(4), ..fast() };
    let server = TestServer::start(settings).await;
    let page = server.get("/metrics").await.body;
    for reason in ["stop", "length", "abort"] {
        assert_value(&page, "vllm:request_success_total", Some(&format!(r#"finished_reason="{reason}""#)), 0.0);
    }
    let limited = server.complete(json!({"prompt": "a b", "max_tokens": 9, "ignore_eos": true})).await;
    assert_eq!(limited["choices"][0]["finish_reason"], "length");
    let ended = server.complete(json!({"prompt": "a b c", "max_tokens": 1_000})).await;
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    let generated = 9.0 + ended["usage"]["completion_tokens"].as_f64().unwrap();

    let page = server.get("/metrics").await.body;
    assert_value(&page, "vllm:request_success_total", Some(r#"finished_reason="length""#), 1.0);
    assert_value(&page, "vllm:request_success_total", Some(r#"finished_reason="stop""#), 1.0);
    assert_value(&page, "vllm:prompt_tokens_total", None, 5.0);
    assert_value(&page, "vllm:generation_tokens_total", None, generated);
    assert_value(&page, "vllm:time_to_first_token_seconds_count", None, 2.0);
    assert_value(&page, "vllm:inter_token_latency_seconds_count", None, generated - 2.0);
    assert_value(&page, "vllm:e2e_request_latency_seconds_count", None, 2.0);
    assert_value(&page, "vllm:num_preemptions_total", None, 0.0);
}
