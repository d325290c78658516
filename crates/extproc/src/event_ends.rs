//! Where the events of an event stream end, told from its bytes as they pass, cut anywhere.

/// The longest line that says something here, with its carriage return.
const LONGEST: usize = "event: response.incomplete\r".len();

/// The kinds of the event with which a generation ends, in the APIs that name kinds.
const LAST_KINDS: [&[u8]; 4] = [b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"];

/// Lines end with a line feed, and may have a carriage return before it. Where carriage returns alone end lines no end of
/// an event is ever seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventEnds {
    /// How the present line begins.
    head: [u8; LONGEST],
    /// Bytes of the present line.
    length: usize,
    /// Something of the present event has come.
    open: bool,
    /// The present event is the last one that a model server sends.
    last: bool,
    done: bool,
    count: u64,
}

impl EventEnds {
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.part(&bytes[..end]);
            self.step(b'\n');
            bytes = &bytes[end + 1..];
        }
        self.part(bytes);
    }

    /// A part of one line.
    fn part(&mut self, part: &[u8]) {
        let free = self.head.get_mut(self.length..).unwrap_or_default();
        for (place, &byte) in free.iter_mut().zip(part) {
            *place = byte;
        }
        self.length = self.length.saturating_add(part.len());
        self.open = self.open || part.iter().any(|&byte| byte != b'\r');
    }

    /// Events that are complete.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Another event may follow here.
    pub(crate) const fn is_between(&self) -> bool {
        !self.open && self.length == 0
    }

    /// The event came that ends a generation, in an API that has one.
    pub(crate) const fn is_done(&self) -> bool {
        self.done
    }

    /// How much of `next` belongs to the present event; none if its end is not in it.
    pub(crate) fn rest_in(&self, next: &[u8]) -> Option<usize> {
        if self.is_between() {
            return Some(0);
        }
        let mut ahead = *self;
        next.iter().position(|&byte| ahead.step(byte)).map(|last| last + 1)
    }

    /// Tells whether an event ends with this byte.
    fn step(&mut self, byte: u8) -> bool {
        if byte != b'\n' {
            self.part(&[byte]);
            return false;
        }
        let line = self.head.get(..self.length).map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        self.length = 0;
        match line {
            Some(b"") if self.open => {
                self.open = false;
                self.done |= self.last;
                self.count += 1;
                return true;
            }
            Some(line) => self.last |= ends_generation(line),
            None => {}
        }
        false
    }
}

/// Tells whether a line belongs to the event with which a generation ends.
fn ends_generation(line: &[u8]) -> bool {
    let value = |field: &[u8]| line.strip_prefix(field).map(|value| value.strip_prefix(b" ").unwrap_or(value));
    value(b"data:") == Some(b"[DONE]") || value(b"event:").is_some_and(|kind| LAST_KINDS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(text: impl AsRef<[u8]>) -> EventEnds {
        let mut events = EventEnds::default();
        events.push(text.as_ref());
        events
    }

    #[test]
    fn an_event_ends_with_an_empty_line() {
        for (text, count, between) in [
            ("", 0, true),
            ("data: a", 0, false),
            ("data: a\n", 0, false),
            ("data: a\n\n", 1, true),
            ("data: a\n\n\n", 1, true),
            ("data: a\r\n\r\n", 1, true),
            ("data: a\r\n\r", 0, false),
            ("data: a\n\ndata: b", 1, false),
            ("event: x\ndata: a\n\ndata: b\n\n", 2, true),
            ("data: a\r\r", 0, false),
            ("\n", 0, true),
        ] {
            let events = after(text);
            assert_eq!((events.count(), events.is_between()), (count, between), "{text:?}");
        }
    }

    #[test]
    fn the_rest_of_an_event_reaches_to_its_end() {
        for (passed, next, rest) in [
            ("", "data: a\n\n", Some(0)),
            ("data: a\n\n", "data: b\n\n", Some(0)),
            ("data: a", "b\n\ndata: c\n\n", Some(3)),
            ("data: a\n", "\ndata: c\n\n", Some(1)),
            ("data: a\r\n\r", "\n", Some(1)),
            ("data: a", "b\n", None),
            ("data: a", "", None),
        ] {
            assert_eq!(after(passed).rest_in(next.as_bytes()), rest, "{passed:?} {next:?}");
        }
    }

    #[test]
    fn the_last_event_of_a_generation_is_known() {
        for (text, done) in [
            ("data: [DONE]\n\n", true),
            ("data: x\n\ndata: [DONE]\r\n\r\n", true),
            ("data:[DONE]\n\n", true),
            ("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true),
            ("event:message_stop\ndata: {}\n\n", true),
            ("event: response.completed\r\ndata: {}\r\n\r\n", true),
            ("event: response.incomplete\r\ndata: {}\r\n\r\n", true),
            ("event:response.failed\ndata: {}\n\n", true),
            ("event: response.completed\ndata: {}\n", false),
            ("event: response.in_progress\ndata: {}\n\n", false),
            ("event: response.output_text.done\ndata: {}\n\n", false),
            ("event: response.completed.later\ndata: {}\n\n", false),
            ("event:  response.completed\ndata: {}\n\n", false),
            ("data: response.completed\n\n", false),
            ("event: [DONE]\n\n", false),
            ("data: [DONE]\n", false),
            ("data: {\"text\":\"data: [DONE]\"}\n\n", false),
            ("data: [DONE] \n\n", false),
            ("event: message_stopped\ndata: {}\n\n", false),
        ] {
            assert_eq!(after(text).is_done(), done, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_does_not_matter(text in "[a\r\n]{0,40}", cut in any::<prop::sample::Index>()) {
            let whole = after(&text);
            let (head, tail) = text.split_at(cut.index(text.len() + 1));
            let mut parts = after(head);
            let rest = parts.rest_in(tail.as_bytes());
            parts.push(tail.as_bytes());
            prop_assert_eq!((whole.count(), whole.is_between()), (parts.count(), parts.is_between()));
            if let Some(rest) = rest {
                prop_assert!(after(&text.as_bytes()[..head.len() + rest]).is_between());
            }
        }
    }
}
