//! What a client sees, by how far the answer to it had come, with every template; and how soon the model server is told.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sluice_core::Time;
use sluice_testkit::{
    CountingUpstream, EnvoyConfig, Part, Protocol, STREAM_HEADER, Stack, Template, VisitEnd, eventually,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::one_slot::{
    Holder, assert_cut, assert_error_event, assert_told_by_status, batch, evictions, leave, pool, pool_behind,
};
use super::seen::{End, Ending, Seen};
use crate::flow::support::{AT_ONCE, DROPPED_REASON, OBJECTIVE};
use crate::raw::{Then, server};
use crate::support::{LIMIT, TEMPLATES, chat, post};

const HEAD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\
                    content-type: text/event-stream\r\n\r\n";
const GRPC: &str = "/vllm.grpc.engine.VllmEngine/Generate";

/// The longest time between the moment in which somebody else needs the slot and the one in which the model server
/// notices that its request is gone.
const NOTICED: Duration = Duration::from_secs(1);

/// When the model server noticed the end of the request that was its `number`th.
async fn noticed(server: &CountingUpstream, number: usize) -> Time {
    eventually(LIMIT, "the model server notices the end", async || Ok(server.visits()[number].ended))
        .await
        .map(|VisitEnd { at, aborted }| {
            assert!(aborted, "it was complete");
            at
        })
        .unwrap()
}

/// What the client of `request` sees if it is evicted before its answer begins.
async fn evicted_before_its_answer(
    stack: &Stack,
    client: &Client,
    request: RequestBuilder,
    server: &CountingUpstream,
) -> Seen {
    let number = server.visits().len();
    let holder = Holder::start(stack, client, request).await;
    eventually(LIMIT, "it is at the model server", async || Ok((server.visits().len() > number).then_some(())))
        .await
        .unwrap();
    let needed = server.now();
    let seen = holder.evict().await;
    let after = noticed(server, number).await.saturating_since(needed);
    assert!(after < NOTICED, "{after:?}");
    seen
}

#[tokio::test]
async fn before_the_answer_begins_it_is_a_clean_429_whatever_the_proxy_shows_the_picker() {
    let server = CountingUpstream::start().unwrap();
    for template in TEMPLATES {
        let stack = pool(template, "event-then-reset", server.address()).await;
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            let seen = evicted_before_its_answer(&stack, &client, batch(&stack, &client), &server).await;
            assert_told_by_status(&seen, &format!("{template:?}, {protocol:?}"));
        }
        assert_eq!(evictions(&stack, "status").await, 2, "{template:?}");
    }
}

/// The model server reads the prompt: its headers have come, and nothing else. In full duplex the picker still has them.
#[tokio::test]
async fn between_headers_and_first_event_it_is_a_clean_429_in_full_duplex_and_the_cut_elsewhere() {
    let mut servers = JoinSet::new();
    let address = server("127.0.0.1", HEAD, Then::Close(LIMIT * 2), &mut servers).await;
    for template in TEMPLATES {
        for mid_stream in ["event-then-reset", "reset"] {
            let stack = pool(template, mid_stream, address).await;
            for protocol in Protocol::ALL {
                let context = format!("{template:?}, {mid_stream}, {protocol:?}");
                let client = protocol.client().unwrap();
                let holder = Holder::start(&stack, &client, batch(&stack, &client)).await;
                tokio::time::sleep(AT_ONCE).await;
                let seen = holder.evict().await;
                if template == Template::FullDuplex {
                    assert_told_by_status(&seen, &context);
                } else {
                    assert_eq!((seen.status, seen.body.len()), (200, 0), "{context}: {seen}");
                    assert_cut(&seen, protocol, &context);
                }
            }
            let delivery = if template == Template::FullDuplex { "status" } else { "reset" };
            assert_eq!(evictions(&stack, delivery).await, 2, "{template:?}, {mid_stream}");
        }
    }
}

/// Envoy's patience with answers of the picker does not end meanwhile.
#[tokio::test]
async fn headers_that_wait_for_the_first_event_come_with_it_however_late() {
    const EVENT: &str = "9\r\ndata: 0\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    let permit = Arc::new(Semaphore::new(0));
    let mut servers = JoinSet::new();
    let then = Then::Say { what: EVENT, permit: Arc::clone(&permit) };
    let address = server("127.0.0.1", HEAD, then, &mut servers).await;
    let mut envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    envoy.put(Part::ExtProc, "message_timeout", "0.1s").unwrap();
    let stack = pool_behind(envoy, "event-then-reset", address).await;
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let mut holder = Holder::start(&stack, &client, batch(&stack, &client)).await;
        holder.assert_stays(AT_ONCE).await;
        permit.add_permits(1);
        let seen = holder.end().await;
        assert_eq!(seen.ending(), Ending::Complete, "{protocol:?}: {seen}");
        assert_eq!(seen.body, b"data: 0\n\ndata: [DONE]\n\n", "{protocol:?}: {seen}");
    }
}

