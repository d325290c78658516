//! Clients that go away while their requests wait.

use std::time::Duration;

use serde_json::json;
use sluice_testkit::{EnvoyConfig, eventually};

use super::modes::with_modes;
use super::raw_http2::RawHttp2;
use crate::flow::support::{AT_ONCE, Counted, config};
use crate::raw::RawClient;
use crate::support::{CHAT, TEMPLATES};

/// A way to go away.
#[derive(Clone, Copy, Debug)]
enum Way {
    Close,
    Reset,
    /// Counts as gone, since Envoy does not serve half-closed connections.
    HalfClose,
    CancelStream,
    CloseHttp2,
}

impl Way {
    const ALL: [Self; 5] = [Self::Close, Self::Reset, Self::HalfClose, Self::CancelStream, Self::CloseHttp2];
}

/// A client whose request waits.
enum Client {
    Http1(RawClient),
    Http2(RawHttp2),
}

async fn wait_and_leave(pool: &Counted, way: Way) {
    let mut client = match way {
        Way::Close | Way::Reset | Way::HalfClose => {
            let mut client = RawClient::connect(&pool.stack.envoy).await;
            client.chat("").await;
            Client::Http1(client)
        }
        Way::CancelStream | Way::CloseHttp2 => Client::Http2(RawHttp2::chat(&pool.stack.envoy).await),
    };
    pool.wait_for(1, 1).await.unwrap();
    match (way, &mut client) {
        (Way::HalfClose, Client::Http1(client)) => client.half_close().await,
        (Way::CancelStream, Client::Http2(client)) => client.cancel().await,
        _ => {}
    }
    match (way, client) {
        (Way::Reset, Client::Http1(client)) => client.reset(),
        (Way::Close, client) | (Way::CloseHttp2, client) => drop(client),
        // The connection stays open.
        (_, client) => {
            gone(pool).await;
            drop(client);
        }
    }
}

/// Waits until only the request that runs is left, in the picker and between it and Envoy.
async fn gone(pool: &Counted) {
    eventually(AT_ONCE, "the request has left the queue", async || {
        let stats = pool.stack.envoy.stats().await?;
        let streams = stats.count("envoy_cluster_upstream_rq_active", &[("envoy_cluster_name", "picker")]);
        Ok((pool.waiting().await? == 0 && streams == Some(1)).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_out_of_the_queue_at_once() {
    let templates = TEMPLATES.map(EnvoyConfig::from_template);
    let others = ["NONE", "STREAMED", "BUFFERED"].map(|mode| with_modes(mode, "NONE"));
    for (place, envoy) in templates.into_iter().chain(others).enumerate() {
        let config = config(1, &json!({}), &json!({}));
        let mut pool = Counted::start_with(1, &config, &[], envoy.unwrap()).await.unwrap();
        let running = pool.chat("running");
        pool.send(running);
        pool.wait_for(1, 0).await.unwrap();
        for way in Way::ALL {
            wait_and_leave(&pool, way).await;
            gone(&pool).await;
        }
        let left = i64::try_from(Way::ALL.len()).unwrap();
        assert_eq!(pool.ended_with("EvictedContextCancelled").await.unwrap(), left, "configuration {place}");
        pool.servers[0].release(1);
        pool.wait_for(0, 0).await.unwrap();
        assert_eq!(pool.servers[0].tags(), ["running"], "configuration {place}: the others have never had a slot");
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_an_upload_leaves_nothing_behind() {
    let mut pool = Counted::start(1, &config(1, &json!({}), &json!({}))).await.unwrap();
    let running = pool.chat("running");
    pool.send(running);
    pool.wait_for(1, 0).await.unwrap();
    for reset in [false, true] {
        let mut client = RawClient::connect(&pool.stack.envoy).await;
        client.post(CHAT, "content-length: 100000\r\n").await;
        client.send(vec![b' '; 50_000]).await;
        // Envoy has opened a stream to the picker.
        eventually(AT_ONCE, "a second stream", async || {
            let stats = pool.stack.envoy.stats().await?;
            let streams = stats.count("envoy_cluster_upstream_rq_active", &[("envoy_cluster_name", "picker")]);
            Ok((streams == Some(2)).then_some(()))
        })
        .await
        .unwrap();
        if reset {
            client.reset();
        } else {
            drop(client);
        }
        gone(&pool).await;
    }
}

#[tokio::test]
async fn a_request_goes_on_after_its_client_has_announced_the_end_of_the_connection() {
    let mut pool = Counted::start(1, &config(1, &json!({}), &json!({}))).await.unwrap();
    let running = pool.chat("running");
    pool.send(running);
    pool.wait_for(1, 0).await.unwrap();
    let mut client = RawHttp2::chat(&pool.stack.envoy).await;
    pool.wait_for(1, 1).await.unwrap();
    client.go_away().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(pool.waiting().await.unwrap(), 1);
    drop(client);
    gone(&pool).await;
}
