//! How Envoy is connected to the picker.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use sluice_testkit::{
    EnvoyConfig, Part, PickerConfig, Protocol, RecordingUpstream, Reply, Stack, Template, eventually,
};

use crate::support::{CHAT, LIMIT, MODEL, chat, picker, post};

#[tokio::test]
async fn messages_larger_than_they_may_be_are_errors_that_are_seen() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for (limit, status) in [("--grpc-max-recv-msg-size=8Ki", 413), ("--grpc-max-send-msg-size=8Ki", 500)] {
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
        assert_eq!(send(16_000).await, status, "{limit}");
        assert_eq!(send(4_000).await, 200, "{limit}: other requests are none the worse");
    }
}

#[tokio::test]
async fn every_configuration_of_envoy_serves_chats() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for template in Template::ALL {
        let stack = Stack::start(picker(), template, &[server.address()]).await.unwrap();
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            let body = chat("hello", 1, false);
            let response = post(&client, &stack.envoy.url(CHAT), &body).send().await.unwrap();
            assert_eq!(response.status(), 200, "{template:?}, {protocol:?}");
            assert_eq!(response.text().await.unwrap(), body.to_string(), "{template:?}, {protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_picker_that_asks_for_certificates_serves_an_envoy_that_shows_one_and_no_other() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["envoy".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(path("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(path("tls.key"), key.serialize_pem()).unwrap();
    let pair =
        json!([{"certificate_chain": {"filename": path("tls.crt")}, "private_key": {"filename": path("tls.key")}}]);
    // It vouches for itself.
    let ca = format!("--client-ca-file={}", path("tls.crt"));
    for (certificates, status) in [(pair, 200), (json!([]), 500)] {
        let mut envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
        let context = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2"], "tls_certificates": certificates},
        });
        let socket = json!({"name": "envoy.transport_sockets.tls", "typed_config": context});
        envoy.put(Part::Picker, "transport_socket", socket).unwrap();
        let (arguments, servers) = ([&*ca], [server.address()]);
        let stack = Stack::start_configured(picker(), &arguments, PickerConfig::standalone, envoy, &servers);
        let stack = stack.await.unwrap();
        let client = Protocol::Http1.client().unwrap();
        let response = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false)).send().await.unwrap();
        assert_eq!(response.status(), status, "{}", stack.logs());
    }
}

#[tokio::test]
async fn with_the_configuration_per_request_the_picker_sees_the_bodies_that_it_asks_for() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for (bodies, model) in [("headers", ""), ("full", MODEL)] {
        let envoy = EnvoyConfig::from_template(Template::PerRequest).unwrap();
        let config = |endpoints: &Path| {
            let mut config = PickerConfig::standalone(endpoints)?;
            config.add("", "sluice", json!({"bodies": bodies}))?;
            Ok(config)
        };
        let servers = [server.address()];
        let stack = Stack::start_configured(picker(), &[], config, envoy, &servers).await.unwrap();
        let client = Protocol::Http1.client().unwrap();
        let response = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false)).send().await.unwrap();
        assert_eq!(response.status(), 200, "{bodies}");
        let metrics = stack.picker.metrics().await.unwrap();
        assert_eq!(metrics.count("llm_d_epp_request_total", &[("model_name", model)]), Some(1), "{bodies}");
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
