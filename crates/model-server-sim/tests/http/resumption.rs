//! A request that is cut and sent again goes on with the same text, on another server too.

use serde_json::{Value, json};

use crate::support::{TestServer, content, count, fast, text};
use model_server_sim::Settings;

fn settings() -> Settings {
    Settings { mean_output_tokens: count(20), seed: 4, ..fast() }
}

/// Every part of a text that ends after a token: the empty one first, the whole text last.
fn cuts(text: &str) -> Vec<(&str, &str)> {
    let spaces = text.match_indices(' ').map(|(at, _)| at).filter(|&at| at > 0);
    std::iter::once(0).chain(spaces).chain([text.len()]).map(|at| text.split_at(at)).collect()
}

fn completion_tokens(answer: &Value) -> u64 {
    answer["usage"]["completion_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn a_completion_goes_on_from_every_cut() {
    let (first, second) = (TestServer::start(settings()).await, TestServer::start(settings()).await);
    let prompt = "once upon a time";
    let whole = first.complete(json!({"prompt": prompt, "max_tokens": 200})).await;
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let cuts = cuts(text(&whole));
    assert!(cuts.len() > 10, "{whole}");
    for (number, (saved, rest)) in (0..).zip(cuts) {
        let resumed = second.complete(json!({"prompt": format!("{prompt}{saved}"), "max_tokens": 200 - number})).await;
        assert_eq!(text(&resumed), rest);
        assert_eq!(resumed["choices"][0]["finish_reason"], "stop");
        assert_eq!(completion_tokens(&resumed) + number, completion_tokens(&whole));
        assert_eq!(resumed["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    }
}

#[tokio::test]
async fn a_chat_goes_on_from_every_cut() {
    let (first, second) = (TestServer::start(settings()).await, TestServer::start(settings()).await);
    let question = json!({"role": "user", "content": "tell me a story"});
    let whole = first.chat(json!({"messages": [question], "max_tokens": 40, "ignore_eos": true})).await;
    let cuts = cuts(content(&whole));
    assert_eq!(cuts.len(), 41);
    for (number, (saved, rest)) in (0..40).zip(cuts) {
        let request = json!({
            "messages": [question, {"role": "assistant", "content": saved}],
            "continue_final_message": true,
            "add_generation_prompt": false,
            "max_tokens": 40 - number,
            "ignore_eos": true,
        });
        let resumed = second.chat(request).await;
        assert_eq!(content(&resumed), rest);
        assert_eq!(resumed["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    }
}

#[tokio::test]
async fn another_seed_is_another_model() {
    let (first, second) = (TestServer::start(settings()).await, TestServer::start(fast()).await);
    let request = json!({"prompt": "once upon a time", "ignore_eos": true});
    assert_ne!(text(&first.complete(request.clone()).await), text(&second.complete(request).await));
}
