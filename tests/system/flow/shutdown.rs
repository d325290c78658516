//! A picker that is told to stop: what runs goes on, what waits is told.

use std::time::Duration;

use futures_util::stream;
use serde_json::json;
use sluice_core::{Clock, SystemClock};

use super::support::{Counted, assert_refused, config, envoy, streamed};
use crate::support::{CHAT, LIMIT};

#[tokio::test]
async fn after_the_drain_window_queued_requests_are_refused_and_running_streams_end_by_themselves() {
    const WINDOW: Duration = Duration::from_secs(1);
    let config = config(1, &json!({}), &json!({}));
    let arguments = ["--drain-timeout", "1s"];
    let mut pool = Counted::start_with(1, &config, &arguments, envoy().unwrap()).await.unwrap();
    let mut running = streamed(pool.chat("running")).send().await.unwrap();
    assert!(running.chunk().await.unwrap().is_some());

    let queued = pool.chat("queued").send();
    // Its headers are known before the picker stops, its body does not end before.
    let (end_body, body_ends) = tokio::sync::oneshot::channel::<()>();
    let body = stream::once(async {
        body_ends.await.unwrap();
        Ok::<_, std::io::Error>(crate::support::chat("hello", 1, false).to_string())
    });
    let url = pool.stack.envoy.url(CHAT);
    let client = sluice_testkit::Protocol::Http2.client().unwrap();
    let late = client.post(url).header("content-type", "application/json");
    let late = late.body(reqwest::Body::wrap_stream(body)).send();
    let clock = SystemClock::start();
    let server = &pool.servers[0];
    let process = pool.stack.picker.process_mut();
    let (exit, (), late, ()) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            process.terminate(LIMIT).await.unwrap()
        },
        async {
            let sent = clock.now();
            let queued = queued.await.unwrap();
            let waited = clock.now().saturating_since(sent);
            assert!(waited >= WINDOW, "the window is for serving: {waited:?}");
            let message = "flow controller shutting down: request evicted from queue: flow controller is not running";
            assert_refused(queued, 503, "rejected-shutting-down", message).await;
        },
        late,
        async {
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            server.release(1);
            let rest = running.chunk().await.unwrap();
            assert_eq!(rest.unwrap(), "data: [DONE]\n\n", "the running stream has come to its end");
        },
    );
    assert_refused(late.unwrap(), 503, "rejected-shutting-down", "the picker is shutting down").await;
    drop(end_body);
    assert!(exit.success(), "{exit}");
    assert_eq!(pool.servers[0].tags(), ["running"]);
}
