use super::*;
use hyper::StatusCode;
use serde_json::{Value, json};

fn model() -> Model {
    Model::new(&Settings {
        models: vec!["one".into(), "two".into()],
        max_model_len: NonZeroU32::new(20).unwrap(),
        ..Settings::default()
    })
}

fn parse(api: Api, body: &Value) -> Result<ApiRequest, ApiError> {
    ApiRequest::parse(api, body.to_string().as_bytes(), &model())
}

fn context(api: Api, body: &Value) -> Context {
    parse(api, body).unwrap().ask.context
}

fn text(text: &str) -> Context {
    let mut context = Context::new(0);
    context.push_text(text.as_bytes());
    context
}

fn refusal(api: Api, body: &Value) -> (StatusCode, Value) {
    let error = parse(api, body).unwrap_err();
    let body: Value = serde_json::from_str(&error.body()).unwrap();
    (error.status(), body["error"].clone())
}

#[test]
fn a_prompt_is_text_or_token_ids_alone_or_in_an_array() {
    let word = |id| String::from_utf8(Word::from_token_id(id).unwrap().spelling().to_vec()).unwrap();
    let ids = text(&format!("{} {}", word(5), word(511_999)));
    assert_eq!(context(Api::Completions, &json!({"prompt": "a b"})), text("a b"));
    assert_eq!(context(Api::Completions, &json!({"prompt": ["a b"]})), text("a b"));
    assert_eq!(context(Api::Completions, &json!({"prompt": [5, 511_999]})), ids);
    assert_eq!(context(Api::Completions, &json!({"prompt": [[5, 511_999]]})), ids);
}

#[test]
fn messages_are_text_or_text_parts() {
    let expected = text("<|system|>\nbe brief<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\n");
    let parts = json!([{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]);
    for content in [json!("be brief"), parts] {
        let body = json!({"messages": [{"role": "system", "content": content}, {"role": "user", "content": "hi", "name": "x"}]});
        assert_eq!(context(Api::Chat, &body), expected);
    }
}

#[test]
fn a_continued_message_stands_where_it_was_written() {
    let question = json!({"role": "user", "content": "hi"});
    let fresh = json!({"messages": [question]});
    let resumed = json!({
        "messages": [question, {"role": "assistant", "content": "well then"}],
        "add_generation_prompt": false,
        "continue_final_message": true,
    });
    let mut expected = context(Api::Chat, &fresh);
    expected.push_text(b"well then");
    assert_eq!(context(Api::Chat, &resumed), expected);
}

#[test]
fn without_a_generation_prompt_the_text_ends_with_the_last_message() {
    let body = json!({"messages": [{"role": "user", "content": null}], "add_generation_prompt": false});
    assert_eq!(context(Api::Chat, &body), text("<|user|>\n<|end|>\n"));
}

#[test]
fn limits_come_from_the_request_or_the_api() {
    let limit = |api, body: Value| parse(api, &body).unwrap().ask.max_tokens.map(NonZeroU32::get);
    let messages = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(limit(Api::Completions, json!({"prompt": "a"})), Some(16));
    assert_eq!(limit(Api::Completions, json!({"prompt": "a b c d e f"})), Some(14), "what there is room for");
    assert_eq!(limit(Api::Completions, json!({"prompt": "a", "max_tokens": 3})), Some(3));
    assert_eq!(limit(Api::Chat, json!({"messages": messages})), None);
    assert_eq!(limit(Api::Chat, json!({"messages": messages, "max_tokens": 3})), Some(3));
    assert_eq!(limit(Api::Chat, json!({"messages": messages, "max_tokens": 3, "max_completion_tokens": 4})), Some(4));
}

#[test]
fn the_model_may_have_several_names_or_go_unnamed() {
    assert_eq!(parse(Api::Completions, &json!({"prompt": "a", "model": "two"})).unwrap().model, "two");
    assert_eq!(parse(Api::Completions, &json!({"prompt": "a"})).unwrap().model, "one");
}

#[test]
fn nulls_and_unknown_fields_are_as_good_as_absent() {
    let body = json!({"prompt": "a", "model": null, "messages": null, "n": null, "stream": null, "stream_options": null,
        "max_tokens": null, "ignore_eos": null, "temperature": 0.5});
    let request = parse(Api::Completions, &body).unwrap();
    assert!(!request.stream && !request.include_usage && !request.ask.ignore_eos);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let completions = [
        (json!({}), "prompt"),
        (json!({"prompt": ["a", "b"]}), "prompt"),
        (json!({"prompt": [512_000]}), "prompt"),
        (json!({"prompt": "a", "n": 2}), "n"),
    ];
    let message = |content: Value| json!([{"role": "user", "content": content}]);
    let chat = [
        (json!({"messages": []}), "messages"),
        (json!({"messages": message(json!([{"type": "image_url"}]))}), "messages"),
        (json!({"messages": message(json!([{"type": "text"}]))}), "messages"),
        (json!({"messages": message(json!("a")), "continue_final_message": true}), "continue_final_message"),
    ];
    let completions = completions.into_iter().map(|case| (Api::Completions, case));
    for (api, (body, param)) in completions.chain(chat.into_iter().map(|case| (Api::Chat, case))) {
        let (status, error) = refusal(api, &body);
        assert_eq!((status, error["param"].as_str()), (StatusCode::BAD_REQUEST, Some(param)), "{body}: {error}");
        assert_eq!((error["type"].as_str(), error["code"].as_u64()), (Some("BadRequestError"), Some(400)));
    }
}

#[test]
fn an_unknown_model_is_not_found() {
    let (status, error) = refusal(Api::Completions, &json!({"model": "three", "prompt": "a"}));
    assert_eq!((status, error["type"].as_str()), (StatusCode::NOT_FOUND, Some("NotFoundError")));
}

#[test]
fn a_wrong_type_is_refused_with_its_place() {
    for body in [r#"{"prompt": {}}"#, r#"{"prompt": "a", "max_tokens": 0}"#, r#"{"prompt": "a"#, "[]", ""] {
        let error = ApiRequest::parse(Api::Completions, body.as_bytes(), &model()).unwrap_err();
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        assert!(error.to_string().contains("line 1 column"), "{error}");
    }
}
