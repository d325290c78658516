use std::sync::LazyLock;

use memchr::memmem::Finder;
use memchr::{memchr, memrchr};
use serde_json::Value;
use sluice_core::TokenUsage;

use crate::usage::usage_of;

/// A longer line is not read: usage stands in short ones.
const MAX_LINE: usize = 256 << 10;

const KEY: &[u8] = b"\"usage\"";
/// Made once: to make it takes longer than to search one event.
static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(KEY));

/// Reads the `data:` lines of an event stream that mention usage, and looks at no others.
#[derive(Debug, Default)]
pub(crate) struct SseScanner {
    /// The start of a line whose end has not come yet.
    partial: Vec<u8>,
    /// The rest of the current line is skipped: it was too long.
    skipping: bool,
}

impl SseScanner {
    pub(crate) fn push(&mut self, chunk: &[u8], mut found: impl FnMut(TokenUsage)) {
        let mut rest = chunk;
        if self.skipping || !self.partial.is_empty() {
            let Some(end) = memchr(b'\n', rest) else {
                self.keep(rest);
                return;
            };
            if self.skipping {
                self.skipping = false;
            } else {
                self.partial.extend_from_slice(&rest[..end]);
                read_line(&self.partial, &mut found);
                self.partial.clear();
            }
            rest = &rest[end + 1..];
        }
        let Some(end) = memrchr(b'\n', rest) else {
            self.keep(rest);
            return;
        };
        let (lines, tail) = rest.split_at(end);
        if FINDER.find(lines).is_some() {
            for line in lines.split(|&byte| byte == b'\n') {
                read_line(line, &mut found);
            }
        }
        self.keep(&tail[1..]);
    }

    fn keep(&mut self, part: &[u8]) {
        if self.skipping {
            return;
        }
        if self.partial.len() + part.len() > MAX_LINE {
            self.partial = Vec::new();
            self.skipping = true;
            return;
        }
        self.partial.extend_from_slice(part);
    }
}

fn read_line(line: &[u8], found: &mut impl FnMut(TokenUsage)) {
    let Some(data) = line.strip_prefix(b"data:") else { return };
    if !FINDER.find_iter(data).any(|at| is_object_next(&data[at + KEY.len()..])) {
        return;
    }
    let Ok(event) = serde_json::from_slice::<Value>(data) else { return };
    let completed = || {
        let is_completed = event.get("type").is_some_and(|kind| kind == "response.completed");
        event.get("response").filter(|_| is_completed)?.get("usage")
    };
    if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()).or_else(completed) {
        found(usage_of(usage));
    }
}

/// After the key comes `: {`, not `: null`, which many servers send in every event.
fn is_object_next(rest: &[u8]) -> bool {
    let mut bytes = rest.iter().filter(|byte| !byte.is_ascii_whitespace());
    bytes.next() == Some(&b':') && bytes.next() == Some(&b'{')
}
