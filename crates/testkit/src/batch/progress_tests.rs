use model_server_sim::text::expected_text;
use rand::{RngExt, SeedableRng};

use super::*;

const SEED: u64 = 7;
const PROMPT: &str = "once upon a time";
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };
const MAX_FRUITLESS: NonZeroU32 = NonZeroU32::new(4).unwrap();

fn random() -> StdRng {
    StdRng::seed_from_u64(1)
}

fn item(max_tokens: u32) -> Item {
    Item {
        id: "a-1".into(),
        prompt: PROMPT.into(),
        max_tokens: NonZeroU32::new(max_tokens).unwrap(),
        deadline: Time::from_secs(45),
    }
}

fn progress(max_tokens: u32) -> Progress {
    Progress::new(item(max_tokens), BACKOFF, MAX_FRUITLESS)
}

/// An item of which an attempt has begun.
fn begun(max_tokens: u32) -> Progress {
    let mut progress = progress(max_tokens);
    progress.begin(Time::ZERO);
    progress
}

fn token(text: &str) -> String {
    serde_json::json!({"choices": [{"index": 0, "text": text, "finish_reason": null}]}).to_string()
}

fn last_token(text: &str, reason: &str) -> String {
    serde_json::json!({"choices": [{"index": 0, "text": text, "finish_reason": reason}]}).to_string()
}

fn eviction(retry_after_ms: u64) -> String {
    let error = serde_json::json!({
        "message": "evicted", "type": "rate_limit_error", "param": null, "code": 429, "reason": "evicted",
        "retry_after_ms": retry_after_ms,
    });
    serde_json::json!({ "error": error }).to_string()
}

fn refusal(status: u16) -> Refusal {
    Refusal { status, reason: None, retry_after: None, message: "no".into() }
}

fn read(progress: Progress, data: &str) -> ControlFlow<Next, Progress> {
    progress.read(data, Time::from_secs(9), &mut random())
}

fn reads_on(progress: Progress, data: &str) -> Progress {
    read(progress, data).continue_value().expect("the attempt ended")
}

fn ends(progress: Progress, data: &str) -> Next {
    read(progress, data).break_value().expect("the attempt goes on")
}

#[track_caller]
fn retried(next: Next) -> (Progress, Duration) {
    match next {
        Next::Retry { progress, after } => (progress, after),
        Next::Finish(end) => panic!("not sent again: {end:?}"),
    }
}

#[track_caller]
fn finished(next: Next) -> Result<Final, Failure> {
    match next {
        Next::Finish(end) => end,
        Next::Retry { after, .. } => panic!("sent again after {after:?}"),
    }
}

#[test]
fn the_first_attempt_asks_for_everything_and_says_what_time_is_left() {
    let ask = progress(9).begin(Time::from_secs(40));
    assert_eq!(ask, Ask { prompt: PROMPT.into(), max_tokens: 9, remaining: Duration::from_secs(5) });
    assert_eq!(progress(9).begin(Time::from_secs(46)).remaining, Duration::ZERO);
}

#[test]
fn an_item_ends_where_its_server_says_so() {
    for (end, text) in [
        (last_token(" was", "stop"), " there was"),
        (last_token("", "stop"), " there"),
        (last_token(" was", "length"), " there was"),
        ("[DONE]".into(), " there"),
    ] {
        let progress = reads_on(begun(9), &token(" there"));
        let done = finished(ends(progress, &end)).unwrap();
        assert_eq!(done.text, text, "{end}");
        assert_eq!(done.tokens as usize, text.split_whitespace().count(), "{end}");
        assert_eq!(done.cost, Cost { attempts: 1, ..Cost::default() });
        assert_eq!((done.item, done.finished_at), (item(9), Time::from_secs(9)));
    }
}

#[test]
fn an_item_with_all_its_tokens_needs_no_end_mark() {
    for last in [token(" was"), last_token(" was", "abort")] {
        let progress = reads_on(begun(2), &token(" there"));
        assert_eq!(finished(ends(progress, &last)).unwrap().text, " there was", "{last}");
    }
}

#[test]
fn events_without_a_choice_change_nothing() {
    let usage = r#"{"choices": [], "usage": {"prompt_tokens": 4}}"#;
    let progress = reads_on(begun(2), usage);
    assert_eq!(finished(ends(progress, "[DONE]")).unwrap().tokens, 0);
}

