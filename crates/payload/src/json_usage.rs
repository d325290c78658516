use memchr::memchr2;
use sluice_core::TokenUsage;

use crate::usage::usage_of;

/// A longer usage object is not read.
const MAX_OBJECT: usize = 64 << 10;

/// The raw text of the key, quotes included.
const KEY: &[u8] = b"\"usage\"";

/// Finds the object under the top-level key `usage` of a JSON document that comes in chunks.
///
/// Follows strings and nesting only; a document that is not JSON yields nothing or nonsense numbers, never an
/// error.
#[derive(Debug, Default)]
pub(crate) struct JsonScanner {
    /// Open braces and brackets.
    depth: u32,
    string: StringState,
    /// The last string at depth 1 that could be a key, cut to one byte more than `KEY`.
    key: Vec<u8>,
    /// `key` was followed by a colon, so what comes next is its value.
    value_next: bool,
    /// The usage object so far, while inside it.
    object: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StringState {
    #[default]
    Outside,
    Inside,
    /// Inside, after a backslash.
    Escape,
}

impl JsonScanner {
    pub(crate) fn push(&mut self, chunk: &[u8], mut found: impl FnMut(TokenUsage)) {
        let mut rest = chunk;
        while let Some((&byte, after)) = rest.split_first() {
            if self.string == StringState::Inside {
                let plain = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                self.keep(&rest[..plain]);
                rest = &rest[plain..];
                if let Some((&end, after)) = rest.split_first() {
                    self.keep(&[end]);
                    self.string = if end == b'"' { StringState::Outside } else { StringState::Escape };
                    rest = after;
                }
                continue;
            }
            rest = after;
            if self.string == StringState::Escape {
                self.keep(&[byte]);
                self.string = StringState::Inside;
                continue;
            }
            self.structural(byte, &mut found);
        }
    }

    /// A byte outside of strings.
    fn structural(&mut self, byte: u8, found: &mut impl FnMut(TokenUsage)) {
        match byte {
            b'"' => {
                self.string = StringState::Inside;
                self.key.clear();
                self.value_next = false;
                self.keep(b"\"");
            }
            b':' => {
                self.keep(b":");
                self.value_next = self.depth == 1;
            }
            b'{' | b'[' => {
                if byte == b'{' && self.value_next && self.key == KEY {
                    self.object = Some(Vec::new());
                }
                self.value_next = false;
                self.depth = self.depth.saturating_add(1);
                self.keep(&[byte]);
            }
            b'}' | b']' => {
                self.keep(&[byte]);
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 1
                    && let Some(object) = self.object.take()
                    && let Ok(usage) = serde_json::from_slice(&object)
                {
                    found(usage_of(&usage));
                }
            }
            _ => {
                self.keep(&[byte]);
                if !byte.is_ascii_whitespace() {
                    self.value_next = false;
                }
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Some(object) = &mut self.object {
            if object.len() + bytes.len() > MAX_OBJECT {
                self.object = None;
            } else {
                object.extend_from_slice(bytes);
            }
        } else if self.depth == 1 && self.string != StringState::Outside {
            let room = (KEY.len() + 1).saturating_sub(self.key.len());
            self.key.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
}
