use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sluice_testkit::{
    CountingUpstream, EndpointsFile, Envoy, EnvoyConfig, Part, Picker, PickerConfig, Template, eventually,
};
use tempfile::TempDir;

use super::crowd::{Crowd, all_served};
use super::waiting::roomy;
use crate::support::{LIMIT, picker};

/// Two pickers, each with the whole pool of one model server, and an Envoy that asks both.
#[derive(Debug)]
struct Pair {
    envoy: Envoy,
    pickers: [Picker; 2],
    server: CountingUpstream,
    _dir: TempDir,
}

impl Pair {
    async fn start(config: &Value, arguments: &[&str]) -> Result<Self> {
        Self::start_behind(EnvoyConfig::from_template(Template::Ha)?, config, arguments).await
    }

    /// `envoy` is the configuration for two pickers, with other modes.
    async fn start_behind(mut envoy: EnvoyConfig, config: &Value, arguments: &[&str]) -> Result<Self> {
        let server = CountingUpstream::start()?;
        let dir = tempfile::tempdir()?;
        let endpoints = EndpointsFile::create(dir.path(), &[server.address()])?;
        let file = dir.path().join("picker.json");
        PickerConfig::custom(config, endpoints.path())?.write(&file)?;
        let start = || Picker::start(picker(), &file, arguments);
        let pickers = [start().await?, start().await?];
        envoy.set_pickers(&pickers.each_ref().map(Picker::ext_proc))?;
        Ok(Self { envoy: Envoy::start(&envoy).await?, pickers, server, _dir: dir })
    }

    /// Requests at the model server and requests that wait, as the first picker counts them and the second.
    async fn counts(&self) -> Result<[(u64, u64); 2]> {
        let count = async |picker: &Picker| {
            let page = picker.flow().await?;
            anyhow::Ok((page["leases"]["started"].as_u64(), page["waiting"]["requests"].as_u64()))
        };
        let [first, second] = [count(&self.pickers[0]).await?, count(&self.pickers[1]).await?];
        Ok([first, second].map(|(started, waiting)| (started.unwrap_or_default(), waiting.unwrap_or_default())))
    }

    /// Fills the only slot of each picker and puts `waiting` requests into their queues.
    async fn fill(&self, crowd: &mut Crowd, waiting: usize) -> Result<[(u64, u64); 2]> {
        crowd.send(waiting + 2, |request| request);
        let wanted = u64::try_from(waiting)?;
        let mut counts = [(0, 0); 2];
        eventually(LIMIT, "all requests wait", async || {
            counts = self.counts().await?;
            let [(first, waits_in_first), (second, waits_in_second)] = counts;
            Ok(((first, second) == (1, 1) && waits_in_first + waits_in_second == wanted).then_some(counts))
        })
        .await
        .with_context(|| format!("at the model server and waiting: {counts:?}"))
    }
}

/// Waits until so many requests wait in one picker.
async fn waiting_in(picker: &Picker, count: usize) -> Result<()> {
    let mut waiting = Value::Null;
    eventually(LIMIT, "all requests wait in the other picker", async || {
        waiting = picker.flow().await?["waiting"]["requests"].take();
        Ok((waiting == count).then_some(()))
    })
    .await
    .with_context(|| format!("{waiting} wait there"))
}

#[tokio::test]
async fn requests_that_wait_in_a_picker_that_is_killed_are_served_by_the_other() {
    const WAITING: usize = 2_400;
    let mut pair = Pair::start(&roomy(1), &[]).await.unwrap();
    let mut crowd = Crowd::new(WAITING + 2, |path| pair.envoy.url(path)).unwrap();
    let [(_, in_doomed), _] = pair.fill(&mut crowd, WAITING).await.unwrap();
    assert!(in_doomed >= 1_000, "{in_doomed} requests wait in the picker that will be killed");

    pair.pickers[0].process_mut().kill().unwrap();
    let waiting = waiting_in(&pair.pickers[1], WAITING).await;
    waiting.unwrap_or_else(|error| panic!("{error:#}; ended so far: {:?}", crowd.outcomes_so_far()));
    pair.server.release(WAITING + 2);
    let mut outcomes = crowd.outcomes().await;
    // The one that was at the model server is lost: its answer was to come through the picker that died.
    let lost = outcomes.remove("500").unwrap_or_default();
    assert_eq!((outcomes, lost), (all_served(WAITING + 1), 1));
}

