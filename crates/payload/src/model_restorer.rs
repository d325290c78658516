use memchr::{memchr, memchr3};

use crate::usage::ResponseFormat;

/// How a line of an event stream begins that has data.
const DATA: &[u8] = b"data:";

/// The longest key that matters, with its quotes.
const LONGEST_KEY: usize = b"\"response\"".len();

/// By so many bytes a chunk grows at most: the names beyond stay as they are. It takes more names than a chunk of real
/// events has to come that far, and a client that chose a long name must not have the memory for all of them.
const MAX_GROWTH: usize = 1 << 20;

/// Puts the client's name of the model in the place of the model server's, in a response that passes by in chunks, cut
/// anywhere.
///
/// It stands in the field `model` of the document or of an event, and of the object `response` or `message` of an event.
/// A value there that is another one stays, and so does every other byte. A value that is not complete is held back for
/// as long as it may be the name. What goes on for a chunk is at most [`MAX_GROWTH`] bytes longer than the chunk and what
/// was held back.
#[derive(Debug)]
pub struct ModelRestorer {
    target: String,
    /// The client's name, as JSON.
    model: Vec<u8>,
    line: Line,
    is_event_stream: bool,
    place: Place,
    /// The beginning of a value that may be the name, quote included.
    held: Vec<u8>,
}

/// What the present line of an event stream is; of a document, all is data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes of it are those of [`DATA`].
    Start(usize),
    Data,
    Other,
}

/// Where in a JSON text it is, as far as it matters.
#[derive(Debug, Default)]
struct Place {
    /// Open braces and brackets.
    depth: usize,
    /// Whether the outermost one, and the one in it, is an object in which the name may stand.
    counts: [bool; 2],
    key: Key,
    /// The value of `key` comes next.
    value_next: bool,
    string: Text,
    /// In a string, after a backslash.
    escaped: bool,
    /// The present key, cut behind what may matter.
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Key {
    Model,
    /// Of an object with the field `model`.
    Envelope,
    #[default]
    Other,
}

/// The string that it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Text {
    #[default]
    None,
    Key,
    Name,
    Other,
}

/// What goes on of a chunk.
struct Passed<'a> {
    chunk: &'a [u8],
    /// Up to here it is in `out`, or was dropped.
    copied: usize,
    out: Vec<u8>,
    changed: bool,
    /// Bytes that the names in `out` have more than those that came.
    growth: usize,
}

impl Passed<'_> {
    fn copy_to(&mut self, at: usize) {
        self.out.extend_from_slice(&self.chunk[self.copied..at]);
        self.copied = at;
    }
}

impl ModelRestorer {
    /// For a server that knows by the name `target` what the client calls `model`; none if its responses cannot be read.
    pub fn new(format: ResponseFormat, target: &str, model: &str) -> Option<Self> {
        let is_event_stream = match format {
            ResponseFormat::EventStream => true,
            ResponseFormat::Json => false,
            ResponseFormat::Opaque => return None,
        };
        Some(Self {
            target: target.to_owned(),
            model: serde_json::to_vec(model).ok()?,
            line: if is_event_stream { Line::Start(0) } else { Line::Data },
            is_event_stream,
            place: Place::default(),
            held: Vec::new(),
        })
    }

    /// What is to go on now that `chunk` came; none: the chunk as it is.
    pub fn push(&mut self, chunk: &[u8]) -> Option<Vec<u8>> {
        let mut passed = Passed { chunk, copied: 0, out: Vec::new(), changed: !self.held.is_empty(), growth: 0 };
        let mut at = 0;
        while let Some(&byte) = chunk.get(at) {
            if self.is_event_stream && byte == b'\n' {
                self.release(&mut passed, at);
                self.place = Place::default();
                self.line = Line::Start(0);
                at += 1;
                continue;
            }
            at += match self.line {
                Line::Start(matched) => {
                    self.line = match matched + 1 {
                        _ if DATA[matched] != byte => Line::Other,
                        now if now == DATA.len() => Line::Data,
                        now => Line::Start(now),
                    };
                    1
                }
                Line::Other => memchr(b'\n', &chunk[at..]).unwrap_or(chunk.len() - at),
                Line::Data => self.step(&mut passed, at),
            };
        }
        if self.place.string == Text::Name {
            self.hold(&mut passed);
        }
        passed.copy_to(chunk.len());
        passed.changed.then_some(passed.out)
    }

