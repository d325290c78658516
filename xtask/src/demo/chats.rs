//! Chats through Envoy to two model servers, and where each went.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock};
use sluice_testkit::{Protocol, Simulator, SseEvents, Stack, Template};
use tokio::task::JoinSet;

use super::{MODEL, Programs};
use crate::console::say;

const SERVERS: [&str; 2] = ["server-0", "server-1"];

/// Shows it; with `keep` it stays up until the future is dropped.
pub(super) async fn show(programs: &Programs, keep: bool) -> Result<()> {
    let mut servers = Vec::new();
    for name in SERVERS {
        servers.push(Simulator::start(&programs.simulator, &["--model", MODEL, "--name", name]).await?);
    }
    let addresses: Vec<_> = servers.iter().map(Simulator::address).collect();
    let stack = Stack::start(&programs.picker, Template::FullDuplex, &addresses).await?;
    for (name, address) in SERVERS.iter().zip(&addresses) {
        say(format_args!("{name:<9} http://{address}"));
    }
    say(format_args!("{:<9} {} (ext_proc, TLS)", "picker", stack.picker.ext_proc()));
    say(format_args!("{:<9} {}\n", "envoy", stack.envoy.url("")));

    send_chats(&stack.envoy.url("/v1/chat/completions")).await?;

    if !keep {
        say(format_args!("\nending; `cargo xtask demo --keep` stays up, for chats of your own"));
        return Ok(());
    }
    let body = chat("Tell me about sluices.", true);
    let url = stack.envoy.url("/v1/chat/completions");
    say(format_args!("\ntry it yourself:\n  curl -N {url} -H 'content-type: application/json' -d '{body}'\n"));
    say(format_args!("running until Ctrl-C"));
    std::future::pending().await
}

/// Chats one after the other, then several at once, so that the picker has a reason to spread them.
async fn send_chats(url: &str) -> Result<()> {
    say(format_args!("{:<34} {:<10} {:>6}  {:>7}", "chat", "went to", "tokens", "took"));
    let client = Protocol::Http1.client()?;
    for streamed in [false, true] {
        let how = if streamed { "streamed" } else { "in one piece" };
        let report = send_chat(client.clone(), url.to_owned(), streamed).await?;
        report.print(how);
    }
    let mut parallel = JoinSet::new();
    for _ in 0..4 {
        parallel.spawn(send_chat(client.clone(), url.to_owned(), true));
    }
    while let Some(report) = parallel.join_next().await {
        report??.print("streamed, one of four in parallel");
    }
    Ok(())
}

struct Report {
    served_by: String,
    tokens: u64,
    took: Duration,
}

impl Report {
    fn print(&self, how: &str) {
        let Self { served_by, tokens, took } = self;
        say(format_args!("{how:<34} {served_by:<10} {tokens:>6}  {:>5.0} ms", took.as_secs_f64() * 1e3));
    }
}

async fn send_chat(client: Client, url: String, streamed: bool) -> Result<Report> {
    let clock = SystemClock::start();
    let started = clock.now();
    let response = client.post(&url).header("content-type", "application/json");
    let response = response.body(chat("Tell me about sluices.", streamed).to_string()).send().await?;
    let status = response.status();
    if !status.is_success() {
        bail!("a chat was answered with {status}: {}", response.text().await?);
    }
    let served_by = response.headers().get("x-served-by").and_then(|name| name.to_str().ok()).unwrap_or("?").to_owned();
    let usage = if streamed { streamed_usage(response).await? } else { usage(&response.text().await?)? };
    let tokens = usage.context("a chat without usage")?;
    Ok(Report { served_by, tokens, took: clock.now().saturating_since(started) })
}

async fn streamed_usage(response: Response) -> Result<Option<u64>> {
    let mut tokens = None;
    for event in SseEvents::of(response).collect().await? {
        if event != "[DONE]" {
            tokens = usage(&event)?.or(tokens);
        }
    }
    Ok(tokens)
}

fn usage(json: &str) -> Result<Option<u64>> {
    let answer: Value = serde_json::from_str(json)?;
    Ok(answer["usage"]["completion_tokens"].as_u64())
}

fn chat(question: &str, streamed: bool) -> Value {
    let mut body = json!({
        "model": MODEL,
        "max_tokens": 40,
        "messages": [{"role": "user", "content": question}],
    });
    if streamed {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}