/// What a stream of events ends with, by template and setting.
#[tokio::test]
async fn in_the_middle_of_a_stream_the_client_is_told_in_the_stream_where_the_picker_sees_it() {
    const BEGUN: &[u8] = b"data: 0\n\n";
    let server = CountingUpstream::start().unwrap();
    let mut silences = Vec::new();
    for (template, mid_stream, ending) in [
        (Template::FullDuplex, "event-then-reset", Ending::ToldThenCut),
        (Template::FullDuplex, "event-then-end", Ending::ToldThenEnd),
        (Template::FullDuplex, "reset", Ending::Cut),
        (Template::PerRequest, "event-then-reset", Ending::ToldThenCut),
        (Template::PerRequest, "event-then-end", Ending::ToldThenEnd),
        (Template::PerRequest, "reset", Ending::Cut),
        (Template::ResponseBypass, "event-then-reset", Ending::Cut),
        (Template::ResponseBypass, "event-then-end", Ending::Cut),
    ] {
        let stack = pool(template, mid_stream, server.address()).await;
        for protocol in Protocol::ALL {
            let context = format!("{template:?}, {mid_stream}, {protocol:?}");
            let client = protocol.client().unwrap();
            let number = server.visits().len();
            let request = batch(&stack, &client).header(STREAM_HEADER, "1");
            let holder = Holder::start_answered(&stack, &client, request, BEGUN).await;
            let needed = server.now();
            let seen = holder.evict().await;
            let after = noticed(&server, number).await.saturating_since(needed);
            println!("{context}: the model server noticed after {after:?}");
            assert!(after < NOTICED, "{context}: {after:?}");

            assert_eq!(seen.ending(), ending, "{context}: {seen}");
            assert!(seen.body.starts_with(BEGUN), "{context}: {seen}");
            if ending == Ending::Cut {
                assert_eq!(seen.body, BEGUN, "{context}: {seen}");
            } else {
                assert_error_event(&seen, &context);
            }
            if ending != Ending::ToldThenEnd {
                assert_cut(&seen, protocol, &context);
            }
            if ending == Ending::ToldThenCut {
                silences.push((protocol, seen.silence));
            }
        }
        let delivery = if ending == Ending::Cut { "reset" } else { "event" };
        assert_eq!(evictions(&stack, delivery).await, 2, "{template:?}, {mid_stream}");
        if delivery == "event" {
            assert_eq!(lost_tokens(&stack, "output").await, 2, "{template:?}, {mid_stream}: an event for each client");
        }
        assert!(lost_tokens(&stack, "prompt").await > 0, "{template:?}, {mid_stream}");
    }
    // From the event to the end: a connection of HTTP/1.1 is closed after `delayed_close_timeout`, 100 ms, a stream of
    // HTTP/2 is reset at once.
    println!("between the event and the end: {silences:?}");
    let of = |wanted| silences.iter().filter(move |(protocol, _)| *protocol == wanted).map(|(_, silence)| *silence);
    let closed = Duration::from_millis(100);
    assert!(of(Protocol::Http1).all(|silence| silence >= closed.mul_f64(0.9)), "{silences:?}");
    assert!(of(Protocol::Http1).min().unwrap() < closed * 5, "{silences:?}");
    assert!(of(Protocol::Http2).min().unwrap() < closed, "{silences:?}");
}

/// Tokens of evicted batch requests, says the picker.
async fn lost_tokens(stack: &Stack, kind: &str) -> i64 {
    let page = stack.picker.metrics().await.unwrap();
    let labels = [("priority", "-10"), ("kind", kind)];
    page.count("sluice_evicted_tokens_total", &labels).unwrap_or_default()
}

