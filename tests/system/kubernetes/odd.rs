//! What the log says of a cluster that is not as it should be.

use anyhow::Result;
use serde_json::{Value, json};
use sluice_testkit::apiserver::{pod, pool};
use sluice_testkit::{ApiServer, Picker, Resource, eventually};

use super::cluster::{POOL, config, labels};
use crate::support::{LIMIT, picker};

async fn endpoint_count(picker: &Picker) -> Result<usize> {
    let page = picker.flow().await?;
    let endpoints = page["endpoints"].as_array().into_iter().flatten();
    Ok(endpoints.filter(|endpoint| endpoint["inPool"] == true).count())
}

#[tokio::test]
async fn an_odd_pod_and_a_missing_right_are_named_once_and_no_answer_is_shown() {
    let mut server = ApiServer::start().unwrap();
    server.apply(Resource::POOL, pool(POOL, &labels(), &[8000]));
    server.apply(Resource::POD, pod("good", "127.0.0.1", &labels()));
    let mut odd = pod("odd", "127.0.0.2", &labels());
    odd["metadata"]["annotations"] = json!({"note": "of-nobody's-business"});
    odd["status"]["conditions"][0]["status"] = json!(true);
    server.apply(Resource::POD, odd);
    server.set_watch_refusal(Resource::REWRITE, Some(403));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("picker.json");
    std::fs::write(&path, config(1).to_string()).unwrap();
    let picker = Picker::start_in_cluster(picker(), &path, &server.kubeconfig(), &["--pool-name", POOL]).await.unwrap();
    eventually(LIMIT, "the good pod", async || Ok((endpoint_count(&picker).await? == 1).then_some(()))).await.unwrap();

    // A list says it all again.
    server.go_away();
    server.forget_history();
    server.apply(Resource::POD, pod("later", "127.0.0.3", &labels()));
    server.come_back().await.unwrap();
    eventually(LIMIT, "the later pod", async || Ok((endpoint_count(&picker).await? == 2).then_some(()))).await.unwrap();
    let lists = "list llm-d.ai/inferencemodelrewrites";
    eventually(LIMIT, "lists", async || Ok((server.request_count(lists) > 5).then_some(()))).await.unwrap();

    let log = picker.process().output().lines();
    let lines: Vec<Value> = log.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let said = |what: &'static str| {
        lines.iter().filter(move |line| line["message"].as_str().is_some_and(|said| said.contains(what)))
    };
    let [line] = said("not understood").collect::<Vec<_>>()[..] else { panic!("{log:#?}") };
    assert_eq!((&line["kind"], &line["namespace"], &line["name"]), (&json!("Pod"), &json!("test"), &json!("odd")));
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("status.conditions[0].status") && error.contains("boolean"), "{error}");
    let [line] = said("listed and not watched").collect::<Vec<_>>()[..] else { panic!("{log:#?}") };
    assert_eq!(line["kind"], "InferenceModelRewrite");
    assert!(!log.iter().any(|line| line.contains("of-nobody's-business")), "{log:#?}");
}
