//! However a request ends, the picker counts it once, under the cause that it can know.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sluice_testkit::{
    EnvoyConfig, PickerConfig, Protocol, RecordingUpstream, Reply, SseEvents, Stack, Template, eventually,
    unused_address,
};
use tokio::task::JoinSet;

use crate::support::{CHAT, LIMIT, WHOLE_REQUESTS, chat, picker, post};

const ENDED: &str = "llm_d_epp_request_ended_total";

/// A model server behind Envoy and the picker, and what has been counted so far.
struct Counting {
    server: RecordingUpstream,
    stack: Stack,
    client: Client,
    counts: BTreeMap<String, i64>,
}

impl Counting {
    async fn start(template: Template, protocol: Protocol) -> Result<Self> {
        let server = RecordingUpstream::start(Reply::Echo)?;
        let stack = Stack::start(picker(), template, &[server.address()]).await?;
        let mut counting = Self { server, stack, client: protocol.client()?, counts: BTreeMap::new() };
        counting.counts = counting.read().await?;
        Ok(counting)
    }

    async fn read(&self) -> Result<BTreeMap<String, i64>> {
        let page = self.stack.picker.metrics().await?;
        let causes =
            ["natural", "client-disconnect", "evicted", "error", "refused", "handed-over", "unaccounted", "unseen"];
        let count = |cause: &str| page.count(ENDED, &[("cause", cause)]).context(ENDED);
        causes.into_iter().map(|cause| Ok((cause.to_owned(), count(cause)?))).collect()
    }

    /// One more request must have ended since the last call, for this cause.
    async fn one_more(&mut self, cause: &str) -> Result<()> {
        let mut expected = self.counts.clone();
        *expected.get_mut(cause).context("a cause")? += 1;
        let mut seen = BTreeMap::new();
        eventually(LIMIT, "one more request has ended", async || {
            seen = self.read().await?;
            Ok((seen.values().sum::<i64>() > self.counts.values().sum()).then_some(()))
        })
        .await?;
        ensure!(seen == expected, "{seen:?} in place of {expected:?}");
        self.counts = seen;
        Ok(())
    }

    fn ask(&self, stream: bool, reply: &Reply) -> Result<RequestBuilder> {
        let (name, value) = reply.header()?;
        Ok(post(&self.client, &self.stack.envoy.url(CHAT), &chat("hello", 5, stream)).header(name, value))
    }

    async fn first_event(&self, reply: &Reply) -> Result<SseEvents> {
        let mut events = SseEvents::of(self.ask(true, reply)?.send().await?.error_for_status()?);
        events.next().await?.context("an event")?;
        Ok(events)
    }
}

