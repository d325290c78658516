//! Another configuration is put in force while requests wait and run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use serde_json::{Value, json};
use sluice_testkit::{ReloadSoak, eventually, workspace};

use crate::flow::support::{Counted, config, of_tenant};
use crate::support::{LIMIT, picker};

/// The short form of `cargo xtask soak --reloads`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_notices_a_hundred_reloads() {
    let [simulator] = workspace::build_programs(["model-server-sim"]).unwrap();
    let soak = ReloadSoak { picker: picker(), simulator: &simulator, reloads: 100, seed: 1 };
    let report = soak.run().await.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.refused >= 5 && report.applied >= 50, "{report}");
    assert!(report.served >= 200, "{report}");
}

/// A pool with one place, and waiting requests of two tenants.
async fn waiting() -> (Counted, Value) {
    let config = config(1, &json!({}), &json!({}));
    let mut pool = Counted::start(1, &config).await.unwrap();
    let first = pool.chat("first");
    pool.send(first);
    pool.wait_for(1, 0).await.unwrap();
    for (waiting, tenant) in (1..).zip(["a", "a", "b", "b"]) {
        let request = of_tenant(pool.chat(tenant), tenant);
        pool.send(request);
        pool.wait_for(1, waiting).await.unwrap();
    }
    (pool, config)
}

async fn reload(pool: &Counted, mut config: Value) {
    config["plugins"][0]["parameters"]["path"] = pool.stack.endpoints.path().to_str().into();
    let before = pool.stack.picker.configuration().await.unwrap();
    pool.stack.replace_picker_config(&config.to_string()).unwrap();
    eventually(LIMIT, "the configuration is in force", async || {
        let now = pool.stack.picker.configuration().await?;
        anyhow::ensure!(now["failing"] == false, "{now:#}");
        Ok((now["sha256"] != before["sha256"]).then_some(()))
    })
    .await
    .unwrap();
}

/// Lets the one that runs end, and waits until the next one runs.
async fn next(pool: &Counted, waiting: u64) {
    pool.servers[0].release(1);
    pool.wait_for(1, waiting).await.unwrap();
}

#[tokio::test]
async fn turns_go_on_where_they_were() {
    let (pool, mut config) = waiting().await;
    next(&pool, 3).await;
    config["sluice"]["refusals"] = json!({"body": "text"});
    reload(&pool, config).await;
    next(&pool, 2).await;
    next(&pool, 1).await;
    assert_eq!(pool.servers[0].tags(), ["first", "a", "b", "a"], "b was next");
    pool.servers[0].release(2);
    pool.wait_for(0, 0).await.unwrap();
}

#[tokio::test]
async fn other_turns_count_for_those_who_wait_already() {
    let (pool, mut config) = waiting().await;
    config["plugins"].as_array_mut().unwrap().push(json!({"type": "global-strict-fairness-policy"}));
    config["flowControl"]["defaultPriorityBand"] = json!({"fairnessPolicyRef": "global-strict-fairness-policy"});
    reload(&pool, config).await;
    next(&pool, 3).await;
    next(&pool, 2).await;
    assert_eq!(pool.servers[0].tags(), ["first", "a", "a"], "in the order in which they came");
    pool.servers[0].release(3);
    pool.wait_for(0, 0).await.unwrap();
}

/// The detector that gates is also a filter, as in the profile that there is without any.
#[tokio::test]
async fn who_waits_is_placed_by_the_limit_in_force_also_where_it_filters() {
    let (pool, mut config) = waiting().await;
    let profile = json!({"name": "default", "plugins": [{"pluginRef": "in-flight"}]});
    config["schedulingProfiles"] = json!([profile]);
    for (limit, runs) in [(1, 1), (3, 3), (2, 3), (5, 5)] {
        config["plugins"][1]["parameters"]["maxConcurrency"] = limit.into();
        reload(&pool, config.clone()).await;
        pool.wait_for(runs, 5 - u64::try_from(runs).unwrap()).await.unwrap();
    }
    pool.servers[0].release(5);
    pool.wait_for(0, 0).await.unwrap();
}
