//! What requests get.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model_server_sim::{MAX_REQUEST_BODY, Settings};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{Answer, TestServer, content, count, fast, text};

#[tokio::test]
async fn a_completion_comes_whole_with_its_usage() {
    let server = TestServer::start(fast()).await;
    let answer = server.complete(json!({"prompt": "one two three", "max_tokens": 5, "ignore_eos": true})).await;
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "sim-model");
    assert_eq!(text(&answer).split_ascii_whitespace().count(), 5);
    assert!(text(&answer).starts_with(' '));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}));
}

#[tokio::test]
async fn a_chat_comes_whole_with_its_usage() {
    let server = TestServer::start(fast()).await;
    let messages = json!([{"role": "user", "content": "one two"}]);
    let answer = server.chat(json!({"messages": messages, "max_completion_tokens": 5, "ignore_eos": true})).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    assert_eq!(content(&answer).split_ascii_whitespace().count(), 5);
    assert_eq!(answer["usage"], json!({"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}));
}

#[tokio::test]
async fn a_stream_says_the_same_as_the_whole() {
    let server = TestServer::start(fast()).await;
    let whole = server.complete(json!({"prompt": "a b", "max_tokens": 30})).await;
    let request = json!({"prompt": "a b", "max_tokens": 30, "stream": true, "stream_options": {"include_usage": true}});
    let answer = server.post("/v1/completions", request.to_string()).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    let events = answer.events();
    let (usage, tokens) = events.split_last().unwrap();
    let streamed: String = tokens.iter().map(text).collect();
    assert_eq!(streamed, text(&whole));
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"], whole["usage"]);
    assert_eq!(tokens.last().unwrap()["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert!(tokens.iter().all(|event| event["id"] == usage["id"] && event.get("usage").is_none()));
}

#[tokio::test]
async fn a_chat_stream_begins_with_the_role_and_says_the_same_as_the_whole() {
    let server = TestServer::start(fast()).await;
    let mut request = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "ignore_eos": true});
    let whole = server.chat(request.clone()).await;
    request["stream"] = json!(true);
    let events = server.post("/v1/chat/completions", request.to_string()).await.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let delta = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap().to_owned();
    assert_eq!(events.iter().map(delta).collect::<String>(), content(&whole));
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn without_ignore_eos_the_model_ends_the_text() {
    let server = TestServer::start(Settings { mean_output_tokens: count(8), ..fast() }).await;
    let mut request = json!({"prompt": "a", "max_tokens": 500});
    let ended = server.complete(request.clone()).await;
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    let words = text(&ended).split_ascii_whitespace().count();
    assert_eq!(ended["usage"]["completion_tokens"], words + 1, "the end is a token");
    request["ignore_eos"] = json!(true);
    let whole = server.complete(request).await;
    assert!(text(&whole).starts_with(text(&ended)));
    assert_eq!(whole["usage"]["completion_tokens"], 500);
}

#[tokio::test]
async fn refusals_have_the_shape_of_the_api() {
    let server = TestServer::start(Settings { max_model_len: count(8), ..fast() }).await;
    let cases = [
        ("/v1/completions", "{\"prompt\": ".to_owned(), 400),
        ("/v1/completions", json!({"prompt": ""}).to_string(), 400),
        ("/v1/completions", json!({"prompt": "a b c d e f g h"}).to_string(), 400),
        ("/v1/completions", json!({"prompt": "a b c", "max_tokens": 6}).to_string(), 400),
        ("/v1/completions", json!({"prompt": "a", "n": 2}).to_string(), 400),
        ("/v1/completions", json!({"prompt": "a", "model": "other"}).to_string(), 404),
        ("/v1/chat/completions", json!({"model": "sim-model"}).to_string(), 400),
        ("/v1/embeddings", json!({"input": "a"}).to_string(), 404),
        ("/health", "{}".to_owned(), 405),
    ];
    for (path, body, status) in cases {
        let answer = server.post(path, body.clone()).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
        assert_eq!(answer.headers["content-type"], "application/json");
        let error = &answer.json()["error"];
        assert_eq!(error["code"], status);
        assert!(error["type"].as_str().unwrap().ends_with("Error"));
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    assert_eq!(server.get("/v1/completions").await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(
        server.complete(json!({"prompt": "a b c"})).await["usage"]["completion_tokens"],
        5,
        "all there is room for"
    );
}

#[tokio::test]
async fn models_and_health_are_served() {
    let models = vec!["base".to_owned(), "alias".to_owned()];
    let server = TestServer::start(Settings { models, max_model_len: count(4_096), ..fast() }).await;
    let listed = server.get("/v1/models").await.success();
    assert_eq!(listed["data"][0]["id"], "base");
    assert_eq!(listed["data"][1]["id"], "alias");
    assert_eq!(listed["data"][0]["max_model_len"], 4_096);
    assert_eq!(server.complete(json!({"model": "alias", "prompt": "a"})).await["model"], "alias");
    let health = server.get("/health").await;
    assert_eq!((health.status, health.body.as_str()), (StatusCode::OK, ""));
    assert_eq!(server.request(Method::HEAD, "/health", "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn every_response_names_its_server() {
    let server = TestServer::start(fast()).await;
    for path in ["/health", "/nowhere"] {
        assert_eq!(server.get(path).await.headers["x-served-by"], server.address.to_string());
    }
    let named = TestServer::start(Settings { name: Some("east-1".into()), ..fast() }).await;
    assert_eq!(named.post("/v1/completions", r#"{"prompt": "a"}"#).await.headers["x-served-by"], "east-1");
}

#[tokio::test]
async fn the_id_is_the_clients_or_unique() {
    let server = TestServer::start(fast()).await;
    let first = server.complete(json!({"prompt": "a"})).await;
    let second = server.complete(json!({"prompt": "a"})).await;
    assert_ne!(first["id"], second["id"]);

    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(driver);
    let request = Request::post("/v1/completions").header("host", "test").header("x-request-id", "mine-7");
    let response = sender.send_request(request.body(Full::new(Bytes::from(r#"{"prompt": "a"}"#))).unwrap()).await;
    assert_eq!(Answer::read(response.unwrap()).await.json()["id"], "cmpl-mine-7");
}

#[tokio::test]
async fn large_bodies_are_taken_up_to_the_limit() {
    let server = TestServer::start(fast()).await;
    let head = r#"{"prompt": ""#;
    let body_of = |size: usize| format!("{head}{}\"}}", "x".repeat(size - head.len() - 2));
    let answer = server.post("/v1/completions", body_of(MAX_REQUEST_BODY)).await.success();
    assert_eq!(answer["usage"]["prompt_tokens"], 1);
    let refused = server.post("/v1/completions", body_of(MAX_REQUEST_BODY + 1)).await;
    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(refused.json()["error"]["type"], "BadRequestError");
}

#[tokio::test]
async fn http2_is_spoken_with_prior_knowledge() {
    let server = TestServer::start(fast()).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, driver) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(driver);
    let body = json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true, "stream": true}).to_string();
    let request = Request::post("http://test/v1/completions").body(Full::new(Bytes::from(body))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body.windows(6).filter(|window| window == b"data: ").count(), 4, "three tokens and the end mark");
}
