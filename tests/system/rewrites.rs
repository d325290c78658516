//! Models have another name for model servers than for clients.

use std::path::Path;

use anyhow::Result;
use futures_util::stream;
use serde_json::{Value, json};
use sluice_testkit::{
    EnvoyConfig, PickerConfig, Protocol, RecordingUpstream, Reply, ResponseEnd, Simulator, SseEvents, Stack, Template,
    flow_config, workspace,
};

use crate::envoy::modes::with_modes;
use crate::support::{CHAT, LIMIT, MODEL, chat, picker, post};

/// As clients call the model: shorter than its name, and longer.
const ALIASES: [&str; 2] = [ALIAS, "whatever \"chats\" best"];
const ALIAS: &str = "chat\"x";

fn rules(targets: &Value) -> impl FnOnce(&Path) -> Result<PickerConfig> {
    let mut config = flow_config(100);
    let matches = ALIASES.map(|alias| json!({"model": {"type": "Exact", "value": alias}}));
    config["sluice"]["modelRewrites"] = json!([{"matches": matches, "targets": targets}]);
    move |endpoints| PickerConfig::custom(&config, endpoints)
}

fn one_target() -> Value {
    json!([{"modelRewrite": MODEL}])
}

/// A long chat by the alias, in a form that no library would write.
fn body_for(model: &str) -> String {
    let model = json!(model);
    let text = "\\u003chello\\n ".repeat(20_000);
    format!(
        "{{ \"z\":1.50,\n\"model\" :{model} , \"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}],\"a\":1e2}}\n"
    )
}

#[tokio::test]
async fn only_the_name_changes_on_the_way_to_the_server_and_it_changes_back_on_the_way_to_the_client() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    let mut configs = vec![("per request".to_owned(), EnvoyConfig::from_template(Template::PerRequest).unwrap(), true)];
    for request in ["FULL_DUPLEX_STREAMED", "BUFFERED"] {
        for response in ["NONE", "STREAMED", "BUFFERED", "FULL_DUPLEX_STREAMED"] {
            let envoy = with_modes(request, response).unwrap();
            configs.push((format!("{request}, {response}"), envoy, response != "NONE"));
        }
    }
    for (modes, envoy, restores) in configs {
        let stack =
            Stack::start_configured(picker(), &[], rules(&one_target()), envoy, &[server.address()]).await.unwrap();
        for (protocol, has_length) in [(Protocol::Http1, true), (Protocol::Http1, false), (Protocol::Http2, true)] {
            for alias in ALIASES {
                let case = format!("{modes}-{protocol:?}-{has_length}-{}", alias.len()).replace([' ', ','], "");
                let url = stack.envoy.url(&format!("{CHAT}?{case}"));
                let (sent, expected) = (body_for(alias), body_for(MODEL));
                let request = protocol.client().unwrap().post(url).header("content-type", "application/json");
                let response = request.body(body_of(&sent, has_length)).send().await.unwrap();
                assert_eq!(response.status(), 200, "{case}\n{}", stack.logs());
                let echo = response.text().await.unwrap();
                assert_eq!(echo == sent, restores, "{case}: what the client reads");
                assert_eq!(echo == expected, !restores, "{case}: what the client reads");
                let arrived = server
                    .find(LIMIT, |request| {
                        request.uri.query() == Some(case.as_str()) && request.response == ResponseEnd::Complete
                    })
                    .await
                    .unwrap();
                assert!(
                    arrived.body().is_some_and(|body| body == expected.as_bytes()),
                    "{case}: what the server reads"
                );
                let lengths: Vec<_> = arrived.headers.get_all("content-length").iter().collect();
                assert!(lengths.is_empty() || lengths == [&expected.len().to_string()], "{case}: {lengths:?}");
            }
        }
    }
}

/// With its length, or in parts.
fn body_of(text: &str, has_length: bool) -> reqwest::Body {
    if has_length {
        return reqwest::Body::from(text.to_owned());
    }
    let parts: Vec<_> = text.as_bytes().chunks(7_000).map(|part| Ok::<_, std::io::Error>(part.to_vec())).collect();
    reqwest::Body::wrap_stream(stream::iter(parts))
}

