//! What the tests share: a stack of parts, and chats.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use sluice_testkit::{
    EnvoyConfig, PickerConfig, RecordingUpstream, Reply, Simulator, SseEvents, Stack, Template, eventually, workspace,
};
use tokio::sync::OnceCell;

/// Longer than anything takes on a busy machine; a test that waits for it has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const MODEL: &str = "test-model";
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";

/// The configurations that ask one picker.
pub(crate) const TEMPLATES: [Template; 3] = [Template::FullDuplex, Template::ResponseBypass, Template::PerRequest];

/// Those in which the picker sees every request whole before it decides.
pub(crate) const WHOLE_REQUESTS: [Template; 2] = [Template::FullDuplex, Template::ResponseBypass];

/// The picker under test.
pub(crate) fn picker() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_epp"))
}

/// Two simulated model servers behind Envoy and the picker.
#[derive(Debug)]
pub(crate) struct Simulated {
    pub(crate) stack: Stack,
    pub(crate) servers: [Simulator; 2],
}

impl Simulated {
    pub(crate) async fn start() -> Result<Self> {
        Self::start_with(Template::FullDuplex, &[]).await
    }

    /// `arguments` are further ones for the simulators.
    pub(crate) async fn start_with(template: Template, arguments: &[&str]) -> Result<Self> {
        let [program] = workspace::build_programs(["model-server-sim"])?;
        let server = async |name: &str| {
            let own = ["--model", MODEL, "--name", name, "--time-per-output-token", "5"];
            Simulator::start(&program, &[&own, arguments].concat()).await
        };
        let servers = [server("server-0").await?, server("server-1").await?];
        let addresses = servers.each_ref().map(Simulator::address);
        let config = |endpoints: &Path| match template {
            // Without bodies the picker knows no models, and counts by model only what has one. Flow control counts
            // everything in flight.
            Template::PerRequest => PickerConfig::example("holdback.yaml", endpoints),
            Template::FullDuplex | Template::ResponseBypass | Template::Ha | Template::Sidecar => {
                PickerConfig::standalone(endpoints)
            }
        };
        let envoy = EnvoyConfig::from_template(template)?;
        Ok(Self { stack: Stack::start_configured(picker(), &[], config, envoy, &addresses).await?, servers })
    }

    /// Waits until nobody counts a request as in flight any more: the picker, the model servers, Envoy.
    pub(crate) async fn wait_until_idle(&self) -> Result<()> {
        eventually(LIMIT, "every in-flight counter is zero", async || {
            let counters = self.in_flight().await?;
            Ok(counters.iter().all(|(_, count)| *count == 0).then_some(()))
        })
        .await
        .with_context(|| "some part still counts requests")
    }

    /// Every counter of requests in flight, with where it was read.
    pub(crate) async fn in_flight(&self) -> Result<Vec<(String, i64)>> {
        let mut counters = vec![("picker".to_owned(), self.running_at_picker().await?)];
        for (index, server) in self.servers.iter().enumerate() {
            let page = server.metrics().await?;
            for name in ["vllm:num_requests_running", "vllm:num_requests_waiting"] {
                let count = page.count(name, &[]).with_context(|| format!("server-{index} has no {name}"))?;
                counters.push((format!("server-{index} {name}"), count));
            }
        }
        let envoy = self.stack.envoy.stats().await?;
        let active = envoy.count("envoy_cluster_upstream_rq_active", &[("envoy_cluster_name", "model_servers")]);
        counters.push(("envoy".to_owned(), active.context("Envoy has no upstream_rq_active")?));
        Ok(counters)
    }

    /// How many requests the picker counts as running. Before the first one it has no such series.
    pub(crate) async fn running_at_picker(&self) -> Result<i64> {
        let page = self.stack.picker.metrics().await?;
        let counts = ["llm_d_epp_inflight_requests", "llm_d_epp_request_running"].map(|name| page.count(name, &[]));
        Ok(counts.into_iter().flatten().max().unwrap_or_default())
    }

