use proptest::prelude::*;

use super::*;

fn scan(format: ResponseFormat, chunks: &[&[u8]]) -> TokenUsage {
    let mut scanner = UsageScanner::new(format);
    for chunk in chunks {
        scanner.push(chunk);
    }
    scanner.usage()
}

const fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> TokenUsage {
    TokenUsage { prompt: Some(prompt), completion: Some(completion), cached }
}

const JSON: &str = r#"{"id":"usage","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9} }{ \\"},"usage":{"prompt_tokens":8}}],
 "usage" : {"prompt_tokens":12,"completion_tokens":"34","prompt_tokens_details":{"cached_tokens":5}},"x":"usage"}"#;

const SSE: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{\"}}],\"usage\":null}\n\n\
    : comment \"usage\":{}\nevent: x\r\ndata: {\"usage\": {\"prompt_tokens\":1,\"completion_tokens\":1}}\r\n\n\
    data:{\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":34,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n\
    data: [DONE]\n\n";

#[test]
fn reads_the_top_level_usage_of_a_document() {
    assert_eq!(scan(ResponseFormat::Json, &[JSON.as_bytes()]), usage(12, 34, Some(5)));
}

#[test]
fn reads_the_last_usage_of_an_event_stream() {
    assert_eq!(scan(ResponseFormat::EventStream, &[SSE.as_bytes()]), usage(12, 34, Some(5)));
}

#[test]
fn every_single_cut_finds_the_same() {
    for (format, text) in [(ResponseFormat::Json, JSON), (ResponseFormat::EventStream, SSE)] {
        for cut in 0..=text.len() {
            let (head, tail) = text.as_bytes().split_at(cut);
            assert_eq!(scan(format, &[head, tail]), usage(12, 34, Some(5)), "{format:?} cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(scan(format, &bytes), usage(12, 34, Some(5)), "{format:?} byte by byte");
    }
}

#[test]
fn reads_the_usage_of_a_completed_response() {
    let text = "data: {\"type\":\"response.created\",\"response\":{\"usage\":{\"input_tokens\":1}}}\n\
        data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4,\
        \"input_tokens_details\":{\"cached_tokens\":2}}}}\n";
    assert_eq!(scan(ResponseFormat::EventStream, &[text.as_bytes()]), usage(3, 4, Some(2)));
}

#[test]
fn a_field_that_a_later_usage_lacks_keeps_its_value() {
    let text = "data: {\"usage\":{\"prompt_tokens\":3}}\ndata: {\"usage\":{\"completion_tokens\":4}}\n";
    assert_eq!(scan(ResponseFormat::EventStream, &[text.as_bytes()]), usage(3, 4, None));
}

#[test]
fn a_line_without_end_is_bounded_and_the_next_one_is_read() {
    let mut scanner = UsageScanner::new(ResponseFormat::EventStream);
    for _ in 0..100 {
        scanner.push(&[b'x'; 64 << 10]);
    }
    let Framing::EventStream(inner) = &scanner.framing else { panic!() };
    assert!(format!("{inner:?}").len() < 100, "the long line is held");
    scanner.push(b"\ndata: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n");
    assert_eq!(scanner.usage(), usage(1, 2, None));
}

#[test]
fn an_endless_usage_object_is_bounded() {
    let mut scanner = UsageScanner::new(ResponseFormat::Json);
    scanner.push(b"{\"usage\":{\"a\":\"");
    for _ in 0..100 {
        scanner.push(&[b'x'; 64 << 10]);
    }
    scanner.push(b"\"},\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}");
    assert_eq!(scanner.usage(), usage(1, 2, None));
}

#[test]
fn headers_tell_the_format() {
    for (content_type, encoding, format) in [
        (Some("text/event-stream"), None, ResponseFormat::EventStream),
        (Some("Text/Event-Stream; charset=utf-8"), None, ResponseFormat::EventStream),
        (Some("application/json"), Some("identity"), ResponseFormat::Json),
        (Some("application/problem+json"), None, ResponseFormat::Json),
        (Some("application/json"), Some("gzip"), ResponseFormat::Opaque),
        (Some("text/plain"), None, ResponseFormat::Opaque),
        (None, None, ResponseFormat::Opaque),
    ] {
        assert_eq!(ResponseFormat::of(content_type, encoding), format, "{content_type:?} {encoding:?}");
    }
}

fn cut(text: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| text[pair[0]..pair[1]].to_vec()).collect()
}

proptest! {
    #[test]
    fn any_cutting_finds_the_same(cuts in proptest::collection::vec(any::<usize>(), 0..12), json in any::<bool>()) {
        let (format, text) = if json { (ResponseFormat::Json, JSON) } else { (ResponseFormat::EventStream, SSE) };
        let chunks = cut(text.as_bytes(), &cuts);
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(scan(format, &chunks), usage(12, 34, Some(5)));
    }

    #[test]
    fn any_bytes_are_survived(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..8)) {
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        scan(ResponseFormat::Json, &chunks);
        scan(ResponseFormat::EventStream, &chunks);
    }

    #[test]
    fn agrees_with_a_full_parser(text in ".{0,40}", prompt in any::<u32>(), completion in any::<u32>(), before in any::<bool>()) {
        let counts = serde_json::json!({"prompt_tokens": prompt, "completion_tokens": completion});
        let other = serde_json::json!({"content": text, "usage": {"prompt_tokens": 7}});
        let document = if before { format!(r#"{{"usage":{counts},"b":[{other}]}}"#) } else { format!(r#"{{"b":[{other}],"usage":{counts}}}"#) };
        prop_assert_eq!(
            scan(ResponseFormat::Json, &[document.as_bytes()]),
            usage(u64::from(prompt), u64::from(completion), None)
        );
    }
}
