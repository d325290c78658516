use std::sync::Mutex;

use axum::Router;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;

use super::*;

const STREAM: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"well\"}}]}\n\n",
);

/// What the server saw: the values of the header `x-class`, in the order of arrival.
type Seen = Arc<Mutex<Vec<String>>>;

/// Answers after 100 ms: `full` with a whole stream, `cut` with one without its end, anything else with 429.
async fn serve(seen: Seen) -> String {
    let answer = move |headers: HeaderMap| async move {
        let class = headers["x-class"].to_str().unwrap().to_owned();
        seen.lock().unwrap().push(class.clone());
        tokio::time::sleep(Duration::from_millis(100)).await;
        match class.as_str() {
            "full" => (StatusCode::OK, format!("{STREAM}data: [DONE]\n\n")),
            "cut" => (StatusCode::OK, STREAM.to_owned()),
            _ => (StatusCode::TOO_MANY_REQUESTS, String::new()),
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, Router::new().route("/", post(answer))).await });
    // Ends with the runtime of the test.
    server.detach_all();
    url
}

fn class(name: &'static str, arrivals: Arrivals) -> Class {
    Class { name, headers: vec![("x-class", name)], arrivals, tokens: 1..=3 }
}

#[tokio::test]
async fn tells_what_became_of_each_class() {
    let url = serve(Seen::default()).await;
    let once = Arrivals::Open { at_once: 3, every: Duration::from_secs(1) };
    let classes = ["full", "cut", "refused"].map(|name| class(name, once));
    let load = Load { url: &url, model: "m", classes: &classes, duration: Duration::from_millis(50), seed: 1 };
    let tallies = load.run().await.unwrap();
    let counts: Vec<_> = tallies.iter().map(|tally| (tally.served, tally.broken, tally.refused)).collect();
    assert_eq!(counts, [(3, 0, 0), (0, 3, 0), (0, 0, 3)]);
    assert!(tallies[0].ttft_percentile(0).unwrap() >= Duration::from_millis(100));
}

#[tokio::test]
async fn an_open_loop_does_not_wait_for_answers_and_a_closed_one_does() {
    let seen = Seen::default();
    let url = serve(Arc::clone(&seen)).await;
    let duration = Duration::from_millis(90);
    let open = [class("full", Arrivals::Open { at_once: 2, every: Duration::from_millis(10) })];
    let closed = [class("full", Arrivals::Closed { clients: 2 })];
    for (classes, expected) in [(open, 18), (closed, 2)] {
        let load = Load { url: &url, model: "m", classes: &classes, duration, seed: 1 };
        assert_eq!(load.run().await.unwrap()[0].served, expected);
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()).len(), expected);
    }
}

#[tokio::test]
async fn a_closed_loop_backs_off_after_a_refusal() {
    let url = serve(Seen::default()).await;
    let classes = [class("refused", Arrivals::Closed { clients: 1 })];
    let load = Load { url: &url, model: "m", classes: &classes, duration: Duration::from_millis(300), seed: 1 };
    assert_eq!(load.run().await.unwrap()[0].refused, 1);
}
