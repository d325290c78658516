//! Servers that take part in a watch only as far as they like.

use std::time::Duration;

use serde_json::json;
use sluice_kube::Membership;
use sluice_testkit::Resource;
use sluice_testkit::apiserver::{objective, pod, pool};

use crate::chat;
use crate::followed::Followed;

#[tokio::test]
async fn what_may_be_listed_and_not_watched_is_listed_again_and_again_ever_more_rarely() {
    for status in [403, 405] {
        let server = chat::server().unwrap();
        let kinds = [Resource::POOL, Resource::POD, Resource::OBJECTIVE, Resource::REWRITE];
        kinds.iter().for_each(|kind| server.set_watch_refusal(*kind, Some(status)));
        let followed = Followed::start(server, Membership::Pool).unwrap();
        followed.wait(|known| known.complete).await.unwrap();
        followed.server.apply(Resource::POD, pod("a", "10.0.0.1", &json!({"app": "vllm"})));
        followed.server.apply(Resource::OBJECTIVE, objective("batch", "chat", -10));
        followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
        followed.wait_for_priority("batch", -10).await.unwrap();
        // 0.1 s after the first one, and then at intervals that double.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let lists = followed.server.request_count("list /pods");
        assert!((3..=12).contains(&lists), "{lists}");

        kinds.iter().for_each(|kind| followed.server.set_watch_refusal(*kind, None));
        followed.server.delete(Resource::POD, "a");
        followed.wait_for_endpoints(&[]).await.unwrap();
        followed.server.apply(Resource::POD, pod("a", "10.0.0.1", &json!({"app": "vllm"})));
        followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
    }
}

#[tokio::test]
async fn a_watch_that_fails_again_and_again_gives_way_to_a_list() {
    // 504 is what a version gets that the server has not come to, since its data were restored from a backup.
    for status in [504, 500, 400] {
        let followed = Followed::of_pool().unwrap();
        followed.wait(|known| known.complete).await.unwrap();
        followed.server.set_watch_refusal(Resource::POD, Some(status));
        followed.server.end_watches();
        followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &json!({"app": "vllm"})));
        followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"]).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_falls_silent_is_asked_again_on_another_connection() {
    let server = chat::server().unwrap();
    server.set_silent(true);
    let mut config = chat::config(&server).unwrap();
    // As `Kubernetes::at` sees to by itself, in seconds instead of a minute.
    config.read_timeout = Some(Duration::from_secs(1));
    let followed = Followed::start_with(config, server, Membership::Pool).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!followed.known.borrow().complete);
    followed.server.set_silent(false);
    followed.wait(|known| known.complete).await.unwrap();

    followed.server.set_silent(true);
    followed.server.apply(Resource::POD, pod("a", "10.0.0.1", &json!({"app": "vllm"})));
    tokio::time::sleep(Duration::from_millis(500)).await;
    followed.server.set_silent(false);
    // The watches from before hear nothing any more.
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
}

#[tokio::test]
async fn pods_are_watched_soon_after_the_selector_has_changed_again_and_again() {
    let followed = Followed::of_pool().unwrap();
    followed.wait(|known| known.complete).await.unwrap();
    for round in 0..30 {
        let app = ["sglang", "vllm"][round % 2];
        followed.server.apply(Resource::POOL, pool("chat", &json!({"app": app}), &[8000]));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000"]).await.unwrap();
    followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &json!({"app": "vllm"})));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"]).await.unwrap();
}

#[tokio::test]
async fn a_server_that_ends_every_watch_at_once_is_asked_ever_more_rarely() {
    let followed = Followed::of_pool().unwrap();
    followed.wait(|known| known.complete).await.unwrap();
    let count = || followed.server.request_count("watch /pods");
    let before = count();
    followed.server.set_short_watches(true);
    tokio::time::sleep(Duration::from_secs(4)).await;
    // At 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s.
    let asked = count() - before;
    assert!((3..=12).contains(&asked), "{asked}");
    assert!(followed.known.borrow().complete);
    followed.server.set_short_watches(false);
    followed.server.apply(Resource::POD, pod("b", "10.0.0.2", &json!({"app": "vllm"})));
    followed.wait_for_endpoints(&["a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"]).await.unwrap();
}
