use serde_json::Value;
use sluice_core::TokenUsage;

use crate::json_usage::JsonScanner;
use crate::sse_usage::SseScanner;

/// How a response body is framed, told by its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFormat {
    /// Server-sent events.
    EventStream,
    /// One JSON document.
    Json,
    /// Anything else, compressed bodies among it: passed on unread.
    Opaque,
}

impl ResponseFormat {
    pub fn of(content_type: Option<&str>, content_encoding: Option<&str>) -> Self {
        let encoded = content_encoding.is_some_and(|encoding| !encoding.trim().eq_ignore_ascii_case("identity"));
        let Some(content_type) = content_type.filter(|_| !encoded) else { return Self::Opaque };
        let media_type = content_type.split_once(';').map_or(content_type, |(media_type, _parameters)| media_type);
        let media_type = media_type.trim().to_ascii_lowercase();
        if media_type == "text/event-stream" {
            Self::EventStream
        } else if media_type == "application/json" || media_type.ends_with("+json") {
            Self::Json
        } else {
            Self::Opaque
        }
    }
}

/// Finds the token usage in a response that passes by in chunks, cut anywhere.
///
/// Reads `usage` at the top level of the document or of an event, and `response.usage` of an event of type
/// `response.completed`. Of several usage objects each field's last value counts.
#[derive(Debug)]
pub struct UsageScanner {
    framing: Framing,
    usage: TokenUsage,
}

#[derive(Debug)]
enum Framing {
    EventStream(SseScanner),
    Json(JsonScanner),
    Opaque,
}

impl UsageScanner {
    pub fn new(format: ResponseFormat) -> Self {
        let framing = match format {
            ResponseFormat::EventStream => Framing::EventStream(SseScanner::default()),
            ResponseFormat::Json => Framing::Json(JsonScanner::default()),
            ResponseFormat::Opaque => Framing::Opaque,
        };
        Self { framing, usage: TokenUsage::default() }
    }

    pub fn push(&mut self, chunk: &[u8]) {
        let Self { framing, usage } = self;
        match framing {
            Framing::EventStream(scanner) => scanner.push(chunk, |found| usage.merge(found)),
            Framing::Json(scanner) => scanner.push(chunk, |found| usage.merge(found)),
            Framing::Opaque => {}
        }
    }

    /// What was found so far.
    pub const fn usage(&self) -> TokenUsage {
        self.usage
    }
}

/// Reads one `usage` object; fields of an unexpected type count as absent. Servers differ in two names for each
/// count and some send numbers as text.
pub(crate) fn usage_of(usage: &Value) -> TokenUsage {
    let count = |names: [&str; 2]| names.iter().find_map(|name| number(usage.get(name)?));
    let cached = |details: &str| number(usage.get(details)?.get("cached_tokens")?);
    TokenUsage {
        prompt: count(["prompt_tokens", "input_tokens"]),
        completion: count(["completion_tokens", "output_tokens"]),
        cached: cached("input_tokens_details").or_else(|| cached("prompt_tokens_details")),
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