/// Every way in which a request ends, where `broken_off` is what the picker can know of a response in whose middle
/// somebody has left.
async fn endings(counting: &mut Counting, broken_off: &str) -> Result<()> {
    let endless = Reply::Events { count: 100_000, pause_ms: 20 };

    counting.ask(false, &Reply::Echo)?.send().await?.error_for_status()?.bytes().await?;
    counting.one_more("natural").await.context("a JSON response")?;
    counting.ask(false, &Reply::Status(500, json!({})))?.send().await?.bytes().await?;
    counting.one_more("natural").await.context("an error of the model server")?;
    let events = counting.first_event(&Reply::Events { count: 3, pause_ms: 20 }).await?;
    events.collect().await?;
    counting.one_more("natural").await.context("an event stream")?;

    let waiting = JoinSet::from_iter([counting.ask(false, &Reply::Stall)?.send()]);
    eventually(LIMIT, "it is placed", async || {
        let page = counting.stack.picker.metrics().await?;
        Ok((page.count("llm_d_epp_request_total", &[]) == Some(4)).then_some(()))
    })
    .await?;
    drop(waiting);
    counting.one_more("client-disconnect").await.context("a client that leaves before the response")?;
    drop(counting.first_event(&endless).await?);
    counting.one_more(broken_off).await.context("a client that leaves in the response")?;
    let cut = counting.first_event(&Reply::CutEvents { count: 3, pause_ms: 20 }).await?;
    ensure!(cut.collect().await.is_err(), "a response that was cut looks complete");
    counting.one_more(broken_off).await.context("a model server that breaks off")?;

    let refused = post(&counting.client, &counting.stack.envoy.url(CHAT), &json!({})).send().await?;
    ensure!(refused.status() == 400, "{}", refused.status());
    counting.one_more("refused").await.context("a refusal")?;

    // Nobody listens there any more: the proxy answers.
    counting.stack.endpoints.replace(&[unused_address()?])?;
    eventually(LIMIT, "the picker knows the new endpoint", async || {
        let answered = counting.ask(false, &Reply::Echo)?.send().await?.status();
        if answered == 503 {
            return Ok(Some(()));
        }
        counting.one_more("natural").await?;
        Ok(None)
    })
    .await?;
    counting.one_more("error").await.context("no connection to the endpoint")?;
    counting.stack.endpoints.replace(&[counting.server.address()])?;
    eventually(LIMIT, "the picker knows the old endpoint again", async || {
        let answered = counting.ask(false, &Reply::Echo)?.send().await?.status();
        counting.one_more(if answered == 503 { "error" } else { "natural" }).await?;
        Ok((answered == 200).then_some(()))
    })
    .await?;

    let open = counting.first_event(&endless).await?;
    counting.stack.envoy.process_mut().kill()?;
    counting.one_more("error").await.context("a proxy that dies")?;
    drop(open);
    Ok(())
}

#[tokio::test]
async fn each_request_that_has_ended_is_a_line_of_the_detailed_log() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    let envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    let servers = [server.address()];
    let stack = Stack::start_configured(picker(), &["-v=4"], PickerConfig::standalone, envoy, &servers).await.unwrap();
    let client = Protocol::Http1.client().unwrap();
    let body = chat("hello", 5, false);
    let length = u64::try_from(body.to_string().len()).unwrap();
    let ask = async |id: &str, body: &Value| {
        let request = post(&client, &stack.envoy.url(CHAT), body).header("x-request-id", id);
        request.send().await.unwrap().bytes().await.unwrap();
    };
    let line = async |id: &str| {
        eventually(LIMIT, "a line of the log", async || {
            let log = stack.picker.process().output();
            let lines = log.lines().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
            let mut about = lines.filter(|line| line["message"] == "request ended" && line["request"] == id);
            let first = about.next();
            ensure!(about.next().is_none(), "a second line about {id}");
            Ok(first)
        })
        .await
        .unwrap()
    };
    ask("served", &body).await;
    let served = line("served").await;
    assert_eq!((&served["cause"], &served["status"]), (&json!("natural"), &json!(200)), "{served}");
    assert_eq!(served["endpoint"], server.address().to_string(), "{served}");
    assert!(served["request_bytes"].as_u64().unwrap() > length, "headers and body: {served}");
    assert_eq!(served["response_bytes"], length, "{served}");
    let [placed, took] = ["placed_after", "took"].map(|field| served[field].as_f64().unwrap());
    assert!(placed > 0.0 && took >= placed, "{served}");

    ask("refused", &json!({})).await;
    let refused = line("refused").await;
    assert_eq!((&refused["cause"], &refused["status"]), (&json!("refused"), &json!(400)), "{refused}");
    assert_eq!(refused["endpoint"], Value::Null, "{refused}");
}

#[tokio::test]
async fn every_ending_has_its_cause() {
    for template in WHOLE_REQUESTS {
        // Without response bodies nothing tells a complete response from one that broke off.
        let broken_off = if template == Template::ResponseBypass { "natural" } else { "client-disconnect" };
        for protocol in Protocol::ALL {
            let mut counting = Counting::start(template, protocol).await.unwrap();
            let ended = endings(&mut counting, broken_off).await;
            ended.unwrap_or_else(|error| panic!("{template:?}, {protocol:?}: {error:#}\n{}", counting.stack.logs()));
        }
    }
}
