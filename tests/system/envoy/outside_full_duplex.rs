//! Envoy shows the picker no body, one in pieces after the decision, or a whole one that it has put together.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use sluice_testkit::{
    EnvoyConfig, Part, PickerConfig, Protocol, RecordingUpstream, Reply, Stack, Template, eventually,
};
use tokio::task::JoinSet;

use super::modes::with_modes;
use crate::bodies::chat_of;
use crate::flow::support::{AT_ONCE, Counted, config, for_millis, streamed};
use crate::raw::{RawClient, Then, server};
use crate::support::{CHAT, LIMIT, MODEL, chat, picker, post};

/// The request modes other than full duplex.
const MODES: [&str; 3] = ["NONE", "STREAMED", "BUFFERED"];

/// What the picker says of a message timeout that ends waiting requests.
const TOO_SHORT: &str = "message_timeout is too short";

/// How many lines of the picker's log say this.
fn logged(stack: &Stack, what: &str) -> usize {
    stack.picker.process().output().lines().iter().filter(|line| line.contains(what)).count()
}

/// A pool whose only slot is taken.
async fn full(envoy: EnvoyConfig) -> Counted {
    let mut pool = Counted::start_with(1, &config(1, &json!({}), &json!({})), &[], envoy).await.unwrap();
    let running = pool.chat("running");
    pool.send(running);
    pool.wait_for(1, 0).await.unwrap();
    pool
}

async fn open(envoy: EnvoyConfig, servers: &[std::net::SocketAddr]) -> Stack {
    Stack::start_configured(picker(), &[], PickerConfig::standalone, envoy, servers).await.unwrap()
}