#[tokio::test]
async fn documents_and_events_of_a_model_server_have_the_clients_name() {
    let [program] = workspace::build_programs(["model-server-sim"]).unwrap();
    let server = Simulator::start(&program, &["--model", MODEL, "--time-per-output-token", "1"]).await.unwrap();
    let configs = [
        EnvoyConfig::from_template(Template::FullDuplex).unwrap(),
        EnvoyConfig::from_template(Template::PerRequest).unwrap(),
        with_modes("BUFFERED", "BUFFERED").unwrap(),
    ];
    for envoy in configs {
        let stack =
            Stack::start_configured(picker(), &[], rules(&one_target()), envoy, &[server.address()]).await.unwrap();
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let client = protocol.client().unwrap();
            let ask = async |stream: bool| {
                let mut body = chat("hello", 5, stream);
                body["model"] = json!(ALIAS);
                post(&client, &stack.envoy.url(CHAT), &body).send().await.unwrap().error_for_status().unwrap()
            };
            // The simulator knows no other model than its own.
            let document: Value = ask(false).await.json().await.unwrap();
            assert_eq!(document["model"], ALIAS);
            let events = SseEvents::of(ask(true).await).collect().await.unwrap();
            let (last, events) = events.split_last().unwrap();
            assert_eq!((last.as_str(), events.is_empty()), ("[DONE]", false));
            for event in events {
                let event: Value = serde_json::from_str(event).unwrap();
                assert_eq!(event["model"], ALIAS, "{event}");
            }
        }
        let page = stack.picker.metrics().await.unwrap();
        let labels = [("model_name", ALIAS), ("target_model_name", MODEL)];
        assert_eq!(page.count("llm_d_epp_request_total", &labels), Some(4));
        let labels = [("model_rewrite_name", "sluice.modelRewrites"), ("model_name", ALIAS), ("target_model", MODEL)];
        assert_eq!(page.count("llm_d_epp_model_rewrite_decisions_total", &labels), Some(4));
    }
}

#[tokio::test]
async fn requests_are_divided_among_targets_by_their_weights() {
    const REQUESTS: usize = 200;
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    let targets =
        json!([{"modelRewrite": "a", "weight": 9}, {"modelRewrite": "b", "weight": 1}, {"modelRewrite": "c"}]);
    let envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    let stack = Stack::start_configured(picker(), &[], rules(&targets), envoy, &[server.address()]).await.unwrap();
    let client = Protocol::Http2.client().unwrap();
    let mut body = chat("hello", 1, false);
    body["model"] = json!(ALIAS);
    for _ in 0..REQUESTS {
        post(&client, &stack.envoy.url(CHAT), &body).send().await.unwrap().error_for_status().unwrap();
    }
    let asked_for = |model: &str| {
        let requests = server.requests();
        let bodies = requests.iter().filter_map(|request| serde_json::from_slice::<Value>(request.body()?).ok());
        bodies.filter(|body| body["model"] == model).count()
    };
    let (a, b) = (asked_for("a"), asked_for("b"));
    assert_eq!((a + b, asked_for("c")), (REQUESTS, 0));
    // 20 of 200 are expected; fewer than 4 or more than 45 come once in a million runs.
    assert!((4..=45).contains(&b), "{b} of {REQUESTS}");
}

#[tokio::test]
async fn where_the_picker_sees_no_body_the_name_stays_and_the_log_says_so_once() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for mode in ["NONE", "STREAMED"] {
        let envoy = with_modes(mode, "FULL_DUPLEX_STREAMED").unwrap();
        let stack =
            Stack::start_configured(picker(), &[], rules(&one_target()), envoy, &[server.address()]).await.unwrap();
        let client = Protocol::Http1.client().unwrap();
        for number in 0..3 {
            let path = format!("{CHAT}?{mode}-{number}");
            let request = client.post(stack.envoy.url(&path)).body(body_for(ALIAS));
            request.send().await.unwrap().error_for_status().unwrap();
            let arrived = server.find(LIMIT, |request| request.uri == *path && request.body().is_some()).await.unwrap();
            assert!(arrived.body().is_some_and(|body| body == body_for(ALIAS).as_bytes()), "{path}");
        }
        let lines = stack.picker.process().output().lines();
        let told = lines.iter().filter(|line| line.contains("the models of requests are not replaced")).count();
        assert_eq!(told, 1, "{mode}");
    }
}
