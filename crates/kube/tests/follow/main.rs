//! What a follower of the pool knows, whatever the API server does: a real client, a server that is made for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;
use sluice_kube::{Membership, TargetPorts, Topic};
use sluice_testkit::apiserver::{granted, objective, pod, pool, rewrite};
use sluice_testkit::{ApiServer, Resource};

use self::followed::{Followed, Known, LIMIT};

#[path = "../chat/mod.rs"]
mod chat;
mod followed;
mod odd;
mod trouble;

#[tokio::test]
async fn what_is_there_is_known_and_every_change_follows() {
    let followed = Followed::of_pool().unwrap();
    let known = followed.wait(|known| known.complete).await.unwrap();
    let endpoints = vec!["a-rank-0 10.0.0.1:8000".to_owned()];
    assert_eq!(known, Known { endpoints, complete: true, ..Known::default() });

    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    followed.wait_for_priority("batch", -10).await.unwrap();
    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", 7));
    followed.server.apply(Resource::OLDER_OBJECTIVE, objective("older", "chat", 1));
    followed.wait_for_priority("batch", 7).await.unwrap();
    followed.wait_for_priority("older", 1).await.unwrap();

    let made_at = |name: &str, time: &str| {
        let mut rewrite = rewrite(name, "chat", "m", &[("t", 1)]);
        rewrite["metadata"]["creationTimestamp"] = json!(time);
        rewrite
    };
    followed.server.apply(Resource::REWRITE, made_at("a", "2026-01-02T00:00:00Z"));
    followed.server.apply(Resource::OLDER_REWRITE, made_at("b", "2026-01-01T00:00:00Z"));
    followed.wait(|known| known.rewrites == ["b", "a"]).await.unwrap();
    followed.server.delete(Resource::OLDER_REWRITE, "b");
    followed.wait(|known| known.rewrites == ["a"]).await.unwrap();

    followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &json!({"app": "vllm"})));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"]).await.unwrap();
    followed.server.delete(Resource::POD, "a");
    followed.wait_for_endpoints(&["b-rank-0 10.0.0.2:8000"]).await.unwrap();
    followed.server.apply(Resource::POOL, pool("chat", &json!({"app": "vllm"}), &[8000, 8001]));
    followed.wait_for_endpoints(&["b-rank-0 10.0.0.2:8000", "b-rank-1 10.0.0.2:8001"]).await.unwrap();
}

#[tokio::test]
async fn each_change_is_told_with_what_it_is_about() {
    let followed = Followed::of_pool().unwrap();
    followed.wait(|known| known.complete).await.unwrap();
    followed.topics.lock().unwrap().clear();
    followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &json!({"app": "vllm"})));
    followed.wait(|known| known.endpoints.len() == 2).await.unwrap();
    followed.server.apply(Resource::OLDER_OBJECTIVE, objective("batch", "chat", -10));
    followed.wait_for_priority("batch", -10).await.unwrap();
    followed.server.apply(Resource::REWRITE, rewrite("a", "chat", "m", &[("t", 1)]));
    followed.wait(|known| known.rewrites == ["a"]).await.unwrap();
    followed.server.apply(Resource::POOL, pool("chat", &json!({"app": "vllm"}), &[8001]));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8001", "b-rank-0 10.0.0.2:8001"]).await.unwrap();
    let told = followed.topics.lock().unwrap().clone();
    let times = |topic| told.iter().filter(|told| **told == topic).count();
    assert_eq!((times(Topic::Pods), times(Topic::Pool)), (1, 1), "{told:?}");
    // What is said in the status of an object comes back as a change of it.
    assert!(told.contains(&Topic::Objectives) && told.contains(&Topic::Rewrites), "{told:?}");
}

#[tokio::test]
async fn only_pods_of_the_pool_are_asked_for_and_another_selector_asks_for_others() {
    let followed = Followed::of_pool().unwrap();
    followed.server.apply(Resource::POD, pod("other", "10.0.0.9", &json!({"app": "redis"})));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
    followed.server.apply(Resource::POD, pod("a", "10.0.0.1", &json!({"app": "redis"})));
    followed.wait_for_endpoints(&[]).await.unwrap();
    followed.server.apply(Resource::POOL, pool("chat", &json!({"app": "redis"}), &[8000]));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", "other-rank-0 10.0.0.9:8000"]).await.unwrap();
}

#[tokio::test]
async fn a_watch_that_ends_or_is_too_old_loses_nothing() {
    let mut followed = Followed::of_pool().unwrap();
    followed.wait(|known| known.complete).await.unwrap();
    for (round, forgets) in [false, true, true].into_iter().enumerate() {
        if forgets {
            followed.server.go_away();
        } else {
            followed.server.end_watches();
        }
        let (name, ip) = (format!("b{round}"), format!("10.0.1.{round}"));
        followed.server.apply(Resource::POD, pod(&name, &ip, &json!({"app": "vllm"})));
        followed.server.delete(Resource::POD, &format!("b{}", round.wrapping_sub(1)));
        if forgets {
            // The version from which the watch wants to go on is not there any more.
            followed.server.forget_history();
            followed.server.come_back().await.unwrap();
        }
        followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", &format!("{name}-rank-0 {ip}:8000")]).await.unwrap();
    }
}

