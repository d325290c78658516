use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use sluice_core::{Time, TokenUsage};

use super::script::{CHAT, Script, modes};
use crate::action::Delivery;
use crate::event_ends::EventEnds;
use crate::message::{BodyMode, InboundEnd, Message, Origin};
use crate::phases::{Answer, RequestPhase, ResponsePhase, Rest};
use crate::reject::Refusal;
use crate::service::MidStream;
use crate::session::{SessionSettings, StreamFacts, Wanted};

const MODES: [BodyMode; 6] = [
    BodyMode::None,
    BodyMode::Streamed,
    BodyMode::Buffered,
    BodyMode::BufferedPartial,
    BodyMode::FullDuplex,
    BodyMode::Other,
];

const MID_STREAM: [MidStream; 3] = [MidStream::EventThenReset, MidStream::Reset, MidStream::EventThenEnd];

/// Cuts `text` at the given places.
fn cut(text: &[u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut places: Vec<usize> = cuts.iter().map(|place| place % (text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| Bytes::copy_from_slice(&text[pair[0]..pair[1]])).collect()
}

proptest! {
    #[test]
    fn any_cutting_gives_the_same_bytes_one_decision_and_one_completion(
        request_cuts in proptest::collection::vec(any::<usize>(), 0..8),
        response_cuts in proptest::collection::vec(any::<usize>(), 0..8),
        request_trailers in any::<bool>(),
        response_trailers in any::<bool>(),
        empty_end in any::<bool>(),
    ) {
        const RESPONSE: &str = "data: {\"x\":1}\n\ndata: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";
        let mut script = Script::new();
        script.post("/v1/chat/completions");
        let mut chunks = cut(CHAT.as_bytes(), &request_cuts);
        if empty_end {
            chunks.push(Bytes::new());
        }
        let last = chunks.len() - 1;
        for (index, chunk) in chunks.into_iter().enumerate() {
            let end_of_stream = index == last && !request_trailers;
            script.message(Message::RequestBody { chunk, end_of_stream });
        }
        if request_trailers {
            script.message(Message::RequestTrailers);
        }
        script.placed().ok_response();
        let chunks = cut(RESPONSE.as_bytes(), &response_cuts);
        let last = chunks.len() - 1;
        for (index, chunk) in chunks.into_iter().enumerate() {
            let end_of_stream = index == last && !response_trailers;
            script.message(Message::ResponseBody { chunk, end_of_stream });
        }
        if response_trailers {
            script.message(Message::ResponseTrailers);
        }
        script.ends(InboundEnd::HalfClosed);

        prop_assert_eq!(&script.request_body[..], CHAT.as_bytes());
        prop_assert_eq!(&script.response_body[..], RESPONSE.as_bytes());
        prop_assert_eq!(script.sent, RESPONSE.len() as u64);
        prop_assert_eq!(script.intents.len(), 1);
        prop_assert_eq!(script.intents[0].request.model.as_deref(), Some("m"));
        prop_assert_eq!(script.endings.len(), 1);
        prop_assert_eq!(script.endings[0].usage, TokenUsage { prompt: Some(3), completion: Some(4), cached: None });
        prop_assert_eq!(script.log.last().map(String::as_str), Some("close"));
        let marks = |word: &str| script.log.iter().filter(|entry| entry.as_str() == word).count();
        prop_assert_eq!((marks("rb*"), marks("rt")), if request_trailers { (0, 1) } else { (1, 0) });
        prop_assert_eq!((marks("sb*"), marks("st")), if response_trailers { (0, 1) } else { (1, 0) });
    }

    #[test]
    fn whatever_a_proxy_sends_is_answered_refused_or_ended(
        told in proptest::option::of((0..6_usize, 0..6_usize)),
        (wanted_request, wanted_response, may_choose_modes, hand_over) in any::<(bool, bool, bool, bool)>(),
        (deadline, message_timeout) in (proptest::option::of(0..100_u64), proptest::option::of(0..100_u64)),
        skips_trailers in any::<bool>(),
        (revocable, mid_stream) in (any::<bool>(), 0..4_usize),
        steps in proptest::collection::vec((0..20_u8, any::<bool>()), 0..14),
        end in 0..5_usize,
    ) {
        let settings = SessionSettings {
            wanted: Wanted { request: wanted_request, response: wanted_response, revocable, models: true },
            hand_over,
            eviction: MID_STREAM.get(mid_stream).copied(),
            ..SessionSettings::TEST
        };
        let message_timeout = message_timeout.map(Duration::from_secs);
        let deadline = deadline.map(Time::from_secs);
        let facts = StreamFacts { opened: Time::ZERO, deadline, may_choose_modes, message_timeout, skips_trailers };
        let told = told.map(|(request, response)| modes(MODES[request], MODES[response]));
        let mut hostile = Hostile::new(Script::started(settings, facts, told));
        hostile.script.revocable = revocable;
        hostile.script.wait_ends = deadline;
        for (kind, flag) in steps {
            hostile.step(kind, flag);
        }
        hostile.step(9, true);
        hostile.assert_nobody_waits_for_the_picker();

        let ends =
            [InboundEnd::HalfClosed, InboundEnd::Reset, InboundEnd::Broken, InboundEnd::Unread, InboundEnd::TooLarge, InboundEnd::Unreadable];
        hostile.script.ends(ends[end]);
        hostile.note();
        let closes = hostile.words.iter().enumerate().filter(|(_, word)| *word == "close" || *word == "fail");
        prop_assert_eq!(closes.map(|(index, _)| index).collect::<Vec<_>>(), vec![hostile.words.len() - 1]);
        prop_assert_eq!(hostile.script.endings.len(), 1);
        prop_assert!(hostile.script.intents.len() <= 1);
        prop_assert_eq!(hostile.script.session.next_wakeup(), None);
        let is_reply = |word: &&String| !["end:", "close", "fail"].iter().any(|other| word.starts_with(other));
        let immediate = hostile.words.iter().position(|word| word.parse::<u16>().is_ok());
        if let Some(immediate) = immediate {
            prop_assert_eq!(hostile.words[immediate + 1..].iter().find(is_reply), None);
        }
    }

    /// Whenever the word comes, and however the bytes are cut: the client gets whole events, or is cut off.
    #[test]
    fn a_revoked_stream_is_complete_or_ends_with_the_event_or_is_cut(
        cuts in proptest::collection::vec(any::<usize>(), 0..8),
        waits in proptest::collection::vec(0..60_u64, 10),
        word in 0..10_usize,
        duplex in any::<bool>(),
        mid_stream in 0..3_usize,
    ) {
        const RESPONSE: &str = "data: {\"x\":1}\n\ndata: 2\r\n\r\n: ping\n\ndata: 3\n\n";
        let settings = SessionSettings { eviction: Some(MID_STREAM[mid_stream]), ..SessionSettings::TEST };
        let mode = if duplex { BodyMode::FullDuplex } else { BodyMode::Streamed };
        let mut script = Script::with_settings(settings, modes(BodyMode::FullDuplex, mode));
        script.revocable = true;
        script.chat().placed().ok_response().out();
        let mut client = Vec::new();
        let mut words = String::new();
        let chunks = cut(RESPONSE.as_bytes(), &cuts);
        let last = chunks.len() - 1;
        for (index, chunk) in chunks.into_iter().enumerate() {
            if index == word {
                script.revoked();
            }
            script.wait(waits[index]);
            let kept = script.log.len();
            let text = chunk.clone();
            script.message(Message::ResponseBody { chunk, end_of_stream: index == last });
            if script.log[kept..].iter().any(|word| word == "sb.") {
                script.response_body.extend_from_slice(&text);
            }
            client.append(&mut script.response_body);
            words = format!("{words} {}", script.out());
        }
        script.wait(100).ends(InboundEnd::HalfClosed);
        words = format!("{words} {}", script.out());
        prop_assert_eq!(script.endings.len(), 1);
        let text = String::from_utf8(client).unwrap();
        match script.endings[0].evicted {
            None => prop_assert_eq!(text, RESPONSE),
            Some(Delivery::Event) => {
                let (head, _event) = text.split_once("data: {\"error\"").unwrap();
                let mut passed = EventEnds::default();
                passed.push(head.as_bytes());
                prop_assert!(RESPONSE.starts_with(head) && passed.is_between(), "{}", text);
                prop_assert_eq!(passed.count(), script.endings[0].events);
                prop_assert_eq!(script.sent, head.len() as u64);
                let ended = words.contains("sb*");
                prop_assert!(ended != words.contains("429"), "{}", words);
                prop_assert_eq!(ended, duplex && MID_STREAM[mid_stream] == MidStream::EventThenEnd);
            }
            Some(Delivery::Status) => {
                prop_assert_eq!(text, "");
                prop_assert!(words.split_whitespace().eq(["429", "end:evicted", "close"]), "{}", words);
                prop_assert!(duplex && word == 0);
            }
            Some(Delivery::Reset) => prop_assert!(RESPONSE.starts_with(&text) && words.contains("429")),
            Some(other) => prop_assert!(false, "{:?}", other),
        }
    }
}

/// A proxy that sends anything at any time, and keeps count.
struct Hostile {
    script: Script,
    words: Vec<String>,
    request_pieces: usize,
    response_pieces: usize,
    request_trailers: usize,
}

impl Hostile {
    fn new(script: Script) -> Self {
        Self { script, words: Vec::new(), request_pieces: 0, response_pieces: 0, request_trailers: 0 }
    }

    fn step(&mut self, kind: u8, flag: bool) {
        let script = &mut self.script;
        match kind {
            0 | 1 => script.post(if flag { "/raw" } else { "/v1/completions" }),
            2 => script.headers(&[(":method", "GET"), (if flag { "x" } else { "upgrade" }, "a")], flag),
            3 | 4 => {
                self.request_pieces += 1;
                script.body(CHAT, flag)
            }
            5 => {
                self.request_pieces += 1;
                script.body("", flag)
            }
            6 => {
                self.request_trailers += 1;
                script.trailers()
            }
            7 => script.response(&[(":status", "200")], flag),
            8 => script.proxy_answers(if flag { "504" } else { "503" }, "stream_idle_timeout"),
            9 => script.placed(),
            10 => script.rejected(Refusal::shutting_down(1)),
            11 => script.refused(&Refusal::out_of_body_memory(1)),
            12 | 13 => {
                self.response_pieces += 1;
                script.chunk(if flag { "" } else { "x" }, flag)
            }
            14 => script.message(Message::ResponseTrailers),
            15 => script.wait(if flag { 150 } else { 100_000 }),
            16 => {
                let origin = Origin { details: Some("via_upstream".into()), served: None };
                script.response_from(&[(":status", "500")], flag, origin)
            }
            17 => script.revoked(),
            18 => script.ok_response(),
            _ => {
                self.response_pieces += 1;
                script.chunk("data: x\n\n", flag)
            }
        };
        self.note();
    }

    fn note(&mut self) {
        let out = self.script.out();
        self.words.extend(out.split_whitespace().map(str::to_owned));
    }

    fn count(&self, words: &[&str]) -> usize {
        self.words.iter().filter(|word| words.contains(&word.as_str())).count()
    }

    /// Either the stream is over, or the proxy has all the answers that it waits for, or the session is going to do
    /// something by itself.
    fn assert_nobody_waits_for_the_picker(&self) {
        let session = &self.script.session;
        if session.closed {
            return;
        }
        if session.is_cut_off() {
            // Now it is for the proxy to end the stream.
            return;
        }
        match &session.request {
            RequestPhase::Waiting => {}
            RequestPhase::Reading(_) => assert!(session.next_wakeup().is_some()),
            RequestPhase::Routing(_) => panic!("it was placed"),
            RequestPhase::Sent(Rest { answer, .. }) => {
                assert_eq!(self.count(&["rh", "rb!"]), 1);
                assert_eq!(self.count(&["rt"]), self.request_trailers);
                if *answer == Answer::AsIs {
                    assert_eq!(self.count(&["rb.", "rb!"]), self.request_pieces);
                }
            }
            RequestPhase::Over => assert!(!matches!(session.response, ResponsePhase::Waiting)),
        }
        if !matches!(session.response, ResponsePhase::Waiting) {
            assert_eq!(self.count(&["sh", "sh+modes"]), usize::from(!session.is_response_unseen()));
            if session.response_answer() == Answer::AsIs {
                assert_eq!(self.count(&["sb.", "sb!"]), self.response_pieces);
            }
        }
    }
}