#[tokio::test]
async fn requests_that_wait_in_a_picker_that_hangs_are_served_by_the_other() {
    const WAITING: usize = 500;
    let mut pair = Pair::start(&roomy(1), &[]).await.unwrap();
    let mut crowd = Crowd::new(WAITING + 2, |path| pair.envoy.url(path)).unwrap();
    let [(_, in_doomed), _] = pair.fill(&mut crowd, WAITING).await.unwrap();
    assert!(in_doomed > 100, "{in_doomed} requests wait in the picker that will hang");

    pair.pickers[0].process_mut().freeze().unwrap();
    let waiting = waiting_in(&pair.pickers[1], WAITING).await;
    waiting.unwrap_or_else(|error| panic!("{error:#}; ended so far: {:?}", crowd.outcomes_so_far()));
    pair.server.release(WAITING + 2);
    let mut outcomes = crowd.outcomes().await;
    let lost = outcomes.remove("500").unwrap_or_default();
    assert_eq!((outcomes, lost), (all_served(WAITING + 1), 1));
}

#[tokio::test]
async fn requests_that_wait_in_a_picker_that_drains_are_handed_over_and_what_runs_goes_on() {
    const WAITING: usize = 2_400;
    let mut config = roomy(1);
    config["sluice"]["drain"] = json!({"queued": "hand-over"});
    let mut pair = Pair::start(&config, &["--drain-timeout", "500ms"]).await.unwrap();
    let mut crowd = Crowd::new(WAITING + 2, |path| pair.envoy.url(path)).unwrap();
    let [(_, in_leaving), _] = pair.fill(&mut crowd, WAITING).await.unwrap();
    assert!(in_leaving >= 1_000, "{in_leaving} requests wait in the picker that will be told to stop");

    let (leaving, staying) = pair.pickers.split_at_mut(1);
    let exit = leaving[0].process_mut().terminate(LIMIT);
    let moved = async {
        waiting_in(&staying[0], WAITING).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        pair.server.release(WAITING + 2);
    };
    let (exit, ()) = tokio::join!(exit, moved);
    assert!(exit.unwrap().success());
    assert_eq!(crowd.outcomes().await, all_served(WAITING + 2));
}

/// Two pickers that place requests by their headers, and know that Envoy waits for an hour.
fn headers_alone() -> EnvoyConfig {
    let mut envoy = EnvoyConfig::from_template(Template::Ha).unwrap();
    envoy.put(Part::ProcessingMode, "request_body_mode", "NONE").unwrap();
    envoy.put(Part::ProcessingMode, "response_body_mode", "NONE").unwrap();
    let told = json!([{"key": "x-sluice-message-timeout", "value": "3600s"}]);
    envoy.put(Part::GrpcService, "initial_metadata", told).unwrap();
    envoy
}

/// A picker that asks Envoy for more time has said something, and what it holds stays with it.
#[tokio::test]
async fn requests_that_wait_by_their_headers_alone_move_to_the_other_picker_as_well() {
    const WAITING: usize = 500;
    for killed in [true, false] {
        let mut config = roomy(1);
        config["sluice"]["drain"] = json!({"queued": "hand-over"});
        let mut pair = Pair::start_behind(headers_alone(), &config, &["--drain-timeout", "500ms"]).await.unwrap();
        let mut crowd = Crowd::new(WAITING + 2, |path| pair.envoy.url(path)).unwrap();
        let [(_, in_leaving), _] = pair.fill(&mut crowd, WAITING).await.unwrap();
        assert!(in_leaving > 100, "{in_leaving} requests wait in the picker that will go");
        // Long after the time at which it would ask a proxy that tells nothing.
        tokio::time::sleep(Duration::from_millis(500)).await;

        let (leaving, staying) = pair.pickers.split_at_mut(1);
        let moved = async {
            waiting_in(&staying[0], WAITING).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            pair.server.release(WAITING + 2);
        };
        if killed {
            leaving[0].process_mut().kill().unwrap();
            moved.await;
            let mut outcomes = crowd.outcomes().await;
            let lost = outcomes.remove("500").unwrap_or_default();
            assert_eq!((outcomes, lost), (all_served(WAITING + 1), 1), "the one that was at the model server");
        } else {
            let (exit, ()) = tokio::join!(leaving[0].process_mut().terminate(LIMIT), moved);
            assert!(exit.unwrap().success());
            assert_eq!(crowd.outcomes().await, all_served(WAITING + 2));
        }
    }
}
