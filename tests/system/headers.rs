//! Which headers reach the model server.

use sluice_testkit::{Protocol, RecordingUpstream, Reply};

use crate::support::{CHAT, DESTINATION, LIMIT, Recorded, TEMPLATES, chat, post};

/// Headers by which clients talk to the gateway, and those that steer a disaggregated model server.
const CONTROL_HEADERS: [&str; 12] = [
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-inference-ttl",
    "x-llm-d-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-llm-d-request-dropped-reason",
    "x-gateway-destination-endpoint-served",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
];

#[tokio::test]
async fn control_headers_do_not_reach_the_model_server_and_others_do() {
    for template in TEMPLATES {
        let Recorded { stack, server } = Recorded::start(template).await.unwrap();
        for protocol in Protocol::ALL {
            let case = format!("{template:?}, {protocol:?}");
            let path = format!("{CHAT}?headers-{protocol:?}");
            let body = chat("hello", 1, false);
            let mut request = post(&protocol.client().unwrap(), &stack.envoy.url(&path), &body);
            for name in CONTROL_HEADERS {
                request = request.header(name, "100");
            }
            let request = request.header("x-tag", "one").header("x-tag", "two").header("x-request-id", "my-own");
            assert_eq!(request.send().await.unwrap().status(), 200, "{case}");

            let arrived = server.find(LIMIT, |request| request.uri == *path).await.unwrap();
            for name in CONTROL_HEADERS {
                assert!(!arrived.headers.contains_key(name), "{case}: {name} has reached the model server");
            }
            let tags: Vec<_> = arrived.headers.get_all("x-tag").iter().collect();
            assert_eq!(tags, ["one", "two"], "{case}: lines of one name stay apart and in order");
            assert_eq!(arrived.headers["x-request-id"], "my-own", "{case}");
            assert_eq!(arrived.headers["content-type"], "application/json", "{case}");
            assert_eq!(arrived.headers[DESTINATION], server.address().to_string(), "{case}");
        }
    }
}

#[tokio::test]
async fn a_destination_named_by_the_client_is_ignored() {
    let outsider = RecordingUpstream::start(Reply::Echo).unwrap();
    let address = outsider.address().to_string();
    for template in TEMPLATES {
        let Recorded { stack, server } = Recorded::start(template).await.unwrap();
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            let spoofed = |path: &str| client.post(stack.envoy.url(path)).header(DESTINATION, &address);
            let chat_path = format!("{CHAT}?spoof-{protocol:?}");
            let raw_path = format!("/spoof/{protocol:?}");
            let sent = [
                (&chat_path, spoofed(&chat_path).body(chat("hello", 1, false).to_string())),
                (&raw_path, spoofed(&raw_path).header(DESTINATION, &address).body("raw")),
            ];
            for (path, request) in sent {
                let case = format!("{template:?}, {protocol:?}, {path}");
                assert_eq!(request.send().await.unwrap().status(), 200, "{case}");
                let arrived = server.find(LIMIT, |request| request.uri == **path).await.unwrap();
                let destinations: Vec<_> = arrived.headers.get_all(DESTINATION).iter().collect();
                assert_eq!(destinations, [&server.address().to_string()], "{case}");
            }
            let bodiless = client.get(stack.envoy.url("/spoof")).header(DESTINATION, &address);
            assert_eq!(bodiless.send().await.unwrap().status(), 200, "{template:?}, {protocol:?}");
        }
    }
    assert!(outsider.requests().is_empty(), "a client has chosen its own destination");
}