#[tokio::test]
async fn a_pod_that_is_deleted_and_made_anew_again_and_again_is_there_in_its_last_life() {
    const LIVES: u32 = 1_000;
    let followed = Followed::of_pool().unwrap();
    followed.wait(|known| known.complete).await.unwrap();
    let ip = |life: u32| std::net::Ipv4Addr::from_bits(0x0a01_0000 + life).to_string();
    for life in 1..=LIVES {
        followed.server.delete(Resource::POD, "a");
        followed.server.apply(Resource::POD, pod("a", &ip(life), &json!({"app": "vllm"})));
        if life % 100 == 0 {
            // What comes next meets a list.
            followed.server.forget_history();
            followed.server.end_watches();
        }
        tokio::task::yield_now().await;
    }
    followed.wait_for_endpoints(&[&format!("a-rank-0 {}:8000", ip(LIVES))]).await.unwrap();
}

#[tokio::test]
async fn while_the_server_is_away_everything_stays_and_afterwards_it_is_as_the_server_has_it() {
    let mut followed = Followed::of_pool().unwrap();
    let before = followed.wait(|known| known.complete).await.unwrap();
    followed.server.go_away();
    followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &json!({"app": "vllm"})));
    followed.server.delete(Resource::POD, "a");
    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*followed.known.borrow(), before);
    followed.server.come_back().await.unwrap();
    followed.wait_for_endpoints(&["b-rank-0 10.0.0.2:8000"]).await.unwrap();
    followed.wait_for_priority("batch", -10).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_slow_or_comes_late_is_waited_for() {
    let mut server = ApiServer::start().unwrap();
    server.set_delay(Duration::from_millis(300));
    server.apply(Resource::POOL, pool("chat", &json!({"app": "vllm"}), &[8000]));
    server.go_away();
    let mut followed = Followed::start(server, Membership::Pool).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(*followed.known.borrow(), Known::default());
    followed.server.come_back().await.unwrap();
    let known = followed.wait(|known| known.complete).await.unwrap();
    assert_eq!(known.endpoints, [""; 0], "a pool may be empty");
}

#[tokio::test]
async fn objectives_that_are_not_installed_or_not_allowed_are_done_without_and_asked_for_again() {
    let server = ApiServer::start().unwrap();
    server.set_installed(Resource::OBJECTIVE, false);
    server.set_allowed(Resource::OLDER_OBJECTIVE, false);
    server.apply(Resource::POOL, pool("chat", &json!({"app": "vllm"}), &[8000]));
    server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    server.apply(Resource::OLDER_OBJECTIVE, objective("older", "chat", 1));
    let followed = Followed::start(server, Membership::Pool).unwrap();
    let known = followed.wait(|known| known.complete).await.unwrap();
    assert!(known.priorities.is_empty());
    followed.server.set_installed(Resource::OBJECTIVE, true);
    followed.server.set_allowed(Resource::OLDER_OBJECTIVE, true);
    followed.wait_for_priority("batch", -10).await.unwrap();
    followed.wait_for_priority("older", 1).await.unwrap();
    followed.server.set_installed(Resource::OBJECTIVE, false);
    followed.wait(|known| !known.priorities.contains_key("batch")).await.unwrap();
}

#[tokio::test]
async fn a_kind_that_is_forbidden_for_a_moment_loses_no_objects_and_no_changes() {
    let followed = Followed::of_pool().unwrap();
    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    followed.server.apply(Resource::REWRITE, rewrite("m", "chat", "m", &[("t", 1)]));
    followed.wait_for_priority("batch", -10).await.unwrap();
    let before = followed.wait(|known| known.complete && known.rewrites == ["m"]).await.unwrap();
    let kinds = [Resource::OBJECTIVE, Resource::REWRITE];
    kinds.iter().for_each(|kind| followed.server.set_allowed(*kind, false));
    followed.server.end_watches();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*followed.known.borrow(), before);
    followed.server.apply(Resource::OBJECTIVE, objective("later", "chat", 3));
    followed.server.delete(Resource::REWRITE, "m");
    kinds.iter().for_each(|kind| followed.server.set_allowed(*kind, true));
    followed.wait_for_priority("later", 3).await.unwrap();
    let after = followed.wait(|known| known.rewrites.is_empty()).await.unwrap();
    assert_eq!(after.priorities, BTreeMap::from([("batch".into(), -10), ("later".into(), 3)]));
}

