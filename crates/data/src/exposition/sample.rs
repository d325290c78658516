use std::borrow::Cow;

/// The labels, value and time of one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'p> {
    pub(super) labels: Labels<'p>,
    pub(super) value: f64,
    /// In the unit of the page.
    pub(super) timestamp: Option<f64>,
}

impl<'p> Sample<'p> {
    /// Reads what follows the name in a line; none if it is no sample. An exemplar behind it is passed over.
    pub(super) fn parse(after_name: &'p [u8]) -> Option<Self> {
        let rest = after_name.trim_ascii();
        let (labels, rest) = match rest.strip_prefix(b"{") {
            Some(inside) => Labels::parse(inside)?,
            None => (Labels(&[]), rest),
        };
        let mut words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let value = number(words.next()?)?;
        let timestamp = match words.next() {
            None | Some([b'#', ..]) => None,
            Some(word) => Some(number(word).filter(|time| time.is_finite())?),
        };
        let over = timestamp.is_none() || matches!(words.next(), None | Some([b'#', ..]));
        over.then_some(Self { labels, value, timestamp })
    }
}

fn number(word: &[u8]) -> Option<f64> {
    str::from_utf8(word).ok()?.parse().ok()
}

/// What stands between the braces of a line, known to be well formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Labels<'p>(&'p [u8]);

impl<'p> Labels<'p> {
    /// The labels up to the closing brace, and what follows it.
    fn parse(inside: &'p [u8]) -> Option<(Self, &'p [u8])> {
        let mut rest = inside.trim_ascii_start();
        loop {
            if let Some(after) = rest.strip_prefix(b"}") {
                return Some((Self(&inside[..inside.len() - rest.len()]), after));
            }
            let (name, value, after) = first_label(rest)?;
            if !is_label_name(name) || !value.has_known_escapes() {
                return None;
            }
            rest = match after.strip_prefix(b",") {
                Some(next) => next.trim_ascii_start(),
                None if after.starts_with(b"}") => after,
                None => return None,
            };
        }
    }

    /// The value of the label `name`.
    pub(super) fn get(self, name: &str) -> Option<LabelValue<'p>> {
        let mut rest = self.0.trim_ascii_start();
        while let Some((found, value, after)) = first_label(rest) {
            if found == name.as_bytes() {
                return Some(value);
            }
            rest = after.strip_prefix(b",").unwrap_or(after).trim_ascii_start();
        }
        None
    }

    /// Whether the label `name` has this value; an absent label has the empty one.
    pub(super) fn matches(self, name: &str, value: &str) -> bool {
        self.get(name).map_or(value.is_empty(), |found| found.is(value))
    }
}

/// Name and value of the label that `text` begins with, and what follows it.
fn first_label(text: &[u8]) -> Option<(&[u8], LabelValue<'_>, &[u8])> {
    let equals = memchr::memchr(b'=', text)?;
    let quoted = text[equals + 1..].trim_ascii_start().strip_prefix(b"\"")?;
    let mut end = 0;
    loop {
        end += memchr::memchr2(b'"', b'\\', &quoted[end..])?;
        if quoted[end] == b'"' {
            break;
        }
        // A backslash and what it escapes.
        end += 2;
        if end > quoted.len() {
            return None;
        }
    }
    Some((text[..equals].trim_ascii_end(), LabelValue(&quoted[..end]), quoted[end + 1..].trim_ascii_start()))
}

fn is_label_name(name: &[u8]) -> bool {
    name.first().is_some_and(|first| !first.is_ascii_digit())
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// A label's value as it stands in the page, between its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LabelValue<'p>(&'p [u8]);

impl<'p> LabelValue<'p> {
    fn has_known_escapes(self) -> bool {
        let mut rest = self.0;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            if !matches!(rest.get(at + 1), Some(b'\\' | b'"' | b'n')) {
                return false;
            }
            rest = &rest[at + 2..];
        }
        true
    }

    fn is(self, value: &str) -> bool {
        if memchr::memchr(b'\\', self.0).is_some() {
            self.text().as_deref() == Some(value)
        } else {
            self.0 == value.as_bytes()
        }
    }

    /// The value; none if it is not UTF-8.
    pub(super) fn text(self) -> Option<Cow<'p, str>> {
        let raw = str::from_utf8(self.0).ok()?;
        if !raw.contains('\\') {
            return Some(Cow::Borrowed(raw));
        }
        let mut text = String::with_capacity(raw.len());
        let mut chars = raw.chars();
        while let Some(character) = chars.next() {
            text.push(match character {
                '\\' => match chars.next()? {
                    'n' => '\n',
                    escaped => escaped,
                },
                plain => plain,
            });
        }
        Some(Cow::Owned(text))
    }
}
