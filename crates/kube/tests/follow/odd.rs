//! Objects that the definitions of their kinds would not have let in, or that nobody expects.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_kube::Membership;
use sluice_testkit::Resource;
use sluice_testkit::apiserver::{objective, pod, pool, rewrite};

use crate::chat;
use crate::followed::{Followed, Known};

/// In which whatever is known would have gone.
const A_WHILE: Duration = Duration::from_millis(500);

/// The object with something else at each of some places.
fn with_each(object: &Value, oddities: &[(&str, Value)]) -> Vec<Value> {
    let with = |(place, value): &(&str, Value)| {
        let mut odd = object.clone();
        *odd.pointer_mut(place).expect("the object has that place") = value.clone();
        odd
    };
    oddities.iter().map(with).collect()
}

fn odd_pods(name: &str) -> Vec<Value> {
    let mut pod = pod(name, "10.0.0.9", &json!({"app": "vllm"}));
    pod["metadata"]["annotations"] = json!({});
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let oddities = [
        ("/metadata/annotations", json!("none")),
        ("/metadata/creationTimestamp", json!(1e30)),
        ("/status", json!("Running")),
        ("/status/podIP", json!(10.9)),
        ("/status/conditions", json!({"Ready": true})),
        ("/status/conditions/0/status", json!(true)),
    ];
    with_each(&pod, &oddities)
}

fn odd_objectives(name: &str) -> Vec<Value> {
    let mut objective = objective(name, "chat", 9);
    objective["metadata"]["annotations"] = json!({});
    let oddities = [
        ("/metadata/annotations", json!(["none"])),
        ("/spec", json!("urgent")),
        ("/spec/priority", json!("high")),
        ("/spec/priority", json!(1e30)),
        ("/spec/priority", json!(1_u64 << 40)),
        ("/spec/poolRef", json!(null)),
        ("/spec/poolRef/name", json!(5)),
    ];
    with_each(&objective, &oddities)
}

fn odd_rewrites(name: &str) -> Vec<Value> {
    let mut rewrite = rewrite(name, "chat", "m", &[("t", 1)]);
    rewrite["spec"]["rules"][0]["matches"][0]["model"]["type"] = json!("Exact");
    let oddities = [
        ("/spec", json!(null)),
        ("/spec/rules", json!("all")),
        ("/spec/rules/0/matches/0/model/type", json!("Regex")),
        ("/spec/rules/0/matches/0/model/value", json!(null)),
        ("/spec/rules/0/targets/0/weight", json!("1")),
        ("/spec/rules/0/targets/0/weight", json!(1e30)),
    ];
    with_each(&rewrite, &oddities)
}

fn odd_pools() -> Vec<Value> {
    let mut pool = pool("chat", &json!({"app": "vllm"}), &[8000]);
    pool["metadata"]["annotations"] = json!({});
    let oddities = [
        ("/metadata/annotations", json!(7)),
        ("/spec", json!(null)),
        ("/spec/selector", json!("app=vllm")),
        ("/spec/selector/matchLabels/app", json!(["vllm"])),
        ("/spec/targetPorts", json!(8000)),
        ("/spec/targetPorts/0/number", json!("8000")),
        ("/spec/targetPorts/0/number", json!(0)),
        ("/spec/targetPorts/0/number", json!(80_000)),
        ("/spec/targetPorts/0/number", json!(1e30)),
    ];
    with_each(&pool, &oddities)
}

/// The good objects are listed before and after every odd one.
fn good() -> Vec<(Resource, Value)> {
    let names = ["a", "z"].into_iter().enumerate();
    let objects = names.flat_map(|(number, name)| {
        [
            (Resource::POD, pod(name, &format!("10.0.0.{number}"), &json!({"app": "vllm"}))),
            (Resource::OBJECTIVE, objective(name, "chat", 1)),
            (Resource::OLDER_OBJECTIVE, objective(&format!("{name}-older"), "chat", 2)),
            (Resource::REWRITE, rewrite(name, "chat", name, &[("t", 1)])),
            (Resource::OLDER_REWRITE, rewrite(&format!("{name}-older"), "chat", name, &[("t", 1)])),
        ]
    });
    objects.collect()
}

fn is_good(known: &Known) -> bool {
    known.complete
        && known.endpoints == ["a-rank-0 10.0.0.0:8000", "z-rank-0 10.0.0.1:8000"]
        && known.priorities.keys().eq(["a", "a-older", "z", "z-older"])
        && known.rewrites == ["a", "a-older", "z", "z-older"]
}

