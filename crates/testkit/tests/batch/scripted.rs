//! With a server that does what real ones do seldom.

use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::json;
use sluice_core::{Clock, SystemClock, Time};
use sluice_testkit::batch::{Backoff, BatchClient, Failure, FailureCause, Final, Item};
use sluice_testkit::unused_address;

use crate::script::{Answer, End, ScriptedServer};

const LIMIT: Duration = Duration::from_secs(20);

fn client(url: &str) -> BatchClient {
    BatchClient {
        backoff: Backoff { first: Duration::from_millis(2), longest: Duration::from_secs(2) },
        max_fruitless: NonZeroU32::new(3).unwrap(),
        ..BatchClient::new(url, "m", SystemClock::start())
    }
}

fn item(deadline: Time) -> Item {
    Item { id: "a".into(), prompt: "tell me".into(), max_tokens: NonZeroU32::new(4).unwrap(), deadline }
}

async fn run(client: &BatchClient) -> Result<Final, Failure> {
    let ends = tokio::time::timeout(LIMIT, client.run(vec![item(Time::MAX)])).await.expect("no end").unwrap();
    assert_eq!(ends.len(), 1);
    ends.into_iter().next().unwrap()
}

fn token(text: &str) -> String {
    json!({"choices": [{"index": 0, "text": text, "finish_reason": null}]}).to_string()
}

fn last_token(text: &str) -> String {
    json!({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}).to_string()
}

fn eviction(retry_after_ms: u64) -> String {
    json!({"error": {"message": "", "code": 429, "reason": "evicted", "retry_after_ms": retry_after_ms}}).to_string()
}

fn whole(text: &str) -> Answer {
    Answer::Stream(vec![last_token(text), "[DONE]".into()], End::InOrder)
}

#[tokio::test]
async fn each_attempt_says_who_it_is_from_and_what_time_is_left() {
    let cut = Answer::Stream(vec![token(" a"), token(" story")], End::Cut);
    let refusal = Answer::Refusal { status: 503, headers: vec![], body: "" };
    let server = ScriptedServer::start([cut, refusal, whole(" ends")]).await;
    let mut client = client(&server.url());
    client.objective = Some("batch".into());
    client.fairness_id = Some("tenant-a".into());
    client.backoff.first = Duration::from_millis(40);
    let deadline = client.clock.now().saturating_add(Duration::from_secs(10));
    let ends = client.run(vec![item(deadline)]).await.unwrap();
    assert_eq!(ends[0].as_ref().unwrap().text, " a story ends");
    let asked = server.asked();
    let mut remaining = Vec::new();
    for asked in &asked {
        assert_eq!(asked.headers["x-llm-d-inference-objective"], "batch");
        assert_eq!(asked.headers["x-llm-d-inference-fairness-id"], "tenant-a");
        remaining.push(asked.headers["x-llm-d-slo-ttft-ms"].to_str().unwrap().parse::<u64>().unwrap());
    }
    assert!(remaining.iter().all(|millis| (5_000..=10_000).contains(millis)), "{remaining:?}");
    assert!(remaining.is_sorted_by(|one, next| *one >= next + 20), "{remaining:?}");
    let bodies: Vec<_> = asked.iter().map(|asked| (&asked.body["prompt"], &asked.body["max_tokens"])).collect();
    let (begun, resumed) = (json!("tell me"), json!("tell me a story"));
    assert_eq!(bodies, [(&begun, &json!(4)), (&resumed, &json!(2)), (&resumed, &json!(2))]);
}

#[tokio::test]
async fn an_evicted_stream_is_left_at_once_and_returned_to_when_told() {
    let evicted = Answer::Stream(vec![token(" a"), eviction(300)], End::Never);
    let server = ScriptedServer::start([evicted, whole(" story")]).await;
    let done = run(&client(&server.url())).await.unwrap();
    assert_eq!((&*done.text, done.cost.evictions, done.cost.cuts), (" a story", 1, 0));
    let asked = server.asked();
    let between = asked[1].at.saturating_since(asked[0].at);
    assert!(between >= Duration::from_millis(300) && between < LIMIT, "{between:?}");
}

#[tokio::test]
async fn a_refusal_says_why_and_when_to_come_back() {
    let headers = vec![("retry-after", "1"), ("x-llm-d-request-dropped-reason", "evicted")];
    let evicted = Answer::Refusal { status: 429, headers, body: "{}" };
    let server = ScriptedServer::start([evicted, whole(" story")]).await;
    let done = run(&client(&server.url())).await.unwrap();
    assert_eq!((done.cost.evictions, done.cost.refusals), (1, 0));
    let asked = server.asked();
    assert!(asked[1].at.saturating_since(asked[0].at) >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_mistake_of_the_client_is_final_and_shown() {
    let refusal = Answer::Refusal { status: 404, headers: vec![], body: "no such model" };
    let server = ScriptedServer::start([refusal]).await;
    let failure = run(&client(&server.url())).await.unwrap_err();
    assert_eq!(
        failure.to_string(),
        "item a failed after 1 attempts and 0 tokens: refused with status 404: no such model"
    );
}

#[tokio::test]
async fn silence_is_a_cut() {
    let server =
        ScriptedServer::start([Answer::Silence, Answer::Stream(vec![token(" a")], End::Never), whole(" story")]).await;
    let client = BatchClient { silence: Duration::from_millis(200), ..client(&server.url()) };
    let done = run(&client).await.unwrap();
    assert_eq!((&*done.text, done.cost.cuts), (" a story", 2));
}

#[tokio::test]
async fn an_end_in_order_without_an_end_mark_is_a_cut() {
    let server = ScriptedServer::start([Answer::Stream(vec![token(" a")], End::InOrder), whole(" story")]).await;
    let done = run(&client(&server.url())).await.unwrap();
    assert_eq!((&*done.text, done.cost.cuts), (" a story", 1));
}

#[tokio::test]
async fn a_finished_stream_is_heard_out_but_not_for_ever() {
    let server = ScriptedServer::start([Answer::Stream(vec![last_token(" story")], End::Late)]).await;
    run(&client(&server.url())).await.unwrap();
    assert_eq!(server.heard_out(), 1);
    let server = ScriptedServer::start([Answer::Stream(vec![last_token(" story")], End::Never)]).await;
    run(&client(&server.url())).await.unwrap();
}

#[tokio::test]
async fn an_item_fails_where_nobody_answers() {
    let failure = run(&client(&format!("http://{}/", unused_address().unwrap()))).await.unwrap_err();
    assert!(matches!(failure.cause, FailureCause::Fruitless { attempts: 3, .. }), "{failure}");
    assert_eq!(failure.cost.cuts, 3);
}

#[tokio::test]
async fn what_cannot_stand_in_a_header_is_refused_before_anything_is_sent() {
    let server = ScriptedServer::start([]).await;
    let client = BatchClient { objective: Some("two\nlines".into()), ..client(&server.url()) };
    assert!(client.run(vec![item(Time::MAX)]).await.is_err());
    assert!(server.asked().is_empty());
}
