//! What a new leader makes of the requests that model servers still run for the one before.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Client;
use serde_json::{Value, json};
use sluice_core::{Clock as _, SystemClock, Time};
use sluice_testkit::apiserver::pod;
use sluice_testkit::{
    Envoy, EnvoyConfig, Part, Picker, Protocol, Resource, Simulator, Template, eventually, workspace,
};
use tokio::task::JoinSet;
use tonic_health::pb::health_check_response::ServingStatus;

use super::cluster::{config, labels};
use super::fleet::{Fleet, wait_for_endpoints, wait_for_healthy, wait_for_readiness};
use crate::support::{CHAT, LIMIT, MODEL, chat, post};

const SLOTS: u32 = 4;
/// Requests of the first leader.
const OLD: usize = 3;
/// Of which one finds a slot.
const NEW: usize = 4;
/// What model servers say counts for twice as long after a change of leaders.
const STALENESS: [&str; 2] = ["--metrics-staleness-threshold", "10s"];
/// Less than that, by far more than it takes until requests come.
const WATCHED: Duration = Duration::from_secs(4);

/// Flow control whose pickers read what model servers say.
fn scraped() -> Value {
    let mut config = config(SLOTS);
    config["plugins"].as_array_mut().into_iter().for_each(|plugins| {
        for plugin in plugins.iter_mut().filter(|plugin| plugin["type"] == "active-request-scorer") {
            *plugin = json!({"type": "queue-scorer"});
        }
    });
    config["schedulingProfiles"][0]["plugins"] = json!([{"pluginRef": "queue-scorer"}]);
    config
}

/// For an Envoy that has done with its picker when a response begins, and goes on with it when the picker dies.
fn surviving() -> Result<EnvoyConfig> {
    let mut envoy = EnvoyConfig::from_template(Template::Ha)?;
    envoy.put(Part::ProcessingMode, "response_body_mode", "NONE")?;
    envoy.put(Part::ProcessingMode, "response_trailer_mode", "SKIP")?;
    Ok(envoy)
}

/// Requests that the model server has, those that wait in it included.
async fn in_server(server: &Simulator) -> Result<i64> {
    let page = server.metrics().await?;
    let count = |name: &str| page.count(name, &[]).with_context(|| format!("no {name}"));
    Ok(count("vllm:num_requests_running")? + count("vllm:num_requests_waiting")?)
}

async fn wait_for(server: &Simulator, requests: usize) -> Result<()> {
    let wanted = i64::try_from(requests)?;
    eventually(LIMIT, "what the model server runs", async || Ok((in_server(server).await? == wanted).then_some(())))
        .await
}

/// What one picker says of its only endpoint and of what waits: inherited, its own, waiting.
async fn books(picker: &Picker) -> Result<[u64; 3]> {
    let page = picker.flow().await?;
    let endpoint = &page["endpoints"][0];
    let numbers = [&endpoint["inherited"], &endpoint["inFlight"]["requests"], &page["waiting"]["requests"]];
    Ok(numbers.map(|number| number.as_u64().unwrap_or_default()))
}

/// Sends requests that go on until they are given up.
fn send(envoy: &Envoy, client: &Client, requests: usize) -> JoinSet<()> {
    let request = || post(client, &envoy.url(CHAT), &chat("go on", 20_000, true));
    let run = |request: reqwest::RequestBuilder| async move {
        if let Ok(response) = request.send().await {
            drop(response.bytes().await);
        }
    };
    (0..requests).map(|_| run(request())).collect()
}

#[tokio::test]
async fn who_follows_a_leader_that_was_killed_fills_no_slot_that_is_still_in_use() {
    let [program] = workspace::build_programs(["model-server-sim"]).unwrap();
    let server = Simulator::start(&program, &["--model", MODEL, "--time-per-output-token", "20"]).await.unwrap();
    let fleet = Fleet::start(server.address().port(), &scraped()).await.unwrap();
    fleet.server.apply(Resource::POD, pod("a", "127.0.0.1", &labels()));
    let arguments = [&["--ha-enable-leader-election"], &STALENESS[..]].concat();
    let mut leader = fleet.start_picker(0, &arguments).await.unwrap();
    wait_for_readiness(&leader, ServingStatus::Serving).await.unwrap();
    let standby = fleet.start_picker(1, &arguments).await.unwrap();
    wait_for_endpoints(&standby, 1).await.unwrap();
    let surviving = fleet.start_envoy(surviving().unwrap()).await.unwrap();
    wait_for_healthy(&surviving, 1).await.unwrap();
    let client = Protocol::Http2.client().unwrap();
    let old = send(&surviving, &client, OLD);
    wait_for(&server, OLD).await.unwrap();

    leader.process_mut().kill().unwrap();
    wait_for_readiness(&standby, ServingStatus::Serving).await.unwrap();
    wait_for_healthy(&fleet.envoy, 1).await.unwrap();
    assert_eq!(in_server(&server).await.unwrap(), i64::try_from(OLD).unwrap(), "they still run");
    let new = send(&fleet.envoy, &client, NEW);
    eventually(LIMIT, "one runs and the others wait", async || {
        let expected = [OLD, 1, NEW - 1].map(|count| u64::try_from(count).unwrap_or_default());
        Ok((books(&standby).await? == expected).then_some(()))
    })
    .await
    .unwrap();
    let clock = SystemClock::start();
    while clock.now() < Time::ZERO.saturating_add(WATCHED) {
        let most = in_server(&server).await.unwrap();
        assert!(most <= i64::from(SLOTS), "{most} requests in {SLOTS} slots");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(in_server(&server).await.unwrap(), i64::from(SLOTS), "and none is left empty");
    // With the end of what was inherited there is room for all.
    drop(old);
    eventually(LIMIT, "nobody waits", async || Ok((books(&standby).await?[2] == 0).then_some(()))).await.unwrap();
    wait_for(&server, NEW).await.unwrap();
    drop(new);
}
