use proptest::prelude::*;

use super::*;

fn chat(body: &str) -> Result<RequestFields, ParseError> {
    parse_request(Api::OpenAiChat, body.as_bytes())
}

#[test]
fn reads_model_stream_and_bound() {
    let fields = chat(r#"{"messages":[{"role":"user","content":"hi"}],"model":"m","stream":true,"max_tokens":7}"#);
    assert_eq!(fields, Ok(RequestFields { model: Some("m".into()), stream: true, max_output_tokens: Some(7) }));
}

#[test]
fn the_newer_name_of_the_bound_wins_wherever_it_stands() {
    for body in [r#"{"max_tokens":1,"max_completion_tokens":2}"#, r#"{"max_completion_tokens":2,"max_tokens":1}"#] {
        assert_eq!(chat(body).unwrap().max_output_tokens, Some(2));
    }
    let completions = parse_request(Api::OpenAiCompletions, br#"{"max_tokens":1,"max_completion_tokens":2}"#);
    assert_eq!(completions.unwrap().max_output_tokens, Some(1));
}

#[test]
fn every_api_has_its_own_name_of_the_bound() {
    let body = br#"{"model":"m","max_tokens":1,"max_output_tokens":2,"sampling_params":{"model":"x","max_tokens":3}}"#;
    for (api, bound) in [
        (Api::OpenAiChat, Some(1)),
        (Api::OpenAiCompletions, Some(1)),
        (Api::AnthropicMessages, Some(1)),
        (Api::OpenAiResponses, Some(2)),
        (Api::VllmGenerate, Some(3)),
        (Api::OpenAiConversations, None),
        (Api::OpenAiOther, None),
    ] {
        let fields = parse_request(api, body).unwrap();
        assert_eq!((fields.model.as_deref(), fields.max_output_tokens), (Some("m"), bound), "{api:?}");
    }
    for odd in ["3", "[3]", "{}", "null", r#"{"max_tokens":"3"}"#] {
        let fields = parse_request(Api::VllmGenerate, format!(r#"{{"sampling_params":{odd}}}"#).as_bytes());
        assert_eq!(fields.unwrap().max_output_tokens, None, "{odd}");
    }
}

#[test]
fn a_bound_that_is_no_whole_number_counts_as_absent() {
    for (value, bound) in [
        ("0", Some(0)),
        ("3.0", Some(3)),
        ("1e2", Some(100)),
        ("3.5", None),
        ("-1", None),
        ("\"3\"", None),
        ("null", None),
        ("[3]", None),
        ("1e300", None),
    ] {
        let fields = chat(&format!(r#"{{"max_completion_tokens":{value}}}"#)).unwrap();
        assert_eq!(fields.max_output_tokens, bound, "{value}");
    }
    // A useless value of the newer name leaves the older one in force.
    let fields = chat(r#"{"max_completion_tokens":null,"max_tokens":5}"#).unwrap();
    assert_eq!(fields.max_output_tokens, Some(5));
}

#[test]
fn odd_types_count_as_absent_and_the_last_of_a_repeated_key_counts() {
    let fields = chat(r#"{"model":{"a":[1]},"stream":"true"}"#).unwrap();
    assert_eq!(fields, RequestFields::default());
    assert_eq!(chat(r#"{"model":""}"#).unwrap().model, None);
    assert_eq!(chat(r#"{"model":"a","model":"b"}"#).unwrap().model.as_deref(), Some("b"));
    assert_eq!(chat(r#"{"model":"m"}"#).unwrap().model.as_deref(), Some("m"));
}

#[test]
fn a_model_name_is_measured_as_the_server_reads_it_wherever_it_stands() {
    let longest = "m".repeat(MAX_MODEL_NAME);
    let escaped = "\\u006d".repeat(MAX_MODEL_NAME);
    for name in [&longest, &escaped] {
        assert_eq!(chat(&format!(r#"{{"model":"{name}"}}"#)).unwrap().model.as_ref(), Some(&longest));
        for body in [
            format!(r#"{{"model":"{name}x"}}"#),
            format!(r#"{{"model":"{name}\n"}}"#),
            format!(r#"{{"\u006dodel":"{name}x","model":"m"}}"#),
            format!(r#"{{"model":"m","model":"{name}x"}}"#),
        ] {
            assert_eq!(chat(&body), Err(ParseError::ModelTooLong));
        }
    }
    let text = ParseError::ModelTooLong.to_string();
    assert_eq!(text, r#"the field "model" of the request body is longer than 4096 bytes"#);
    // What is no name of a model may be as long as it likes.
    let long = "x\\n".repeat(MAX_MODEL_NAME);
    let body =
        format!(r#"{{"{long}":1,"stream":"{long}","x":{{"model":"{long}"}},"max_tokens":"{long}","model":"m"}}"#);
    assert_eq!(chat(&body), Ok(RequestFields { model: Some("m".into()), ..RequestFields::default() }));
    let body = format!(r#"{{"sampling_params":{{"model":"{long}","max_tokens":3}},"model":"m"}}"#);
    assert_eq!(parse_request(Api::VllmGenerate, body.as_bytes()).unwrap().max_output_tokens, Some(3));
}

#[test]
fn errors_have_a_position_and_no_word_of_the_body() {
    for (body, line, column) in [
        ("{\n \"secret\": nonsense}", 2, 13),
        (r#"{"secret": "unterminated"#, 1, 24),
        (r#"{"secret":1} secret"#, 1, 14),
        ("", 1, 0),
        (r#"{"secret":"\q"}"#, 1, 13),
    ] {
        let error = chat(body).unwrap_err();
        let ParseError::Json { line: at_line, column: at_column, .. } = &error else { panic!("{error}") };
        assert_eq!((*at_line, *at_column), (line, column), "{body}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(error.to_string().starts_with("error unmarshaling request bodyMap: "), "{error}");
    }
    for body in ["[1]", "\"secret\"", "null", "3", "-3", "1.5", "true"] {
        assert_eq!(chat(body), Err(ParseError::NotAnObject), "{body}");
    }
}

#[test]
fn a_passthrough_body_is_not_looked_at() {
    assert_eq!(parse_request(Api::Passthrough, b"\xff{"), Ok(RequestFields::default()));
}

#[test]
fn deep_nesting_is_no_trouble() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    assert_eq!(chat(&format!(r#"{{"messages":{deep},"model":"m"}}"#)).unwrap().model.as_deref(), Some("m"));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(parse_request(Api::OpenAiChat, &body));
    }

    #[test]
    fn agrees_with_a_full_parser(model in ".{1,20}", stream in any::<bool>(), bound in any::<u32>(), text in ".{0,60}") {
        let body = serde_json::json!({"a": [text], "model": model, "stream": stream, "max_tokens": bound}).to_string();
        prop_assert_eq!(
            chat(&body),
            Ok(RequestFields { model: Some(model), stream, max_output_tokens: Some(u64::from(bound)) })
        );
    }
}
