//! How an answer is written.

use serde_json::{Value, json};

use super::Api;
use crate::engine::FinishReason;
use crate::inference::Piece;

/// What every part of one answer says about it.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    pub(crate) api: Api,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) prompt_tokens: u32,
}

impl Envelope {
    /// The whole answer in one piece.
    pub(crate) fn whole(&self, pieces: &[Piece]) -> Value {
        let mut text = Vec::new();
        for piece in pieces {
            piece.token.write(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        let finish_reason = pieces.last().and_then(|piece| piece.finish).map(reason);
        let mut choice = json!({"index": 0, "logprobs": null, "finish_reason": finish_reason, "stop_reason": null});
        let object = match self.api {
            Api::Completions => {
                choice["text"] = json!(text);
                "text_completion"
            }
            Api::Chat => {
                choice["message"] = json!({"role": "assistant", "content": text});
                "chat.completion"
            }
        };
        let mut answer = self.head(object);
        answer["choices"] = json!([choice]);
        answer["usage"] = self.usage(pieces.len());
        answer
    }

    fn head(&self, object: &str) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model})
    }

    fn usage(&self, completion_tokens: usize) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens as usize + completion_tokens,
        })
    }

    fn chunk_object(&self) -> &'static str {
        match self.api {
            Api::Completions => "text_completion",
            Api::Chat => "chat.completion.chunk",
        }
    }
}

/// Writes an answer as server-sent events, one per token.
///
/// All events of an answer are alike but for the token, so that everything before and after it is written once
/// and copied.
#[derive(Debug)]
pub(crate) struct EventWriter {
    envelope: Envelope,
    include_usage: bool,
    before_text: Vec<u8>,
    after_text: &'static [u8],
    written: usize,
}

impl EventWriter {
    pub(crate) fn new(envelope: Envelope, include_usage: bool) -> Self {
        let head = envelope.head(envelope.chunk_object()).to_string();
        let (field, after_text): (_, &[u8]) = match envelope.api {
            Api::Completions => (r#""text":""#, br#"","#),
            Api::Chat => (r#""delta":{"content":""#, br#""},"#),
        };
        let head = head.strip_suffix('}').unwrap_or(&head);
        let before_text = format!(r#"data: {head},"choices":[{{"index":0,{field}"#).into_bytes();
        Self { envelope, include_usage, before_text, after_text, written: 0 }
    }

    /// The events for `pieces`, which follow the ones written before. After the last piece come the usage, if it
    /// was asked for, and the end mark.
    pub(crate) fn write(&mut self, pieces: &[Piece]) -> Vec<u8> {
        const TOKEN_AND_TAIL: usize = 100;
        let mut out = Vec::with_capacity(pieces.len() * (self.before_text.len() + TOKEN_AND_TAIL));
        if self.written == 0 && self.envelope.api == Api::Chat {
            self.write_role(&mut out);
        }
        for &Piece { token, finish } in pieces {
            out.extend_from_slice(&self.before_text);
            token.write(&mut out);
            out.extend_from_slice(self.after_text);
            out.extend_from_slice(match finish {
                None => br#""logprobs":null,"finish_reason":null,"stop_reason":null}]}"#,
                Some(FinishReason::Stop) => br#""logprobs":null,"finish_reason":"stop","stop_reason":null}]}"#,
                Some(FinishReason::Length) => br#""logprobs":null,"finish_reason":"length","stop_reason":null}]}"#,
            });
            out.extend_from_slice(b"\n\n");
            self.written += 1;
            if finish.is_some() {
                self.write_end(&mut out);
            }
        }
        out
    }

    /// The first event of a chat, which says who speaks.
    fn write_role(&self, out: &mut Vec<u8>) {
        let mut event = self.envelope.head(self.envelope.chunk_object());
        let delta = json!({"role": "assistant", "content": ""});
        event["choices"] = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]);
        write_event(out, &event);
    }

    fn write_end(&self, out: &mut Vec<u8>) {
        if self.include_usage {
            let mut event = self.envelope.head(self.envelope.chunk_object());
            event["choices"] = json!([]);
            event["usage"] = self.envelope.usage(self.written);
            write_event(out, &event);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}

fn write_event(out: &mut Vec<u8>, event: &Value) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(event.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}

fn reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Context;

    fn pieces(count: usize) -> Vec<Piece> {
        let token = Context::new(0).next_word();
        let finish = |index| (index == count).then_some(FinishReason::Length);
        (1..=count).map(|index| Piece { token, finish: finish(index) }).collect()
    }

    fn events(bytes: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(bytes).unwrap();
        let (events, rest) = text.rsplit_once("data: [DONE]\n\n").unwrap();
        assert_eq!(rest, "");
        events
            .split_terminator("\n\n")
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    fn envelope(api: Api) -> Envelope {
        Envelope { api, id: "id \"quoted}\"".into(), created: 9, model: "m}".into(), prompt_tokens: 3 }
    }

    #[test]
    fn every_event_is_json_with_the_same_head() {
        for api in [Api::Completions, Api::Chat] {
            let mut writer = EventWriter::new(envelope(api), true);
            let mut bytes = writer.write(&pieces(2)[..1]);
            bytes.extend(writer.write(&pieces(1)));
            for event in events(&bytes) {
                assert_eq!(event["id"], "id \"quoted}\"");
                assert_eq!(event["model"], "m}");
                assert_eq!(event["created"], 9);
            }
        }
    }

    #[test]
    fn a_chat_begins_with_the_role_and_ends_with_the_usage() {
        let mut writer = EventWriter::new(envelope(Api::Chat), true);
        let events = events(&writer.write(&pieces(2)));
        assert_eq!(events.len(), 4);
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(events[1]["choices"][0]["delta"]["content"].as_str().map(str::len), Some(6));
        assert_eq!(events[1]["choices"][0]["finish_reason"], Value::Null);
        assert_eq!(events[2]["choices"][0]["finish_reason"], "length");
        assert_eq!(events[3]["choices"], json!([]));
        assert_eq!(events[3]["usage"], json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}));
    }

    #[test]
    fn a_completion_is_its_tokens_and_nothing_else() {
        let mut writer = EventWriter::new(envelope(Api::Completions), false);
        let events = events(&writer.write(&pieces(2)));
        assert_eq!(events.len(), 2);
        assert!(events.iter().all(|event| event["choices"][0]["text"].as_str().map(str::len) == Some(6)));
    }
}