#[tokio::test]
async fn a_server_that_is_overloaded_is_asked_again_within_seconds() {
    let followed = Followed::of_pool().unwrap();
    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    followed.wait_for_priority("batch", -10).await.unwrap();
    let before = followed.wait(|known| known.complete).await.unwrap();
    let refusals = [(Resource::POD, 429), (Resource::OBJECTIVE, 503), (Resource::REWRITE, 504)];
    refusals.iter().for_each(|(kind, status)| followed.server.set_refusal(*kind, Some(*status)));
    followed.server.end_watches();
    // Waits that double without an end would have come to sixteen seconds and more.
    tokio::time::sleep(Duration::from_secs(18)).await;
    assert_eq!(*followed.known.borrow(), before);
    refusals.iter().for_each(|(kind, _)| followed.server.set_refusal(*kind, None));
    followed.server.delete(Resource::POD, "a");
    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", 4));
    followed.server.apply(Resource::REWRITE, rewrite("m", "chat", "m", &[("t", 1)]));
    let heard = followed.wait(|known| {
        known.endpoints.is_empty() && known.priorities.get("batch") == Some(&4) && known.rewrites == ["m"]
    });
    tokio::time::timeout(Duration::from_secs(7), heard).await.expect("every kind is heard again").unwrap();
}

#[tokio::test]
async fn a_status_of_any_form_disturbs_nothing() {
    let followed = Followed::of_pool().unwrap();
    let odd = [json!("x"), json!(5), json!(true), json!(["x"]), json!(null), json!({"conditions": 7})];
    for (number, status) in odd.into_iter().enumerate() {
        let name = format!("o{number}");
        let mut object = objective(&name, "chat", 7);
        object["status"] = status.clone();
        followed.server.apply(Resource::OBJECTIVE, object);
        followed.wait_for_priority(&name, 7).await.unwrap();
        let mut object = rewrite(&name, "chat", &name, &[("t", 1)]);
        object["status"] = status;
        followed.server.apply(Resource::REWRITE, object);
        followed.wait(|known| known.rewrites.contains(&name)).await.unwrap();
    }
}

#[tokio::test]
async fn an_object_that_is_no_longer_understood_is_left_out_as_if_it_had_never_been() {
    let mut followed = Followed::of_pool().unwrap();
    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    followed.wait_for_priority("batch", -10).await.unwrap();
    let mut odd = objective("batch", "chat", -10);
    odd["spec"]["priority"] = json!("high");
    followed.server.apply(Resource::OBJECTIVE, odd);
    followed.wait(|known| known.priorities.is_empty()).await.unwrap();
    followed.server.go_away();
    followed.server.forget_history();
    followed.server.come_back().await.unwrap();
    followed.server.apply(Resource::OBJECTIVE, objective("other", "chat", 1));
    followed.wait_for_priority("other", 1).await.unwrap();
    assert_eq!(followed.known.borrow().priorities.len(), 1, "a list does not have it either");
    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", 5));
    followed.wait_for_priority("batch", 5).await.unwrap();
}

#[tokio::test]
async fn a_pool_that_goes_takes_its_endpoints_along_and_a_new_one_brings_its_own() {
    let followed = Followed::of_pool().unwrap();
    followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
    followed.wait_for_priority("batch", -10).await.unwrap();
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
    followed.server.delete(Resource::POOL, "chat");
    let known = followed.wait(|known| !known.complete).await.unwrap();
    assert_eq!(known.endpoints, [""; 0]);
    followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &json!({"app": "vllm"})));
    followed.server.apply(Resource::POOL, pool("chat", &json!({"app": "vllm"}), &[9000]));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:9000", "b-rank-0 10.0.0.2:9000"]).await.unwrap();
    let known = followed.wait(|known| known.complete).await.unwrap();
    assert_eq!(known.priorities, BTreeMap::from([("batch".into(), -10)]));
}

#[tokio::test]
async fn each_way_to_name_members_asks_for_what_it_needs_and_nothing_else() {
    let followed = Followed::of_pool().unwrap();
    followed.wait(|known| known.complete).await.unwrap();
    for resource in [Resource::OBJECTIVE, Resource::OLDER_OBJECTIVE] {
        followed.server.apply(resource, objective(resource.group, "chat", 1));
    }
    for resource in [Resource::REWRITE, Resource::OLDER_REWRITE] {
        followed.server.apply(resource, rewrite(resource.group, "chat", "m", &[("t", 1)]));
    }
    // The others are for elections and for reviews of tokens.
    let is_of_follower = |right: &String| ["list", "watch", "patch"].contains(&right.split(' ').next().unwrap());
    let granted: BTreeSet<String> = granted().unwrap().into_iter().filter(is_of_follower).collect();
    sluice_testkit::eventually(LIMIT, "every watch is open", async || {
        Ok((followed.server.requests().len() == granted.len()).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(followed.server.requests(), granted);

    let server = ApiServer::start().unwrap();
    server.apply(Resource::POD, pod("a", "10.0.0.1", &json!({"app": "vllm"})));
    let selector = "app in (vllm, sglang),!gone".to_owned();
    let ports = TargetPorts::new([8000]);
    let selected = Followed::start(server, Membership::Selector { selector, ports }).unwrap();
    selected.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
    selected.server.apply(Resource::POD, pod("b", "10.0.0.2", &json!({"app": "sglang"})));
    selected.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"]).await.unwrap();
    assert!(selected.known.borrow().complete);
    assert_eq!(selected.server.requests().into_iter().collect::<Vec<_>>(), ["list /pods", "watch /pods"]);
}
