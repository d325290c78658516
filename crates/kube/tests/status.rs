//! What is written into the status of objectives and rewrites: a real client, a server that is made for it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_kube::{Kubernetes, Membership};
use sluice_testkit::apiserver::{objective, rewrite};
use sluice_testkit::{ApiServer, Resource, eventually};
use tokio::sync::watch;
use tokio::task::JoinSet;

mod chat;

/// Longer than anything takes on a busy machine, attempts that are repeated included.
const LIMIT: Duration = Duration::from_secs(30);
/// In which a loop of writes would have gone round many times.
const A_WHILE: Duration = Duration::from_secs(1);
const MOST_BANDS: usize = 3;

struct Reported {
    server: ApiServer,
    leads: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Reported {
    /// Of the pool `chat`, with a leader.
    fn start() -> Result<Self> {
        Self::of(chat::server()?, true)
    }

    fn of(server: ApiServer, leads: bool) -> Result<Self> {
        let kubernetes = Kubernetes::at(chat::config(&server)?)?;
        let (verdicts, receiver) = watch::channel(Vec::new());
        let (leads, is_leader) = watch::channel(leads);
        let mut tasks = JoinSet::new();
        tasks.spawn(kubernetes.reporter(kubernetes.namespace(), receiver, is_leader).run());
        tasks.spawn(kubernetes.follow(chat::id(), Membership::Pool, move |index| {
            verdicts.send_replace(index.verdicts(MOST_BANDS));
        }));
        Ok(Self { server, leads, _tasks: tasks })
    }

    fn condition(&self, resource: Resource, name: &str, kind: &str) -> Option<Value> {
        let object = self.server.object(resource, name)?;
        object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind).cloned()
    }

    /// Waits until a condition has `reason`.
    async fn wait_for(&self, resource: Resource, name: &str, kind: &str, reason: &str) -> Result<Value> {
        let found = eventually(LIMIT, "the condition", async || {
            Ok(self.condition(resource, name, kind).filter(|condition| condition["reason"] == reason))
        });
        found.await.with_context(|| format!("{kind} of {name} is {:?}", self.condition(resource, name, kind)))
    }
}

