//! Every body mode in which Envoy may ask the picker, in both directions: whatever passes is what was sent.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use reqwest::Client;
use serde_json::json;
use sluice_testkit::{
    EnvoyConfig, Part, PickerConfig, Protocol, RecordedRequest, RecordingUpstream, Reply, RequestBody, ResponseEnd,
    SseEvents, Stack, Template, eventually, flow_config,
};

use crate::bodies::chat_of;
use crate::support::{CHAT, LIMIT, chat, picker, post};

const MODES: [&str; 4] = ["NONE", "STREAMED", "BUFFERED", "FULL_DUPLEX_STREAMED"];
/// More than any body here, for the modes in which Envoy holds a whole one.
const BUFFER: u32 = 4 << 20;

/// The full-duplex template with other modes.
pub(crate) fn with_modes(request: &str, response: &str) -> Result<EnvoyConfig> {
    let mut envoy = EnvoyConfig::from_template(Template::FullDuplex)?;
    envoy.put(Part::ProcessingMode, "request_body_mode", request)?;
    envoy.put(Part::ProcessingMode, "response_body_mode", response)?;
    if [request, response].contains(&"BUFFERED") {
        envoy.put(Part::Listener, "per_connection_buffer_limit_bytes", BUFFER)?;
        envoy.put(Part::ModelServers, "per_connection_buffer_limit_bytes", BUFFER)?;
        // It bounds what is held of a client's stream as well.
        let windows = json!({"initial_stream_window_size": BUFFER, "initial_connection_window_size": 2 * BUFFER});
        envoy.put(Part::ConnectionManager, "http2_protocol_options", windows)?;
    }
    Ok(envoy)
}

/// An Envoy with certain modes and what is asked of it.
struct Exchange<'a> {
    server: &'a RecordingUpstream,
    stack: &'a Stack,
    client: Client,
    /// Tells its requests apart from all others.
    tag: String,
}

impl Exchange<'_> {
    fn path(&self, name: &str) -> String {
        format!("/{name}?{}", self.tag)
    }

    async fn arrived(&self, path: &str) -> Result<RecordedRequest> {
        self.server.find(LIMIT, |request| request.uri == *path && request.response == ResponseEnd::Complete).await
    }

    /// Sends a body. It must be the same at the model server and on the way back.
    async fn round_trip(&self, path: &str, body: Bytes) -> Result<RecordedRequest> {
        let request = self.client.post(self.stack.envoy.url(path)).header("content-type", "application/json");
        let response = request.body(body.clone()).send().await?.error_for_status()?;
        let echo = response.bytes().await?;
        let arrived = self.arrived(path).await?;
        ensure!(arrived.body() == Some(&body), "{path} changed on the way to the model server");
        ensure!(echo == body, "{path} changed on the way back");
        Ok(arrived)
    }

    async fn chats(&self) -> Result<()> {
        let body = Bytes::from(chat("hello", 1, false).to_string());
        self.round_trip(&format!("{CHAT}?{}", self.tag), body).await?;
        let large = chat_of(1 << 20).context("a chat of a megabyte")?;
        self.round_trip(&format!("{CHAT}?{}-large", self.tag), large).await?;
        Ok(())
    }

    async fn stream_of_events(&self) -> Result<()> {
        let (name, value) = Reply::Events { count: 5, pause_ms: 5 }.header()?;
        let url = self.stack.envoy.url(&format!("{CHAT}?{}-stream", self.tag));
        let response = post(&self.client, &url, &chat("hello", 5, true)).header(name, value).send().await?;
        let events = SseEvents::of(response.error_for_status()?).collect().await?;
        ensure!(events.len() == 6 && events.last().is_some_and(|last| last == "[DONE]"), "{events:?}");
        Ok(())
    }

    async fn without_a_body(&self) -> Result<()> {
        let path = self.path("models");
        self.client.get(self.stack.envoy.url(&path)).send().await?.error_for_status()?;
        self.arrived(&path).await?;
        self.round_trip(&self.path("empty"), Bytes::new()).await?;
        Ok(())
    }

    async fn trailers(&self) -> Result<()> {
        let path = self.path("trailers");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-request-sum", "12".parse()?);
        let frames = [Frame::data(Bytes::from_static(b"hello")), Frame::trailers(trailers.clone())];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, std::io::Error>)));
        let reply = Reply::Trailers { body: "bye".into(), name: "x-response-sum".into(), value: "34".into() };
        let (name, value) = reply.header()?;
        let request = self.client.post(self.stack.envoy.url(&path)).header(name, value).header("te", "trailers");
        let response = request.header("trailer", "x-request-sum").body(reqwest::Body::wrap(body)).send().await?;
        let response =
            http::Response::<reqwest::Body>::from(response.error_for_status()?).into_body().collect().await?;
        ensure!(response.trailers().is_some_and(|trailers| trailers["x-response-sum"] == "34"), "no response trailers");
        ensure!(response.to_bytes() == "bye", "the response's body has changed");
        let expected = RequestBody::Complete { bytes: Bytes::from_static(b"hello"), trailers: Some(trailers) };
        let arrived = self.arrived(&path).await?;
        ensure!(arrived.request_body == expected, "{:?}", arrived.request_body);
        Ok(())
    }

    /// Envoy takes `content-length` away where the picker could change the length.
    async fn length(&self, kept: bool) -> Result<()> {
        let arrived = self.round_trip(&self.path("length"), Bytes::from_static(b"hello")).await?;
        let length = arrived.headers.get("content-length").map(|length| length.as_bytes());
        ensure!(length == kept.then_some(b"5"), "content-length is {length:?}");
        Ok(())
    }
}