#[test]
fn an_eviction_goes_on_where_it_was() {
    let progress = reads_on(reads_on(begun(9), &token(" there")), &token(" was"));
    let (mut progress, after) = retried(ends(progress, &eviction(1_500)));
    assert!(after > Duration::from_millis(1_500) && after < Duration::from_millis(1_551), "{after:?}");
    let ask = progress.begin(Time::from_secs(20));
    let expected = Ask { prompt: format!("{PROMPT} there was"), max_tokens: 7, remaining: Duration::from_secs(25) };
    assert_eq!(ask, expected);
    let progress = reads_on(progress, &token(" once"));
    let done = finished(ends(progress, "[DONE]")).unwrap();
    assert_eq!(done.text, " there was once");
    // The prompt's four words and the two that were saved.
    assert_eq!(done.cost, Cost { attempts: 2, evictions: 1, wasted_tokens: 6, ..Cost::default() });
}

#[test]
fn the_reason_tells_an_eviction_from_a_refusal() {
    let evicted = Refusal { reason: Some("evicted".into()), ..refusal(429) };
    let saturated = Refusal { reason: Some("rejected-saturated".into()), ..refusal(429) };
    for (refusal, refusals, evictions) in [(evicted, 0, 1), (saturated, 1, 0)] {
        let (progress, _) = retried(begun(9).refused(refusal, &mut random()));
        let done = finished(ends(progress, "[DONE]")).unwrap();
        assert_eq!((done.cost.refusals, done.cost.evictions), (refusals, evictions));
    }
}

#[test]
fn nothing_is_wasted_by_attempts_that_brought_nothing() {
    let (mut progress, _) = retried(begun(9).refused(refusal(503), &mut random()));
    progress.begin(Time::ZERO);
    let progress = reads_on(progress, &token(" there"));
    assert_eq!(finished(ends(progress, "[DONE]")).unwrap().cost.wasted_tokens, 0);
}

#[test]
fn refusals_that_may_pass_are_sent_again() {
    for status in [408, 429, 500, 502, 503, 504] {
        retried(begun(9).refused(refusal(status), &mut random()));
    }
    for status in [204, 302, 400, 401, 404, 413, 422] {
        let failure = finished(begun(9).refused(refusal(status), &mut random())).unwrap_err();
        assert_eq!(failure.cause, FailureCause::Refused { status, message: "no".into() });
        assert_eq!(failure.cost, Cost { attempts: 1, refusals: 1, ..Cost::default() });
        assert_eq!(failure.id, "a-1");
    }
}