    /// How many requests a server runs.
    pub(crate) async fn running_at(&self, server: usize) -> Result<i64> {
        let page = self.servers[server].metrics().await?;
        page.count("vllm:num_requests_running", &[]).context("no vllm:num_requests_running")
    }
}

/// One recording model server behind Envoy and the picker.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) stack: Stack,
    pub(crate) server: RecordingUpstream,
}

impl Recorded {
    pub(crate) async fn start(template: Template) -> Result<Self> {
        let server = RecordingUpstream::start(Reply::Echo)?;
        Ok(Self { stack: Stack::start(picker(), template, &[server.address()]).await?, server })
    }
}

/// A stack that tests use at the same time. It lives until the test program ends.
pub(crate) async fn simulated() -> Result<Lease<Simulated>> {
    static SHARED: OnceCell<Simulated> = OnceCell::const_new();
    SHARED.get_or_try_init(Simulated::start).await.map(Lease)
}

/// The same with a recording model server.
pub(crate) async fn recorded() -> Result<Lease<Recorded>> {
    static SHARED: OnceCell<Recorded> = OnceCell::const_new();
    SHARED.get_or_try_init(|| Recorded::start(Template::FullDuplex)).await.map(Lease)
}

/// A shared stack, lent to a test. If the test fails, the ends of the logs are printed.
pub(crate) struct Lease<T: AsRef<Stack> + 'static>(&'static T);

impl<T: AsRef<Stack>> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: AsRef<Stack>> Drop for Lease<T> {
    #[expect(clippy::print_stderr, reason = "the test harness shows it beside the failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.as_ref().logs());
        }
    }
}

impl AsRef<Stack> for Simulated {
    fn as_ref(&self) -> &Stack {
        &self.stack
    }
}

impl AsRef<Stack> for Recorded {
    fn as_ref(&self) -> &Stack {
        &self.stack
    }
}

/// The body of a chat that generates `tokens` tokens.
pub(crate) fn chat(content: &str, tokens: u32, stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": content}]);
    let mut body = json!({"model": MODEL, "messages": messages, "max_tokens": tokens, "ignore_eos": true});
    if stream {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

pub(crate) fn post(client: &Client, url: &str, body: &Value) -> RequestBuilder {
    client.post(url).header("content-type", "application/json").body(body.to_string())
}

/// Starts a chat that streams until somebody ends it and waits for its first token.
pub(crate) async fn endless_chat(client: &Client, stack: &Stack) -> Result<OpenChat> {
    let response = post(client, &stack.envoy.url(CHAT), &chat("go on", 20_000, true)).send().await?;
    let response = response.error_for_status()?;
    let server = served_by(&response)?;
    let mut events = SseEvents::of(response);
    events.next().await?.context("a stream without events")?;
    Ok(OpenChat { server, events })
}

/// A stream that is being received; dropping it hangs up.
#[derive(Debug)]
pub(crate) struct OpenChat {
    /// The number of the server that generates it.
    pub(crate) server: usize,
    pub(crate) events: SseEvents,
}

/// The number of the simulated server that has answered.
pub(crate) fn served_by(response: &Response) -> Result<usize> {
    let name = response.headers().get("x-served-by").context("no x-served-by")?.to_str()?;
    Ok(name.strip_prefix("server-").context("a strange x-served-by")?.parse()?)
}

/// The text of a chat completion, and the number of generated tokens that its usage names.
pub(crate) fn completion(answer: &Value) -> Result<(String, u64)> {
    let text = answer["choices"][0]["message"]["content"].as_str().context("no content")?;
    Ok((text.to_owned(), answer["usage"]["completion_tokens"].as_u64().context("no usage")?))
}

/// The same from the events of a streamed one.
pub(crate) fn streamed_completion(events: &[String]) -> Result<(String, u64)> {
    let (last, chunks) = events.split_last().context("no events")?;
    anyhow::ensure!(last == "[DONE]", "the last event is {last}");
    let mut text = String::new();
    let mut tokens = None;
    for chunk in chunks {
        let chunk: Value = serde_json::from_str(chunk)?;
        text.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        tokens = chunk["usage"]["completion_tokens"].as_u64().or(tokens);
    }
    Ok((text, tokens.context("no usage")?))
}
