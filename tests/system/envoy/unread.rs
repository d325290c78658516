//! Clients that leave their answers unread.

use serde_json::json;
use sluice_testkit::{Part, STREAM_HEADER, TAG_HEADER, eventually};

use super::raw_http2::RawHttp2;
use crate::flow::support::{Counted, OBJECTIVE, config, envoy};
use crate::support::LIMIT;

/// Envoy does not let the model server go before the client has read the end that it was given.
#[tokio::test]
async fn a_client_that_does_not_read_holds_the_place_of_its_evicted_request_for_a_bounded_time_only() {
    let mut envoy = envoy().unwrap();
    envoy.put(Part::ConnectionManager, "stream_flush_timeout", "1s").unwrap();
    let eviction = json!({"eviction": {"midStream": "event-then-end"}});
    let config = config(1, &json!({"enableEviction": true}), &eviction);
    let mut pool = Counted::start_with(1, &config, &[], envoy).await.unwrap();
    let headers = [(OBJECTIVE, "batch"), (STREAM_HEADER, "1"), (TAG_HEADER, "unread")];
    let _unread = RawHttp2::chat_unread(&pool.stack.envoy, &headers).await;
    pool.wait_for(1, 0).await.unwrap();

    let urgent = pool.chat_for("interactive", "urgent");
    pool.send(urgent);
    eventually(LIMIT, "the urgent one has the place", async || {
        Ok((pool.servers[0].tags() == ["unread", "urgent"] && pool.servers[0].open() == 1).then_some(()))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", pool.stack.logs()));
}