    /// The response has ended: what was held back.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Takes in the byte at `at`, and maybe some after it; how many.
    fn step(&mut self, passed: &mut Passed<'_>, at: usize) -> usize {
        let byte = passed.chunk[at];
        if self.place.string == Text::None {
            if byte == b'"' && self.place.begin_string() == Text::Name {
                passed.copy_to(at);
            }
            self.place.structural(byte);
            return 1;
        }
        if self.place.escaped {
            self.place.escaped = false;
            self.place.note(byte);
            return 1;
        }
        match byte {
            b'\\' => {
                self.place.escaped = true;
                self.place.note(byte);
                1
            }
            b'"' => {
                self.place.note(byte);
                if self.place.end_string() == Text::Name {
                    self.decide(passed, at + 1);
                }
                1
            }
            _ if self.place.string == Text::Other => {
                // Not past the end of a line, which ends all.
                let rest = &passed.chunk[at..];
                memchr3(b'"', b'\\', b'\n', &rest[1..]).map_or(rest.len(), |next| next + 1)
            }
            _ => {
                self.place.note(byte);
                1
            }
        }
    }

    /// A value that may be the name is complete before `end`.
    fn decide(&mut self, passed: &mut Passed<'_>, end: usize) {
        self.held.extend_from_slice(&passed.chunk[passed.copied..end]);
        passed.copied = end;
        let growth = passed.growth + self.model.len().saturating_sub(self.held.len());
        let is_name = || serde_json::from_slice::<String>(&self.held).is_ok_and(|name| name == self.target);
        if growth <= MAX_GROWTH && is_name() {
            passed.growth = growth;
            passed.changed = true;
            passed.out.extend_from_slice(&self.model);
        } else {
            passed.out.extend_from_slice(&self.held);
        }
        self.held.clear();
    }

    /// The chunk ends within a value that may be the name.
    fn hold(&mut self, passed: &mut Passed<'_>) {
        // Each byte of a name takes at most six as JSON.
        let longest = 6 * self.target.len() + 2;
        if self.held.len() + passed.chunk.len() - passed.copied > longest {
            self.release(passed, passed.chunk.len());
            self.place.string = Text::Other;
            return;
        }
        self.held.extend_from_slice(&passed.chunk[passed.copied..]);
        passed.copied = passed.chunk.len();
        passed.changed = true;
    }

    /// What is held back, and the chunk up to `at`, go on as they are.
    fn release(&mut self, passed: &mut Passed<'_>, at: usize) {
        passed.out.append(&mut self.held);
        if !passed.out.is_empty() {
            passed.copy_to(at);
        }
    }
}

impl Place {
    /// A byte outside of strings.
    fn structural(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => {
                let is_object = byte == b'{';
                let is_envelope = self.counts[0] && self.value_next && self.key == Key::Envelope;
                match self.depth {
                    0 => self.counts = [is_object, false],
                    1 => self.counts[1] = is_object && is_envelope,
                    _ => {}
                }
                self.depth += 1;
                self.next_field();
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.next_field();
            }
            b',' => self.next_field(),
            b':' => self.value_next = true,
            _ => {}
        }
    }

    fn next_field(&mut self) {
        self.key = Key::Other;
        self.value_next = false;
    }

    fn begin_string(&mut self) -> Text {
        let counts = self.depth.checked_sub(1).and_then(|depth| self.counts.get(depth)) == Some(&true);
        self.string = match (counts, self.value_next, self.key) {
            (true, false, _) => {
                self.text.clear();
                self.text.push(b'"');
                Text::Key
            }
            (true, true, Key::Model) => Text::Name,
            _ => Text::Other,
        };
        self.string
    }

    /// A byte of a string, the closing quote included.
    fn note(&mut self, byte: u8) {
        if self.string == Text::Key && self.text.len() <= LONGEST_KEY {
            self.text.push(byte);
        }
    }

    /// What has ended.
    fn end_string(&mut self) -> Text {
        if self.string == Text::Key {
            self.key = match &self.text[..] {
                b"\"model\"" => Key::Model,
                b"\"response\"" | b"\"message\"" => Key::Envelope,
                _ => Key::Other,
            };
        }
        std::mem::take(&mut self.string)
    }
}

#[cfg(test)]
#[path = "model_restorer_tests.rs"]
mod tests;
