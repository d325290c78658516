use std::time::Duration;

use anyhow::{Result, ensure};
use sluice_testkit::{Protocol, RecordingUpstream, Reply, SseEvents, Stack};
use tokio::task::JoinSet;

use crate::support::{CHAT, TEMPLATES, chat, picker, post};

const STREAMS: usize = 60;
const EVENTS: u32 = 150;

async fn all_events(request: reqwest::RequestBuilder) -> Result<()> {
    let events = SseEvents::of(request.send().await?.error_for_status()?).collect().await?;
    let expected = (0..EVENTS).map(|event| format!("{{\"event\": {event}}}")).chain(["[DONE]".to_owned()]);
    ensure!(expected.eq(events.iter().cloned()), "{} events: {:?}", events.len(), events.last());
    Ok(())
}

/// Under a load with which the defaults of an HTTP/2 server would close the connection, and with it all streams.
#[tokio::test]
async fn a_picker_that_stalls_for_two_seconds_costs_no_stream() {
    let server = RecordingUpstream::start(Reply::Events { count: EVENTS, pause_ms: 20 }).unwrap();
    for template in TEMPLATES {
        let mut stack = Stack::start(picker(), template, &[server.address()]).await.unwrap();
        let client = Protocol::Http2.client().unwrap();
        let url = stack.envoy.url(CHAT);
        let mut streams: JoinSet<_> =
            (0..STREAMS).map(|_| all_events(post(&client, &url, &chat("hello", 1, true)))).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let picker = stack.picker.process_mut();
        picker.freeze().unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        picker.resume().unwrap();

        let mut complete = 0;
        while let Some(stream) = streams.join_next().await {
            stream.unwrap().unwrap_or_else(|error| panic!("{template:?}, after {complete} complete ones: {error:#}"));
            complete += 1;
        }
        assert_eq!(complete, STREAMS);
    }
}