#[test]
fn an_error_in_the_stream_is_weighed_like_a_refusal() {
    let error = |code: &str| format!(r#"{{"error": {{"message": "no", "code": {code}}}}}"#);
    for code in ["429", "503", "null", "\"internal\"", "70000"] {
        retried(ends(begun(9), &error(code)));
    }
    retried(ends(begun(9), r#"{"error": {}}"#));
    let failure = finished(ends(reads_on(begun(9), &token(" there")), &error("400"))).unwrap_err();
    assert_eq!(failure.cause, FailureCause::Refused { status: 400, message: "no".into() });
    assert_eq!(failure.tokens, 1);
}

#[test]
fn a_server_that_breaks_off_has_not_finished() {
    for reason in ["abort", "error"] {
        let (mut progress, _) = retried(ends(begun(9), &last_token(" there", reason)));
        let ask = progress.begin(Time::ZERO);
        assert_eq!((&*ask.prompt, ask.max_tokens), ("once upon a time there", 8));
        assert_eq!(finished(ends(progress, "[DONE]")).unwrap().cost.cuts, 1);
    }
}

#[test]
fn what_cannot_be_read_is_not_skipped() {
    let whole = token(" was");
    let chat = r#"{"choices": [{"delta": {"content": "was"}, "finish_reason": null}]}"#;
    for data in ["", "{}", chat, whole.strip_suffix('}').unwrap()] {
        let progress = reads_on(begun(9), &token(" there"));
        let (mut progress, _) = retried(ends(progress, data));
        assert_eq!(progress.begin(Time::ZERO).prompt, "once upon a time there", "{data}");
    }
}

#[test]
fn waits_grow_with_refusals_and_not_with_evictions_or_after_tokens() {
    let mut random = random();
    let windows = |after: Duration| after.div_duration_f64(BACKOFF.first);
    let mut progress = progress(9);
    for window in [1.0, 2.0, 4.0] {
        progress.begin(Time::ZERO);
        let after;
        (progress, after) = retried(progress.refused(refusal(429), &mut random));
        assert!(windows(after) >= window / 2.0 && windows(after) <= window, "{after:?}");
    }
    progress.begin(Time::ZERO);
    let (mut progress, after) = retried(reads_on(progress, &token(" there")).cut("gone", &mut random));
    assert!(windows(after) <= 1.0, "{after:?}");
    for _ in 0..3 {
        progress.begin(Time::ZERO);
        let after;
        (progress, after) =
            retried(progress.refused(Refusal { reason: Some("evicted".into()), ..refusal(429) }, &mut random));
        assert!(windows(after) <= 1.0, "{after:?}");
    }
}

#[test]
fn too_many_attempts_without_a_token_are_the_end() {
    let mut random = random();
    let mut progress = progress(9);
    // Tokens in between begin the count anew.
    for round in 0..2 {
        for _ in 0..3 {
            progress.begin(Time::ZERO);
            progress = retried(progress.cut("no answer", &mut random)).0;
        }
        progress.begin(Time::ZERO);
        progress = reads_on(progress, &token(" there"));
        progress = retried(progress.cut("gone", &mut random)).0;
        assert_eq!(progress.tokens, round + 1);
    }
    for _ in 0..3 {
        progress.begin(Time::ZERO);
        progress = retried(progress.cut("no answer", &mut random)).0;
    }
    progress.begin(Time::ZERO);
    let last = Refusal { reason: Some("rejected-saturated".into()), ..refusal(429) };
    let failure = finished(progress.refused(last, &mut random)).unwrap_err();
    let last = "429 rejected-saturated: no".to_owned();
    assert_eq!(failure.cause, FailureCause::Fruitless { attempts: 4, last });
    assert_eq!((failure.tokens, failure.cost.attempts, failure.cost.cuts), (2, 12, 11));
}

#[test]
fn a_deadline_is_met_up_to_its_last_moment() {
    for (at, met) in [(45_000, true), (45_001, false)] {
        let end = begun(9).read("[DONE]", Time::from_millis(at), &mut random()).break_value().unwrap();
        assert_eq!(finished(end).unwrap().met_deadline(), met);
    }
}

/// A server that says what the simulated model says and ends every attempt in some way, mostly before its time.
fn one_attempt(mut progress: Progress, ask: &Ask, random: &mut StdRng) -> Next {
    let whole = expected_text(SEED, &ask.prompt, ask.max_tokens);
    let mut words = whole.split_inclusive(' ').peekable();
    let fate = random.random_range(0..100);
    let refusal = |status, reason: &str| Refusal { reason: Some(reason.into()), ..refusal(status) };
    match fate {
        0..10 => return progress.refused(refusal(429, "rejected-saturated"), random),
        10..20 => return progress.refused(refusal(503, "rejected-no-endpoints"), random),
        20..30 => return progress.refused(refusal(429, "evicted"), random),
        30..40 => return progress.cut("no answer", random),
        _ => {}
    }
    let length = if fate < 95 { random.random_range(0..ask.max_tokens) } else { ask.max_tokens };
    // The space belongs to the word that follows.
    let mut lead = words.next_if(|word| word.trim().is_empty()).unwrap_or_default();
    for _ in 0..length {
        let word = words.next().unwrap();
        let text = format!("{lead}{}", word.trim_end());
        lead = if word.ends_with(' ') { " " } else { "" };
        match progress.read(&token(&text), Time::ZERO, random) {
            ControlFlow::Continue(rest) => progress = rest,
            ControlFlow::Break(next) => return next,
        }
    }
    let ending = match fate {
        40..60 => eviction(0),
        60..70 => last_token("", "abort"),
        70..80 => r#"{"choices": [{"te"#.to_owned(),
        _ => return progress.cut("the stream ended early", random),
    };
    progress.read(&ending, Time::ZERO, random).break_value().unwrap()
}

#[test]
fn ten_thousand_random_endings_give_every_item_its_text_once() {
    let mut random = random();
    let mut endings = 0;
    for number in 0.. {
        let max_tokens = random.random_range(1..80);
        let prompt = format!("number {number}{}", if random.random_bool(0.5) { "" } else { " " });
        let item = Item { prompt: prompt.clone(), ..item(max_tokens) };
        let mut progress = Progress::new(item, BACKOFF, NonZeroU32::MAX);
        let done = loop {
            let ask = progress.begin(Time::ZERO);
            match one_attempt(progress, &ask, &mut random) {
                Next::Retry { progress: rest, .. } => progress = rest,
                Next::Finish(end) => break end.unwrap(),
            }
        };
        assert_eq!(done.text, expected_text(SEED, &prompt, max_tokens));
        assert_eq!(done.tokens, max_tokens);
        let Cost { attempts, refusals, evictions, cuts, wasted_tokens: _ } = done.cost;
        assert_eq!(attempts, refusals + evictions + cuts + 1);
        endings += attempts - 1;
        if endings >= 10_000 {
            break;
        }
    }
}
