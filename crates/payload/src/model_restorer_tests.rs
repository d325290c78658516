use proptest::prelude::*;

use super::*;

const CHAT: &str = "data: {\"id\":\"1\",\"model\":\"big\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

/// What a client sees of `parts`, where the server says `big` and the client `small`.
fn seen(format: ResponseFormat, parts: &[&[u8]]) -> Vec<u8> {
    let mut restorer = ModelRestorer::new(format, "big", "small").unwrap();
    let mut seen = Vec::new();
    for part in parts {
        match restorer.push(part) {
            Some(changed) => seen.extend(changed),
            None => seen.extend_from_slice(part),
        }
    }
    seen.extend(restorer.finish());
    seen
}

fn document(text: &str) -> String {
    String::from_utf8(seen(ResponseFormat::Json, &[text.as_bytes()])).unwrap()
}

fn events(text: &str) -> String {
    String::from_utf8(seen(ResponseFormat::EventStream, &[text.as_bytes()])).unwrap()
}

#[test]
fn the_name_is_the_clients_in_a_document() {
    assert_eq!(document(r#"{"id":1,"model":"big","n":2}"#), r#"{"id":1,"model":"small","n":2}"#);
    assert_eq!(document("{\n  \"model\" :\n\t\"big\"\n}\n"), "{\n  \"model\" :\n\t\"small\"\n}\n");
    assert_eq!(document(r#"{"model":"\u0062ig"}"#), r#"{"model":"small"}"#);
    assert_eq!(document(r#"{"message":{"model":"big"}}"#), r#"{"message":{"model":"small"}}"#);
}

#[test]
fn the_name_is_the_clients_in_each_event() {
    let twice = [CHAT, CHAT].concat();
    assert_eq!(events(&twice), twice.replace("big", "small"));
    let anthropic =
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"1\",\"model\":\"big\"}}\n\n";
    assert_eq!(events(anthropic), anthropic.replace("big", "small"));
    let responses =
        "data:{\"type\":\"response.created\",\"response\":{\"tools\":[],\"model\":\"big\"}}\r\n\r\ndata: [DONE]\n\n";
    assert_eq!(events(responses), responses.replace("big", "small"));
}

#[test]
fn whatever_else_looks_like_the_name_stays() {
    for text in [
        r#"{"model":"bigger"}"#,
        r#"{"model":"bi"}"#,
        r#"{"model":null,"big":"big"}"#,
        r#"{"text":"\"model\":\"big\"","model":7}"#,
        r#"{"metadata":{"model":"big"}}"#,
        r#"{"message":[{"model":"big"}]}"#,
        r#"{"message":{"content":{"model":"big"}}}"#,
        r#"{"choices":[{"model":"big"}],"x":["model","big"]}"#,
        r#"[{"model":"big"}]"#,
        r#""model" : "big""#,
        r#"{"a":"message","b":{"model":"big"}}"#,
        r#"{"model":["big"]}"#,
    ] {
        assert_eq!(document(text), text);
    }
    for text in [
        "event: {\"model\":\"big\"}\n\n",
        ": {\"model\":\"big\"}\n",
        "dat: {\"model\":\"big\"}\n",
        "data: {\"model\":\n\"big\"}",
    ] {
        assert_eq!(events(text), text);
    }
}

#[test]
fn a_line_that_breaks_off_does_not_spoil_the_next() {
    let broken = ["data: {\"model\":\"bi\n", CHAT].concat();
    assert_eq!(events(&broken), ["data: {\"model\":\"bi\n", &CHAT.replace("big", "small")].concat());
}

#[test]
fn a_value_is_held_back_no_longer_than_it_may_be_the_name() {
    let mut restorer = ModelRestorer::new(ResponseFormat::Json, "big", "small").unwrap();
    assert_eq!(restorer.push(b"{\"model\":\"bi").as_deref(), Some(&b"{\"model\":"[..]));
    let long = "g".repeat(30);
    assert_eq!(restorer.push(long.as_bytes()), Some(format!("\"bi{long}").into_bytes()));
    assert_eq!(restorer.push(b"g\"}"), None);
}

#[test]
fn a_chunk_grows_by_so_much_and_no_more_whatever_the_client_calls_the_model() {
    let name = "\u{1}".repeat(4_096);
    let mut restorer = ModelRestorer::new(ResponseFormat::EventStream, "T", &name).unwrap();
    let event = "data:{\"model\":\"T\"}\n";
    let crowd = event.repeat(50_000);
    for _ in 0..2 {
        let seen = restorer.push(crowd.as_bytes()).unwrap();
        assert!(seen.len() <= crowd.len() + MAX_GROWTH, "{}", seen.len());
        assert!(seen.len() > crowd.len() + MAX_GROWTH / 2, "as many names as there is room for");
        assert!(seen.ends_with(event.as_bytes()), "the others are the server's");
    }
    let one = String::from_utf8(restorer.push(event.as_bytes()).unwrap()).unwrap();
    assert_eq!(one, event.replace("\"T\"", &serde_json::to_string(&name).unwrap()));
}

#[test]
fn what_cannot_be_read_has_no_name_to_be_put_back() {
    assert!(ModelRestorer::new(ResponseFormat::Opaque, "a", "b").is_none());
}

proptest! {
    #[test]
    fn where_the_bytes_are_cut_does_not_matter(
        text in prop::collection::vec(prop::sample::select(
            &["data: ", "{", "}", "[", "]", ":", ",", "\"model\"", "\"big\"", "\"message\"", "\"a\\\"b\"", "\n", "\\", "\"", "é"][..]
        ), 0..30),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        is_event_stream in any::<bool>(),
    ) {
        let text = text.concat().into_bytes();
        let format = if is_event_stream { ResponseFormat::EventStream } else { ResponseFormat::Json };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.sort_unstable();
        let mut parts = Vec::new();
        let mut done = 0;
        for cut in cuts {
            parts.push(&text[done..cut]);
            done = cut;
        }
        parts.push(&text[done..]);
        prop_assert_eq!(seen(format, &parts), seen(format, &[&text]));
    }
}