async fn assert_nothing_is_open(stack: &Stack) {
    eventually(AT_ONCE, "no stream to the picker", async || {
        let stats = stack.envoy.stats().await?;
        let streams = stats.count("envoy_cluster_upstream_rq_active", &[("envoy_cluster_name", "picker")]);
        let running = stack.picker.metrics().await?.count("llm_d_epp_request_running", &[]);
        Ok((streams == Some(0) && running.unwrap_or_default() == 0).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_large_request_waits_and_is_served() {
    for mode in MODES {
        let pool = full(with_modes(mode, "NONE").unwrap()).await;
        let body = chat(&"hello ".repeat(150_000), 1, false);
        let url = pool.stack.envoy.url(CHAT);
        let ask = async |protocol: Protocol| {
            let client = protocol.client().unwrap();
            for_millis(post(&client, &url, &body), 1).send().await.unwrap().status().as_u16()
        };
        let (first, second, ()) = tokio::join!(ask(Protocol::Http1), ask(Protocol::Http2), async {
            pool.wait_for(1, 2).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            pool.servers[0].release(1);
        });
        assert_eq!([first, second], [200, 200], "{mode}");
    }
}

#[tokio::test]
async fn a_message_timeout_ends_a_waiting_request_unless_the_picker_may_extend_it() {
    for mode in MODES {
        let mut envoy = with_modes(mode, "NONE").unwrap();
        envoy.put(Part::ExtProc, "message_timeout", "1s").unwrap();
        let pool = full(envoy.clone()).await;
        for protocol in [Protocol::Http1, Protocol::Http2, Protocol::Http1] {
            assert_eq!(logged(&pool.stack, TOO_SHORT), 0, "{mode}: two may be an accident");
            let client = protocol.client().unwrap();
            let url = pool.stack.envoy.url(CHAT);
            let response = post(&client, &url, &chat("hello", 1, false)).send().await.unwrap();
            assert_eq!(response.status(), 504, "{mode}, {protocol:?}");
            pool.wait_for(1, 0).await.unwrap();
        }
        eventually(AT_ONCE, "a word about it in the log", async || {
            Ok((logged(&pool.stack, TOO_SHORT) == 1).then_some(()))
        })
        .await
        .unwrap_or_else(|error| panic!("{mode}: {error:#}\n{}", pool.stack.logs()));

        // Envoy drops a wish for more: the picker asks for no longer than a request may wait, 60 s for room and 60 s for an
        // endpoint, and a little more.
        envoy.put(Part::ExtProc, "max_message_timeout", "126s").unwrap();
        let pool = full(envoy).await;
        let (response, ()) = tokio::join!(for_millis(pool.chat("waits"), 1).send(), async {
            pool.wait_for(1, 1).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            pool.servers[0].release(1);
        });
        assert_eq!(response.unwrap().status(), 200, "{mode}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_for_envoy_to_hold_is_a_413_that_leaves_nothing_behind() {
    let mut envoy = with_modes("BUFFERED", "NONE").unwrap();
    envoy.put(Part::Listener, "per_connection_buffer_limit_bytes", 65_536).unwrap();
    // The limit for HTTP/2, where it is larger.
    let windows = json!({"initial_stream_window_size": 65_536, "initial_connection_window_size": 1 << 20});
    envoy.put(Part::ConnectionManager, "http2_protocol_options", windows).unwrap();
    let mut servers = JoinSet::new();
    let address = server("127.0.0.1", "HTTP/1.1 200 OK\r\n\r\n", Then::Echo, &mut servers).await;
    let stack = open(envoy, &[address]).await;
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let body = chat(&"hello ".repeat(100_000), 1, false);
        let response = post(&client, &stack.envoy.url(CHAT), &body).send().await.unwrap();
        assert_eq!(response.status(), 413, "{protocol:?}");
        let text = response.text().await.unwrap();
        assert!(text.contains("raise per_connection_buffer_limit_bytes"), "{protocol:?}: {text}");
        assert_nothing_is_open(&stack).await;
    }
}

/// Only a picker that decides on headers can spare a client its upload.
#[tokio::test]
async fn a_request_is_refused_before_its_upload_where_envoy_leaves_100_continue_to_the_model_server() {
    let mut envoy = with_modes("NONE", "NONE").unwrap();
    envoy.put(Part::ConnectionManager, "proxy_100_continue", true).unwrap();
    let stack = open(envoy, &[]).await;
    let mut client = RawClient::connect(&stack.envoy).await;
    client.post(CHAT, "content-length: 16777216\r\nexpect: 100-continue\r\n").await;
    let (head, _) = client.response().await;
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert_nothing_is_open(&stack).await;
}

/// A body without end.
fn endless() -> reqwest::Body {
    reqwest::Body::wrap_stream(stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 8_192]))))
}

#[tokio::test]
async fn a_refusal_comes_while_the_body_is_still_on_the_way() {
    for mode in ["NONE", "STREAMED"] {
        let stack = open(with_modes(mode, "NONE").unwrap(), &[]).await;
        let mut client = RawClient::connect(&stack.envoy).await;
        client.post(CHAT, "content-length: 16777216\r\n").await;
        client.send(vec![b' '; 8_192]).await;
        let (head, _) = client.response().await;
        assert!(head.starts_with("HTTP/1.1 503") && head.contains("connection: close"), "{mode}: {head}");
        client.closed().await;

        let client = Protocol::Http2.client().unwrap();
        let upload = client.post(stack.envoy.url(CHAT)).body(endless()).send();
        let response = tokio::time::timeout(LIMIT, upload).await.expect("an answer in time").unwrap();
        assert_eq!(response.status(), 503, "{mode}");
        assert_nothing_is_open(&stack).await;
    }
}

#[tokio::test]
async fn an_answer_of_the_model_server_before_the_end_of_the_upload_reaches_the_client() {
    let mut servers = JoinSet::new();
    let answer = "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
    let address = server("127.0.0.1", answer, Then::Echo, &mut servers).await;
    for (request, response) in [("NONE", "NONE"), ("NONE", "FULL_DUPLEX_STREAMED"), ("STREAMED", "NONE")] {
        let stack = open(with_modes(request, response).unwrap(), &[address]).await;
        let mut client = RawClient::connect(&stack.envoy).await;
        client.post(CHAT, "content-length: 16777216\r\n").await;
        client.send(vec![b' '; 8_192]).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 400"), "{request}, {response}: {head}");
        client.closed().await;
        assert_nothing_is_open(&stack).await;
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_the_modes_that_it_announces_is_told_of() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    let mut envoy = EnvoyConfig::from_template(Template::PerRequest).unwrap();
    envoy.put(Part::ExtProc, "allow_mode_override", false).unwrap();
    let full = |endpoints: &Path| {
        let mut config = PickerConfig::standalone(endpoints)?;
        config.add("", "sluice", json!({"bodies": "full"}))?;
        Ok(config)
    };
    let stack = Stack::start_configured(picker(), &[], full, envoy, &[server.address()]).await.unwrap();
    for protocol in [Protocol::Http1, Protocol::Http2, Protocol::Http1] {
        let client = protocol.client().unwrap();
        let response = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false)).send().await.unwrap();
        assert_eq!(response.status(), 500, "{protocol:?}");
    }
    eventually(AT_ONCE, "a word about it in the log", async || {
        Ok((logged(&stack, "set allow_mode_override in the proxy") == 1).then_some(()))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", stack.logs()));
    assert_nothing_is_open(&stack).await;
}

#[tokio::test]
async fn without_response_trailers_requests_are_not_accounted_for_unless_the_picker_may_ask_for_them() {
    for template in [Template::ResponseBypass, Template::PerRequest] {
        let mut envoy = EnvoyConfig::from_template(template).unwrap();
        envoy.put(Part::ProcessingMode, "response_trailer_mode", "SKIP").unwrap();
        let pool = Counted::start_with(1, &config(100, &json!({}), &json!({})), &[], envoy).await.unwrap();
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            for index in 0..25 {
                let request = for_millis(streamed(pool.chat_from(&client, "short")), 20);
                let response = request.send().await.unwrap();
                assert_eq!(response.status(), 200, "{template:?}, {protocol:?}, {index}");
                assert!(response.text().await.unwrap().ends_with("data: [DONE]\n\n"));
            }
        }
        let ended = async |cause: &str| {
            let page = pool.stack.picker.metrics().await.unwrap();
            page.count("llm_d_epp_request_ended_total", &[("cause", cause)]).unwrap()
        };
        pool.wait_for(0, 0).await.unwrap();
        let unaccounted = ended("unaccounted").await;
        let told = logged(&pool.stack, "set response_trailer_mode to SEND");
        if template == Template::PerRequest {
            assert_eq!((unaccounted, told, ended("natural").await), (0, 0, 50), "{}", pool.stack.logs());
        } else {
            // All beyond the first 20, which are on one connection or two.
            assert!((10..=30).contains(&unaccounted), "{unaccounted}");
            assert_eq!((told, ended("natural").await), (1, 50 - unaccounted));
        }
    }
}

/// One message of 16 MB, four times the default limit of gRPC.
#[tokio::test]
async fn a_chat_of_sixteen_megabytes_comes_to_the_picker_in_one_message() {
    const LIMIT_OF_ENVOY: u32 = 24 << 20;
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    let mut envoy = with_modes("BUFFERED", "NONE").unwrap();
    envoy.put(Part::Listener, "per_connection_buffer_limit_bytes", LIMIT_OF_ENVOY).unwrap();
    let windows =
        json!({"initial_stream_window_size": LIMIT_OF_ENVOY, "initial_connection_window_size": LIMIT_OF_ENVOY});
    envoy.put(Part::ConnectionManager, "http2_protocol_options", windows).unwrap();
    let stack = open(envoy, &[server.address()]).await;
    for protocol in Protocol::ALL {
        let body = chat_of(16 << 20).unwrap();
        let request = protocol.client().unwrap().post(stack.envoy.url(CHAT)).header("content-type", "application/json");
        let response = request.body(body.clone()).send().await.unwrap();
        assert_eq!(response.status(), 200, "{protocol:?}");
        assert!(response.bytes().await.unwrap() == body, "{protocol:?}");
    }
    let models = stack.picker.metrics().await.unwrap().count("llm_d_epp_request_total", &[("model_name", MODEL)]);
    assert_eq!(models, Some(2), "the picker has read them");
}

#[tokio::test]
async fn a_mode_in_which_envoy_hangs_is_refused_and_named_in_the_log() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    let stack = open(with_modes("BUFFERED_PARTIAL", "NONE").unwrap(), &[server.address()]).await;
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let url = stack.envoy.url(CHAT);
        let response = post(&client, &url, &chat("hello", 1, false)).send().await.unwrap();
        assert_eq!(response.status(), 500, "{protocol:?}");
        let text = response.text().await.unwrap();
        assert!(text.contains("set request_body_mode to FULL_DUPLEX_STREAMED"), "{protocol:?}: {text}");
        // One without a body is none the worse.
        let response = client.get(stack.envoy.url("/v1/models")).send().await.unwrap();
        assert_eq!(response.status(), 200, "{protocol:?}");
    }
    assert_eq!(logged(&stack, "the proxy hangs on some bodies in this mode"), 1, "{}", stack.logs());
}

/// The client sends its body when the model server has asked for it, so the picker must not wait for it.
#[tokio::test]
async fn a_request_that_expects_100_continue_is_placed_by_its_headers_where_envoy_leaves_it_to_the_model_server() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for mode in ["FULL_DUPLEX_STREAMED", "STREAMED", "NONE"] {
        let mut envoy = with_modes(mode, "NONE").unwrap();
        envoy.put(Part::ConnectionManager, "proxy_100_continue", true).unwrap();
        let stack = open(envoy, &[server.address()]).await;
        let mut client = RawClient::connect(&stack.envoy).await;
        let body = chat("hello", 1, false).to_string();
        client.post(CHAT, &format!("content-length: {}\r\nexpect: 100-continue\r\n", body.len())).await;
        assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n", "{mode}");
        client.send(&body).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200"), "{mode}: {head}");
        drop(client);
        assert_nothing_is_open(&stack).await;
    }
}