/// All is said, but for the end: whoever needs the slot waits for that.
#[tokio::test]
async fn an_answer_whose_last_event_has_passed_is_not_evicted() {
    const DONE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\
                        content-type: text/event-stream\r\n\r\n\
                        17\r\ndata: 0\n\ndata: [DONE]\n\n\r\n";
    let permit = Arc::new(Semaphore::new(0));
    let mut servers = JoinSet::new();
    let then = Then::Say { what: "0\r\n\r\n", permit: Arc::clone(&permit) };
    let address = server("127.0.0.1", DONE, then, &mut servers).await;
    for template in [Template::FullDuplex, Template::PerRequest] {
        let stack = pool(template, "event-then-reset", address).await;
        for protocol in Protocol::ALL {
            let context = format!("{template:?}, {protocol:?}");
            let client = protocol.client().unwrap();
            let begun = b"data: 0\n\ndata: [DONE]\n\n";
            let mut holder = Holder::start_answered(&stack, &client, batch(&stack, &client), begun).await;
            let demand = holder.demand();
            eventually(LIMIT, "the batch request is to go", async || {
                Ok((stack.picker.flow().await?["leases"]["revoked"] == 1).then_some(()))
            })
            .await
            .unwrap();
            holder.assert_stays(AT_ONCE).await;
            permit.add_permits(1);
            let seen = holder.end().await;
            assert_eq!(seen.ending(), Ending::Complete, "{context}: {seen}");
            leave(&stack, demand).await;
        }
        assert_eq!(evictions(&stack, "completed").await, 2, "{template:?}");
        assert_eq!(lost_tokens(&stack, "prompt").await, 0, "{template:?}");
    }
}

#[tokio::test]
async fn the_event_has_the_shape_of_the_api_that_was_called() {
    let server = CountingUpstream::start().unwrap();
    let stack = pool(Template::FullDuplex, "event-then-reset", server.address()).await;
    let client = Protocol::Http2.client().unwrap();
    for (path, begin, kind) in [
        ("/v1/completions", "data: {", Value::Null),
        ("/v1/messages", "event: error\ndata: {", json!("error")),
        ("/v1/responses", "event: error\ndata: {", json!("error")),
    ] {
        let mut body = chat("hello", 1, true);
        body["prompt"] = "hello".into();
        let request = post(&client, &stack.envoy.url(path), &body).header(OBJECTIVE, "batch");
        let request = request.header(STREAM_HEADER, "1");
        let seen = Holder::start_answered(&stack, &client, request, b"data: 0\n\n").await.evict().await;
        assert_error_event(&seen, path);
        let text = seen.text();
        let event = text.strip_prefix("data: 0\n\n").unwrap();
        assert!(event.starts_with(begin), "{path}: {seen}");
        let data: Value = serde_json::from_str(event.rsplit("data: ").next().unwrap()).unwrap();
        assert_eq!(data["type"], kind, "{path}: {seen}");
    }
}

fn grpc_call(stack: &Stack, client: &Client) -> RequestBuilder {
    let request = client.post(stack.envoy.url(GRPC)).body([0; 5].to_vec());
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    request.header(OBJECTIVE, "batch")
}

#[tokio::test]
async fn a_grpc_call_whose_answer_has_not_begun_ends_with_a_grpc_status() {
    let server = CountingUpstream::start().unwrap();
    let stack = pool(Template::FullDuplex, "event-then-reset", server.address()).await;
    let client = Protocol::Http2.client().unwrap();
    let seen = evicted_before_its_answer(&stack, &client, grpc_call(&stack, &client), &server).await;
    let header = |name: &str| seen.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!((seen.status, seen.end), (200, End::InOrder), "{seen}");
    assert_eq!((header("grpc-status"), header(DROPPED_REASON)), (Some("8"), Some("evicted")));
}

#[tokio::test]
async fn a_grpc_call_whose_answer_has_begun_is_reset() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: application/grpc\r\n\r\n\
                          7\r\n\0\0\0\0\x02hi\r\n";
    let mut servers = JoinSet::new();
    let address = server("127.0.0.1", ANSWER, Then::Close(LIMIT * 2), &mut servers).await;
    for template in TEMPLATES {
        let stack = pool(template, "event-then-reset", address).await;
        let client = Protocol::Http2.client().unwrap();
        let begun = b"\0\0\0\0\x02hi";
        let seen = Holder::start_answered(&stack, &client, grpc_call(&stack, &client), begun).await.evict().await;
        assert_eq!((seen.status, seen.body.as_slice()), (200, begun.as_slice()), "{template:?}: {seen}");
        assert_cut(&seen, Protocol::Http2, &format!("{template:?}"));
        assert_eq!(evictions(&stack, "reset").await, 1, "{template:?}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_while_its_headers_wait_is_an_error_of_the_gateway() {
    let mut servers = JoinSet::new();
    let address = server("127.0.0.1", HEAD, Then::Close(AT_ONCE), &mut servers).await;
    let stack = pool(Template::FullDuplex, "event-then-reset", address).await;
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let seen = tokio::time::timeout(LIMIT, Seen::all_of(batch(&stack, &client))).await.expect("an end in time");
        assert_eq!((seen.status, seen.end), (502, End::InOrder), "{protocol:?}: {seen}");
    }
    eventually(LIMIT, "the pool is idle", async || {
        Ok((stack.picker.flow().await?["leases"]["started"] == 0).then_some(()))
    })
    .await
    .unwrap();
}