/// Asks everything of an Envoy. `kept`: it leaves `content-length` as it is.
async fn ask_everything(server: &RecordingUpstream, envoy: EnvoyConfig, bodies: &str, kept: bool, tag: &str) {
    let config = |endpoints: &Path| {
        let mut config = flow_config(100);
        config["sluice"]["bodies"] = json!(bodies);
        PickerConfig::custom(&config, endpoints)
    };
    let stack = Stack::start_configured(picker(), &[], config, envoy, &[server.address()]).await.unwrap();
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let exchange = Exchange { server, stack: &stack, client, tag: format!("{tag}-{protocol:?}") };
        let asked = async {
            exchange.chats().await.context("chats")?;
            exchange.stream_of_events().await.context("a streamed chat")?;
            exchange.without_a_body().await.context("without a body")?;
            exchange.trailers().await.context("trailers")?;
            exchange.length(kept).await.context("content-length")
        };
        let asked = tokio::time::timeout(LIMIT, asked).await.context("it hangs").flatten();
        asked.unwrap_or_else(|error| panic!("{}: {error:#}\n{}", exchange.tag, stack.logs()));
    }
    eventually(LIMIT, "nothing is in flight", async || {
        Ok((stack.picker.flow().await?["leases"]["started"] == 0).then_some(()))
    })
    .await
    .unwrap_or_else(|error| panic!("{tag}: {error:#}"));
}

#[tokio::test]
async fn whatever_the_body_modes_everything_arrives_as_it_was_sent() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for request in MODES {
        for response in MODES {
            let kept = ["NONE", "BUFFERED"].contains(&request);
            let envoy = with_modes(request, response).unwrap();
            ask_everything(&server, envoy, "auto", kept, &format!("{request}-{response}")).await;
        }
    }
}

#[tokio::test]
async fn in_the_modes_that_the_picker_asks_for_everything_arrives_as_it_was_sent() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for bodies in ["auto", "headers", "full"] {
        let envoy = EnvoyConfig::from_template(Template::PerRequest).unwrap();
        ask_everything(&server, envoy, bodies, true, bodies).await;
    }
}
