//! How Envoy is connected to the picker.

use anyhow::{Context, Result};
use sluice_testkit::{EnvoyConfig, PickerConfig, Protocol, RecordingUpstream, Reply, Stack, Template, eventually};

use crate::support::{CHAT, LIMIT, chat, picker, post};

#[tokio::test]
async fn messages_larger_than_they_may_be_are_errors_that_are_seen() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for limit in ["--grpc-max-recv-msg-size=8Ki", "--grpc-max-send-msg-size=8Ki"] {
        let envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
        let (arguments, servers) = ([limit], [server.address()]);
        let stack = Stack::start_configured(picker(), &arguments, PickerConfig::standalone, envoy, &servers);
        let stack = stack.await.unwrap();
        let client = Protocol::Http1.client().unwrap();
        let send = async |length: usize| {
            let body = chat(&"x".repeat(length), 1, false);
            post(&client, &stack.envoy.url(CHAT), &body).send().await.unwrap().status()
        };
        assert_eq!(send(4_000).await, 200, "{limit}");
        assert_eq!(send(16_000).await, 500, "{limit}");
        assert_eq!(send(4_000).await, 200, "{limit}: other requests are none the worse");
    }
}

async fn ask_a_healthy_picker(arguments: &[&str], envoy: EnvoyConfig) -> Result<()> {
    let server = RecordingUpstream::start(Reply::Echo)?;
    let servers = [server.address()];
    let stack = Stack::start_configured(picker(), arguments, PickerConfig::standalone, envoy, &servers).await?;
    let client = Protocol::Http1.client()?;
    post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false)).send().await?.error_for_status()?;

    // The health service answers on the same port.
    eventually(LIMIT, "the picker has passed a health check", async || {
        let stats = stack.envoy.stats().await?;
        let count = |name| stats.count(name, &[("envoy_cluster_name", "picker")]);
        let passed = count("envoy_cluster_health_check_success") >= Some(1);
        Ok((passed && count("envoy_cluster_membership_healthy") == Some(1)).then_some(()))
    })
    .await
    .context(stack.logs())
}

#[tokio::test]
async fn envoy_asks_a_healthy_picker_over_tls_as_the_templates_have_it() {
    let envoy = EnvoyConfig::from_template(Template::ResponseBypass).unwrap();
    ask_a_healthy_picker(&[], envoy).await.unwrap();
}

#[tokio::test]
async fn envoy_asks_a_healthy_picker_in_plaintext() {
    let mut envoy = EnvoyConfig::from_template(Template::ResponseBypass).unwrap();
    envoy.without_tls().unwrap();
    ask_a_healthy_picker(&["--secure-serving=false"], envoy).await.unwrap();
}
