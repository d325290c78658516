//! What model servers say of themselves: it shows in the metrics of the pool, and is not asked for if nobody acts on it.

mod hostile;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use sluice_testkit::{
    CountingUpstream, EndpointsFile, EnvoyConfig, Picker, PickerConfig, Simulator, Stack, Template, eventually,
    flow_config, workspace,
};

use crate::support::{CHAT, LIMIT, MODEL, chat, picker, post};

/// Flow control by what is in flight, and a scorer of endpoints.
fn config(scorer: &str) -> Value {
    let mut config = flow_config(100);
    config["plugins"][2] = json!({"type": scorer});
    config["schedulingProfiles"][0]["plugins"] = json!([{"pluginRef": scorer}]);
    config
}

#[tokio::test]
async fn what_model_servers_run_shows_in_the_metrics_of_the_pool() -> Result<()> {
    let [program] = workspace::build_programs(["model-server-sim"])?;
    let start = || Simulator::start(&program, &["--model", MODEL, "--time-per-output-token", "20"]);
    let mut servers = [start().await?, start().await?];
    let addresses = servers.each_ref().map(Simulator::address);
    let custom = |endpoints: &Path| PickerConfig::custom(&config("running-requests-size-scorer"), endpoints);
    let envoy = EnvoyConfig::from_template(Template::FullDuplex)?;
    let arguments = ["--metrics-staleness-threshold=500ms"];
    let stack = Stack::start_configured(picker(), &arguments, custom, envoy, &addresses).await?;
    let gauge = async |name: &str| Ok::<_, anyhow::Error>(stack.picker.metrics().await?.sum(name, &[]));

    eventually(LIMIT, "both endpoints are fresh", async || {
        Ok((gauge("llm_d_epp_ready_endpoints").await? == Some(2.0)).then_some(()))
    })
    .await?;
    let client = reqwest::Client::new();
    let running = post(&client, &stack.envoy.url(CHAT), &chat("hello", 10_000, true)).send().await?;
    eventually(LIMIT, "the running request shows", async || {
        Ok((gauge("llm_d_epp_average_running_requests").await? == Some(0.5)).then_some(()))
    })
    .await?;
    drop(running);
    eventually(LIMIT, "its end shows", async || {
        Ok((gauge("llm_d_epp_average_running_requests").await? == Some(0.0)).then_some(()))
    })
    .await?;

    servers[1].process_mut().kill()?;
    eventually(LIMIT, "an endpoint is stale", async || {
        let counts = (gauge("llm_d_epp_ready_endpoints").await?, gauge("llm_d_epp_stale_endpoints").await?);
        Ok((counts == (Some(1.0), Some(1.0))).then_some(()))
    })
    .await?;
    // The scrape in which it died may have up to a second to end.
    eventually(LIMIT, "an error is counted", async || {
        Ok((gauge("llm_d_epp_datalayer_poll_errors_total").await? > Some(0.0)).then_some(()))
    })
    .await?;
    let page = stack.picker.metrics().await?;
    let queues = page.samples().iter().filter(|sample| sample.name == "llm_d_epp_per_endpoint_queue_size");
    assert_eq!(queues.count(), 1, "what is stale is absent");
    Ok(())
}

#[tokio::test]
async fn nobody_is_asked_for_metrics_that_nobody_acts_on() -> Result<()> {
    for (scorer, is_scraped) in [("active-request-scorer", false), ("queue-scorer", true)] {
        let server = CountingUpstream::start()?;
        let dir = tempfile::tempdir()?;
        let endpoints = EndpointsFile::create(dir.path(), &[server.address()])?;
        let file = dir.path().join("picker.json");
        PickerConfig::custom(&config(scorer), endpoints.path())?.write(&file)?;
        let picker = Picker::start(picker(), &file, &["--secure-serving=false"]).await?;
        if is_scraped {
            eventually(LIMIT, "the server is asked", async || Ok((server.scrapes() > 0).then_some(()))).await?;
        } else {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(server.scrapes(), 0, "{scorer}");
        }
        let ready = picker.metrics().await?.sum("llm_d_epp_ready_endpoints", &[]);
        assert_eq!(ready.is_some(), is_scraped, "{scorer}");
    }
    Ok(())
}
