//! What is written into the status of objectives and rewrites: a real client, a server that is made for it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_core::Priority;
use sluice_kube::{Bands, Kubernetes, Membership};
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
    /// The priorities of the configuration.
    configured: watch::Sender<BTreeSet<Priority>>,
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
        tasks.spawn(kubernetes.reporter(&chat::id(), receiver, is_leader).run());
        let (configured, bands) = watch::channel(BTreeSet::new());
        tasks.spawn(kubernetes.follow(chat::id(), Membership::Pool, bands.clone(), move |index, _| {
            let bands = Bands { configured: &bands.borrow(), most: MOST_BANDS };
            verdicts.send_replace(index.verdicts(bands));
        }));
        Ok(Self { server, leads, configured, _tasks: tasks })
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
    // Another configuration, while nothing changes in Kubernetes.
    reported.configured.send_replace([Priority(1), Priority(-5)].into());
    reported.wait_for(Resource::OBJECTIVE, "p1", "Accepted", "TooManyBands").await.unwrap();
    reported.configured.send_replace([Priority(1)].into());
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
    // 409: somebody else has written at the same time.
    for status in [500, 409] {
        let reported = Reported::start().unwrap();
        reported.server.set_status_refusal(Resource::OBJECTIVE, Some(status));
        reported.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
        // Sooner than what was written and did not stay is written again.
        let attempts = async || Ok((reported.server.status_writes() > 1).then_some(()));
        eventually(Duration::from_secs(8), "another attempt", attempts).await.unwrap();
        reported.server.set_status_refusal(Resource::OBJECTIVE, None);
        reported.wait_for(Resource::OBJECTIVE, "batch", "Accepted", "Accepted").await.unwrap();
    }
}

#[tokio::test]
async fn what_the_server_does_not_take_of_an_object_is_left_alone_for_long() {
    let reported = Reported::start().unwrap();
    reported.server.set_status_refusal(Resource::OBJECTIVE, Some(422));
    reported.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    eventually(LIMIT, "an attempt", async || Ok((reported.server.status_writes() > 0).then_some(()))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(reported.server.status_writes(), 1);
    // Said in other words it may be taken.
    reported.server.set_status_refusal(Resource::OBJECTIVE, None);
    reported.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -11));
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

#[tokio::test]
async fn what_was_said_is_taken_back_when_an_object_moves_to_another_pool_and_what_others_say_stays() {
    let reported = Reported::start().unwrap();
    let server = &reported.server;
    let rewritten = |pool: &str| rewrite("m", pool, "m", &[("t", 1)]);
    server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    server.apply(Resource::OLDER_OBJECTIVE, objective("older", "chat", 5));
    server.apply(Resource::REWRITE, rewritten("chat"));
    let subjects = [(Resource::OBJECTIVE, "batch"), (Resource::OLDER_OBJECTIVE, "older"), (Resource::REWRITE, "m")];
    for (resource, name) in subjects {
        reported.wait_for(resource, name, "ResolvedRefs", "ResolvedRefs").await.unwrap();
    }
    // The picker of the other pool has been quicker for one of them.
    let theirs = json!({"type": "Accepted", "status": "False", "reason": "Theirs"});
    server.apply(Resource::OBJECTIVE, objective("batch", "images", -10));
    server.apply_conditions(Resource::OBJECTIVE, "batch", "sluice-epp-images", &json!([theirs])).unwrap();
    server.apply(Resource::OLDER_OBJECTIVE, objective("older", "images", 5));
    server.apply(Resource::REWRITE, rewritten("images"));
    for (resource, name) in subjects {
        let released = async || Ok(reported.condition(resource, name, "ResolvedRefs").is_none().then_some(()));
        eventually(LIMIT, "nothing of it is left", released).await.unwrap();
    }
    assert_eq!(reported.condition(Resource::OBJECTIVE, "batch", "Accepted"), Some(theirs));
    assert_eq!(reported.condition(Resource::REWRITE, "m", "Accepted"), None);
    let writes = server.status_writes();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(server.status_writes(), writes, "once for each");

    server.apply(Resource::REWRITE, rewritten("chat"));
    reported.wait_for(Resource::REWRITE, "m", "ResolvedRefs", "ResolvedRefs").await.unwrap();
}

#[tokio::test]
async fn what_an_earlier_picker_has_said_is_taken_back_as_well() {
    let server = chat::server().unwrap();
    server.apply(Resource::OBJECTIVE, objective("batch", "images", -10));
    let [ours, others] = ["Accepted", "Programmed"].map(|kind| json!([{"type": kind, "status": "True"}]));
    server.apply_conditions(Resource::OBJECTIVE, "batch", "sluice-epp-chat", &ours).unwrap();
    server.apply_conditions(Resource::OBJECTIVE, "batch", "somebody", &others).unwrap();
    let reported = Reported::of(server, true).unwrap();
    let released = async || Ok(reported.condition(Resource::OBJECTIVE, "batch", "Accepted").is_none().then_some(()));
    eventually(LIMIT, "nothing of it is left", released).await.unwrap();
    assert!(reported.condition(Resource::OBJECTIVE, "batch", "Programmed").is_some());
}

#[tokio::test]
async fn a_status_that_somebody_edits_is_made_right_again_without_a_fight() {
    const EDITS: usize = 12;
    let reported = Reported::start().unwrap();
    reported.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    reported.wait_for(Resource::OBJECTIVE, "batch", "ResolvedRefs", "ResolvedRefs").await.unwrap();
    let edited = json!([{"type": "Accepted", "status": "False", "reason": "Edited"}]);
    for conditions in [&edited, &json!([])].into_iter().cycle().take(EDITS) {
        reported.server.edit_conditions(Resource::OBJECTIVE, "batch", conditions);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(reported.server.status_writes(), 1, "whoever edits is left alone for a while");
    // Ten seconds after it was said before.
    reported.wait_for(Resource::OBJECTIVE, "batch", "Accepted", "Accepted").await.unwrap();
    reported.wait_for(Resource::OBJECTIVE, "batch", "ResolvedRefs", "ResolvedRefs").await.unwrap();
    assert_eq!(reported.server.status_writes(), 2);
}