#[tokio::test]
async fn an_odd_object_in_a_list_is_left_out_and_all_others_count() {
    for page in [None, Some(3)] {
        let server = chat::server().unwrap();
        server.set_page(page);
        let named = |number: usize, mut object: Value| {
            object["metadata"]["name"] = format!("odd-{number}").into();
            object
        };
        let of_kinds = [
            (Resource::POD, odd_pods("")),
            (Resource::OBJECTIVE, odd_objectives("")),
            (Resource::OLDER_OBJECTIVE, odd_objectives("")),
            (Resource::REWRITE, odd_rewrites("")),
            (Resource::OLDER_REWRITE, odd_rewrites("")),
        ];
        for (kind, objects) in of_kinds {
            let without_name = objects[0].clone();
            objects.into_iter().enumerate().for_each(|(number, odd)| server.apply(kind, named(number, odd)));
            server.apply(kind, without_name);
        }
        good().into_iter().for_each(|(kind, object)| server.apply(kind, object));
        let followed = Followed::start(server, Membership::Pool).unwrap();
        followed.wait(is_good).await.unwrap();
    }
}

#[tokio::test]
async fn an_object_that_becomes_odd_is_none_until_it_is_understood_again() {
    let server = chat::server().unwrap();
    good().into_iter().for_each(|(kind, object)| server.apply(kind, object));
    let followed = Followed::start(server, Membership::Pool).unwrap();
    followed.wait(is_good).await.unwrap();
    let now_and_then = [
        (Resource::POD, odd_pods("a")),
        (Resource::OBJECTIVE, odd_objectives("a")),
        (Resource::REWRITE, odd_rewrites("a")),
    ];
    for (kind, odd) in now_and_then {
        for odd in odd {
            let shown = odd.to_string();
            followed.server.apply(kind, odd);
            let without = followed.wait(|known| match kind {
                Resource::POD => known.endpoints == ["z-rank-0 10.0.0.1:8000"],
                Resource::OBJECTIVE => known.priorities.keys().eq(["a-older", "z", "z-older"]),
                _ => known.rewrites == ["a-older", "z", "z-older"],
            });
            assert!(without.await.is_ok_and(|known| known.complete), "{shown}");
            good()
                .into_iter()
                .filter(|(of, _)| *of == kind)
                .for_each(|(_, object)| followed.server.apply(kind, object));
            followed.wait(is_good).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_pool_that_becomes_odd_keeps_its_endpoints_and_hears_of_its_pods() {
    let mut followed = Followed::of_pool().unwrap();
    let labels = json!({"app": "vllm"});
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
    for odd in odd_pools() {
        followed.server.apply(Resource::POOL, odd);
        followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &labels));
        followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"]).await.unwrap();

        followed.server.go_away();
        followed.server.forget_history();
        followed.server.delete(Resource::POD, "b");
        followed.server.come_back().await.unwrap();
        // A list has the pool as odd as it was.
        followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
        assert!(followed.known.borrow().complete);
    }
    followed.server.apply(Resource::POOL, pool("chat", &labels, &[9000]));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:9000"]).await.unwrap();
}

#[tokio::test]
async fn an_odd_pool_that_is_deleted_is_gone_and_one_that_was_never_understood_is_none() {
    let mut followed = Followed::of_pool().unwrap();
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
    followed.server.apply(Resource::POOL, odd_pools().remove(0));
    followed.server.delete(Resource::POOL, "chat");
    followed.wait(|known| known.endpoints.is_empty() && !known.complete).await.unwrap();
    followed.server.apply(Resource::POOL, odd_pools().remove(1));
    tokio::time::sleep(A_WHILE).await;
    assert!(followed.known.borrow().endpoints.is_empty());

    followed.server.apply(Resource::POOL, pool("chat", &json!({"app": "vllm"}), &[8000]));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
    followed.server.go_away();
    followed.server.forget_history();
    followed.server.delete(Resource::POOL, "chat");
    followed.server.apply(Resource::POOL, odd_pools().remove(2));
    followed.server.come_back().await.unwrap();
    followed.wait(|known| known.endpoints.is_empty()).await.unwrap();
}

#[tokio::test]
async fn a_pool_that_may_not_be_read_for_a_moment_stays_and_one_that_is_deleted_meanwhile_does_not() {
    let followed = Followed::of_pool().unwrap();
    let labels = json!({"app": "vllm"});
    let before = followed.wait(|known| known.complete).await.unwrap();
    for status in [403, 404, 500] {
        followed.server.set_refusal(Resource::POOL, Some(status));
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(*followed.known.borrow(), before, "{status}");
        followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &labels));
        followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"]).await.unwrap();
        followed.server.set_refusal(Resource::POOL, None);
        followed.server.apply(Resource::POOL, pool("chat", &labels, &[9000]));
        followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:9000", "b-rank-0 10.0.0.2:9000"]).await.unwrap();
        followed.server.delete(Resource::POD, "b");
        followed.server.apply(Resource::POOL, pool("chat", &labels, &[8000]));
        followed.wait(|known| *known == before).await.unwrap();
    }
    followed.server.set_refusal(Resource::POOL, Some(404));
    tokio::time::sleep(A_WHILE).await;
    followed.server.delete(Resource::POOL, "chat");
    followed.server.set_refusal(Resource::POOL, None);
    followed.wait(|known| known.endpoints.is_empty() && !known.complete).await.unwrap();
}
