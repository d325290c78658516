//! What filters of Envoy and the picker tell each other.

use serde_json::{Value, json};
use sluice_testkit::{EnvoyConfig, Part, PickerConfig, Protocol, RecordingUpstream, Reply, Stack, Template};
use tokio::task::JoinSet;

use crate::raw::{Then, server};
use crate::support::{CHAT, TEMPLATES, chat, picker, post};

/// A filter before the picker that allows these endpoints only.
fn hint(endpoints: &Value) -> Value {
    json!({
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{
                "metadata_namespace": "envoy.lb.subset_hint",
                "value": {"x-gateway-destination-endpoint-subset": endpoints},
            }],
        },
    })
}

async fn stack(envoy: EnvoyConfig, servers: &[std::net::SocketAddr]) -> Stack {
    Stack::start_configured(picker(), &[], PickerConfig::standalone, envoy, servers).await.unwrap()
}

#[tokio::test]
async fn a_hint_may_be_a_list_or_a_text_and_holds_for_every_kind_of_request() {
    let servers = [0; 3].map(|_| RecordingUpstream::start(Reply::Echo).unwrap());
    let addresses = servers.each_ref().map(RecordingUpstream::address);
    let allowed = addresses[1].to_string();
    for endpoints in [json!(allowed), json!([allowed]), json!([allowed, "10.0.0.1:1"])] {
        for template in TEMPLATES {
            let mut envoy = EnvoyConfig::from_template(template).unwrap();
            envoy.insert_http_filter(hint(&endpoints)).unwrap();
            let stack = stack(envoy, &addresses).await;
            for protocol in Protocol::ALL {
                let client = protocol.client().unwrap();
                for _ in 0..3 {
                    let chat = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false));
                    let raw = client.post(stack.envoy.url("/raw")).body("raw");
                    for request in [chat, raw, client.get(stack.envoy.url("/v1/models"))] {
                        let response = request.send().await.unwrap();
                        assert_eq!(response.status(), 200, "{endpoints}, {template:?}, {protocol:?}");
                    }
                }
            }
        }
    }
    assert_eq!(servers[1].requests().len(), 3 * TEMPLATES.len() * 2 * 3 * 3);
    assert!(servers[0].requests().is_empty() && servers[2].requests().is_empty());
}

#[tokio::test]
async fn a_model_server_may_have_an_ipv6_address_in_pool_and_hint() {
    let mut servers = JoinSet::new();
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nv6";
    let v6 = server("::1", answer, Then::Close(std::time::Duration::ZERO), &mut servers).await;
    let v4 = RecordingUpstream::start(Reply::Echo).unwrap();
    let mut envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    envoy.insert_http_filter(hint(&json!([v6.to_string()]))).unwrap();
    let stack = stack(envoy, &[v4.address(), v6]).await;
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        for _ in 0..3 {
            let chat = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false)).send().await.unwrap();
            assert_eq!(chat.text().await.unwrap(), "v6", "{protocol:?}");
            let bodiless = client.get(stack.envoy.url("/v1/models")).send().await.unwrap();
            assert_eq!(bodiless.text().await.unwrap(), "v6", "{protocol:?}");
        }
    }
}

/// Then no header decides, and none can be forged.
#[tokio::test]
async fn envoy_may_take_the_destination_from_metadata() {
    let outsider = RecordingUpstream::start(Reply::Echo).unwrap();
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for template in TEMPLATES {
        let mut envoy = EnvoyConfig::from_template(template).unwrap();
        let key = json!({"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]});
        envoy.put(Part::ModelServers, "original_dst_lb_config", json!({"metadata_key": key})).unwrap();
        let stack = stack(envoy, &[server.address()]).await;
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            let chat = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false));
            for request in [chat, client.get(stack.envoy.url("/v1/models"))] {
                let request = request.header("x-gateway-destination-endpoint", outsider.address().to_string());
                assert_eq!(request.send().await.unwrap().status(), 200, "{template:?}, {protocol:?}");
            }
        }
    }
    assert!(outsider.requests().is_empty());
    assert_eq!(server.requests().len(), TEMPLATES.len() * 2 * 2);
}
