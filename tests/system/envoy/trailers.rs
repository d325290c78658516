//! Responses that are trailers and nothing else: Envoy must not be asked for what it then waits for without end.

use std::path::Path;
use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::json;
use sluice_testkit::{EnvoyConfig, PickerConfig, Protocol, Stack, eventually};
use tokio::task::JoinSet;

use crate::flow::support::{OBJECTIVE, config};
use crate::raw::{Then, server};
use crate::support::{CHAT, LIMIT, TEMPLATES, chat, picker, post};

const JSON: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\
                    transfer-encoding: chunked\r\n\r\n0\r\nx-sum: 34\r\n\r\n";
const GRPC: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/grpc\r\n\
                    transfer-encoding: chunked\r\n\r\n0\r\nx-sum: 34\r\n\r\n";
/// Of a request that may be cut off with a last event, and that says that it has trailers.
const EVENTS: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntrailer: x-sum\r\n\
                      transfer-encoding: chunked\r\n\r\n0\r\nx-sum: 34\r\n\r\n";

#[tokio::test]
async fn a_response_of_headers_and_trailers_passes_in_every_template() {
    for template in TEMPLATES {
        for (bodies, answer) in [("auto", EVENTS), ("full", EVENTS), ("full", JSON), ("full", GRPC)] {
            let mut servers = JoinSet::new();
            let address = server("127.0.0.1", answer, Then::Close(Duration::from_secs(60)), &mut servers).await;
            let config = config(10, &json!({"enableEviction": true}), &json!({ "bodies": bodies }));
            let config = |endpoints: &Path| PickerConfig::custom(&config, endpoints);
            let envoy = EnvoyConfig::from_template(template).unwrap();
            let stack = Stack::start_configured(picker(), &[], config, envoy, &[address]).await.unwrap();
            for protocol in Protocol::ALL {
                let case = format!("{template:?}, {protocol:?}, {bodies}: {answer}");
                let client = protocol.client().unwrap();
                let request = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, true));
                let request = request.header("te", "trailers").header(OBJECTIVE, "batch");
                let response = tokio::time::timeout(LIMIT, async {
                    let response = http::Response::from(request.send().await.unwrap());
                    response.into_body().collect().await.unwrap()
                });
                let response = response.await.unwrap_or_else(|_| panic!("it hangs: {case}\n{}", stack.logs()));
                assert_eq!(response.trailers().unwrap()["x-sum"], "34", "{case}");
                eventually(LIMIT, "its place is free", async || {
                    Ok((stack.picker.flow().await?["leases"]["started"] == 0).then_some(()))
                })
                .await
                .unwrap_or_else(|error| panic!("{case}: {error:#}"));
            }
        }
    }
}
