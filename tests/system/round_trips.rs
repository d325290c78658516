//! Chats through the whole stack to both model servers.

use serde_json::Value;
use sluice_testkit::{Protocol, SseEvents};

use crate::support::{
    CHAT, MODEL, Simulated, TEMPLATES, chat, completion, endless_chat, post, served_by, simulated, streamed_completion,
};

#[tokio::test]
async fn streamed_and_whole_answers_are_what_the_model_server_says() {
    let simulated = simulated().await.unwrap();
    let direct = format!("http://{}{CHAT}", simulated.servers[0].address());
    let through_envoy = simulated.stack.envoy.url(CHAT);
    for (protocol, content) in Protocol::ALL.into_iter().zip(["one", "two \u{1f30a} \"quoted\""]) {
        let client = protocol.client().unwrap();
        let ask = async |url: &str, stream: bool| {
            let response = post(&client, url, &chat(content, 50, stream)).send().await.unwrap();
            assert_eq!(response.status(), 200, "{protocol:?}");
            response
        };

        let whole = ask(&direct, false).await;
        let whole_type = whole.headers()["content-type"].clone();
        let expected = completion(&whole.json().await.unwrap()).unwrap();
        assert_eq!(expected.1, 50);
        let streamed_type = ask(&direct, true).await.headers()["content-type"].clone();

        let whole = ask(&through_envoy, false).await;
        assert_eq!(whole.headers()["content-type"], whole_type);
        assert_eq!(completion(&whole.json().await.unwrap()).unwrap(), expected, "{protocol:?}");

        let streamed = ask(&through_envoy, true).await;
        assert_eq!(streamed.headers()["content-type"], streamed_type);
        let events = SseEvents::of(streamed).collect().await.unwrap();
        assert_eq!(streamed_completion(&events).unwrap(), expected, "{protocol:?}");
    }
}

#[tokio::test]
async fn tokens_arrive_as_they_are_generated() {
    let simulated = simulated().await.unwrap();
    for protocol in Protocol::ALL {
        // 20,000 tokens take minutes: the first ones are here because nobody waits for the rest.
        let mut open = endless_chat(&protocol.client().unwrap(), &simulated.stack).await.unwrap();
        for _ in 0..5 {
            open.events.next().await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn the_picker_spreads_chats_over_both_servers() {
    for template in TEMPLATES {
        let simulated = Simulated::start_with(template, &[]).await.unwrap();
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            let first = endless_chat(&client, &simulated.stack).await.unwrap();
            let second = endless_chat(&client, &simulated.stack).await.unwrap();
            assert_ne!(first.server, second.server, "{template:?}, {protocol:?}");
            // A whole answer, from either server.
            let url = simulated.stack.envoy.url(CHAT);
            let third = post(&client, &url, &chat("short", 3, false)).send().await.unwrap();
            assert!(served_by(&third).unwrap() < 2);
            assert_eq!(completion(&third.json().await.unwrap()).unwrap().1, 3);

            drop((first, second));
            simulated.wait_until_idle().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_get_reaches_a_model_server() {
    let simulated = simulated().await.unwrap();
    for protocol in Protocol::ALL {
        let request = protocol.client().unwrap().get(simulated.stack.envoy.url("/v1/models"));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{protocol:?}");
        let models: Value = response.json().await.unwrap();
        assert_eq!(models["data"][0]["id"], MODEL);
    }
}

#[tokio::test]
async fn an_error_of_the_model_server_reaches_the_client_as_it_is() {
    let simulated = simulated().await.unwrap();
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let mut body = chat("hello", 5, false);
        body["model"] = "unknown-model".into();
        let direct = format!("http://{}{CHAT}", simulated.servers[0].address());
        let direct = post(&client, &direct, &body).send().await.unwrap();
        let through_envoy = post(&client, &simulated.stack.envoy.url(CHAT), &body).send().await.unwrap();
        assert_eq!(through_envoy.status(), 404, "{protocol:?}");
        assert_eq!(through_envoy.status(), direct.status());
        assert_eq!(through_envoy.bytes().await.unwrap(), direct.bytes().await.unwrap());
    }
}