#[tokio::test]
async fn objectives_and_rewrites_of_both_groups_are_accepted_and_nothing_is_written_twice() {
    let reported = Reported::start().unwrap();
    let server = &reported.server;
    server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    server.apply(Resource::OLDER_OBJECTIVE, objective("older", "chat", 5));
    server.apply(Resource::REWRITE, rewrite("m", "chat", "m", &[("t", 1)]));
    server.apply(Resource::OLDER_REWRITE, rewrite("n", "chat", "n", &[("t", 1)]));
    server.apply(Resource::OBJECTIVE, objective("foreign", "images", 7));
    server.apply(Resource::OBJECTIVE, json!({"metadata": {"name": "empty"}}));
    for (resource, name) in [
        (Resource::OBJECTIVE, "batch"),
        (Resource::OLDER_OBJECTIVE, "older"),
        (Resource::REWRITE, "m"),
        (Resource::OLDER_REWRITE, "n"),
    ] {
        let accepted = reported.wait_for(resource, name, "Accepted", "Accepted").await.unwrap();
        assert_eq!((&accepted["status"], &accepted["observedGeneration"]), (&json!("True"), &json!(1)), "{name}");
        reported.wait_for(resource, name, "ResolvedRefs", "ResolvedRefs").await.unwrap();
    }
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(server.status_writes(), 4, "each write is seen again by the watch, and is no reason for another");
    for name in ["foreign", "empty"] {
        assert_eq!(server.object(Resource::OBJECTIVE, name).unwrap()["status"], Value::Null, "{name}");
    }

    let before = reported.condition(Resource::OBJECTIVE, "batch", "Accepted").unwrap();
    server.apply(Resource::OBJECTIVE, objective("batch", "chat", -20));
    eventually(LIMIT, "the new generation is observed", async || {
        let now = reported.condition(Resource::OBJECTIVE, "batch", "Accepted").context("it is gone")?;
        assert_eq!(now["lastTransitionTime"], before["lastTransitionTime"]);
        Ok((now["observedGeneration"] == 2).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_conflict_and_too_many_bands_are_told_and_so_is_their_end() {
    let reported = Reported::start().unwrap();
    let server = &reported.server;
    let made_at = |name: &str, time: &str| {
        let mut rewrite = rewrite(name, "chat", "m", &[("t", 1)]);
        rewrite["metadata"]["creationTimestamp"] = json!(time);
        rewrite
    };
    server.apply(Resource::REWRITE, made_at("a", "2026-01-02T00:00:00Z"));
    server.apply(Resource::REWRITE, made_at("b", "2026-01-01T00:00:00Z"));
    let conflict = reported.wait_for(Resource::REWRITE, "a", "Accepted", "Conflicted").await.unwrap();
    assert_eq!(conflict["status"], "False");
    assert!(conflict["message"].as_str().unwrap().contains("\"m\" belongs to b"), "{conflict}");
    reported.wait_for(Resource::REWRITE, "b", "Accepted", "Accepted").await.unwrap();
    server.delete(Resource::REWRITE, "b");
    reported.wait_for(Resource::REWRITE, "a", "Accepted", "Accepted").await.unwrap();

    for priority in 1..=3 {
        server.apply(Resource::OBJECTIVE, objective(&format!("p{priority}"), "chat", priority));
    }
    reported.wait_for(Resource::OBJECTIVE, "p1", "Accepted", "TooManyBands").await.unwrap();
    server.delete(Resource::OBJECTIVE, "p3");
    reported.wait_for(Resource::OBJECTIVE, "p1", "Accepted", "Accepted").await.unwrap();

    server.delete(Resource::POOL, "chat");
    let missing = reported.wait_for(Resource::OBJECTIVE, "p1", "ResolvedRefs", "BackendNotFound").await.unwrap();
    assert_eq!(missing["status"], "False");
}

#[tokio::test]
async fn what_is_forbidden_is_asked_for_once_and_the_other_kinds_are_told() {
    let server = ApiServer::start().unwrap();
    server.set_status_refusal(Resource::OBJECTIVE, Some(403));
    for number in 0..3 {
        server.apply(Resource::OBJECTIVE, objective(&number.to_string(), "chat", number));
    }
    server.apply(Resource::REWRITE, rewrite("m", "chat", "m", &[("t", 1)]));
    let reported = Reported::of(server, true).unwrap();
    reported.wait_for(Resource::REWRITE, "m", "ResolvedRefs", "BackendNotFound").await.unwrap();
    reported.server.apply(Resource::OBJECTIVE, objective("0", "chat", 9));
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(reported.server.status_writes(), 2, "one for each kind");
}

#[tokio::test]
async fn a_write_that_fails_is_repeated() {
    let reported = Reported::start().unwrap();
    reported.server.set_status_refusal(Resource::OBJECTIVE, Some(500));
    reported.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    eventually(LIMIT, "an attempt", async || Ok((reported.server.status_writes() > 0).then_some(()))).await.unwrap();
    reported.server.set_status_refusal(Resource::OBJECTIVE, None);
    reported.wait_for(Resource::OBJECTIVE, "batch", "Accepted", "Accepted").await.unwrap();
}

#[tokio::test]
async fn an_object_that_fails_holds_up_no_other() {
    let reported = Reported::start().unwrap();
    reported.server.set_status_refusal(Resource::OBJECTIVE, Some(500));
    // Verdicts on objectives come before those on rewrites.
    for number in 0..3 {
        reported.server.apply(Resource::OBJECTIVE, objective(&number.to_string(), "chat", number));
    }
    eventually(LIMIT, "an attempt", async || Ok((reported.server.status_writes() > 0).then_some(()))).await.unwrap();
    reported.server.apply(Resource::REWRITE, rewrite("m", "chat", "m", &[("t", 1)]));
    reported.wait_for(Resource::REWRITE, "m", "Accepted", "Accepted").await.unwrap();
}

#[tokio::test]
async fn a_kind_that_was_forbidden_is_told_by_whoever_comes_to_lead() {
    let reported = Reported::start().unwrap();
    reported.server.set_status_refusal(Resource::OBJECTIVE, Some(403));
    reported.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    eventually(LIMIT, "an attempt", async || Ok((reported.server.status_writes() > 0).then_some(()))).await.unwrap();
    reported.server.set_status_refusal(Resource::OBJECTIVE, None);
    reported.leads.send_replace(false);
    tokio::time::sleep(A_WHILE).await;
    reported.leads.send_replace(true);
    reported.wait_for(Resource::OBJECTIVE, "batch", "Accepted", "Accepted").await.unwrap();
}

#[tokio::test]
async fn of_many_changes_few_are_written_and_the_last_one_is() {
    let reported = Reported::start().unwrap();
    for priority in 1..=40 {
        reported.server.apply(Resource::OBJECTIVE, objective("batch", "chat", priority));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually(LIMIT, "the last generation is observed", async || {
        let accepted = reported.condition(Resource::OBJECTIVE, "batch", "Accepted");
        Ok(accepted.filter(|accepted| accepted["observedGeneration"] == 40))
    })
    .await
    .unwrap();
    let writes = reported.server.status_writes();
    assert!(writes <= 30, "40 changes in two seconds, and {writes} writes");
}

#[tokio::test]
async fn only_a_leader_writes() {
    let server = ApiServer::start().unwrap();
    server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    let reported = Reported::of(server, false).unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(reported.server.status_writes(), 0);
    reported.leads.send_replace(true);
    reported.wait_for(Resource::OBJECTIVE, "batch", "Accepted", "Accepted").await.unwrap();
}
