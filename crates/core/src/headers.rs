use std::fmt;

use bytes::Bytes;

/// The header lines of a message in the order they came: names in lower case, values as bytes, repeated
/// names kept apart.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Box<str>, Bytes)>);

impl Headers {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with_capacity(lines: usize) -> Self {
        Self(Vec::with_capacity(lines))
    }

    /// Appends a line; `name` is folded to lower case.
    pub fn push(&mut self, name: &str, value: impl Into<Bytes>) {
        self.0.push((name.to_ascii_lowercase().into_boxed_str(), value.into()));
    }

    /// Takes the values out of all lines called `name` (given in lower case), which stay.
    pub fn empty(&mut self, name: &str) {
        self.0.iter_mut().filter(|(key, _)| &**key == name).for_each(|(_, value)| value.clear());
    }

    /// The last line called `name` (given in lower case): of repeated lines the later one counts.
    pub fn last(&self, name: &str) -> Option<&Bytes> {
        self.0.iter().rev().find(|(key, _)| &**key == name).map(|(_, value)| value)
    }

    /// As [`Headers::last`], if the value is UTF-8.
    pub fn last_str(&self, name: &str) -> Option<&str> {
        self.last(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    pub fn contains(&self, name: &str) -> bool {
        self.last(name).is_some()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Names only: values may hold credentials.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fold_and_the_last_line_counts() {
        let mut headers = Headers::new();
        headers.push("X-Request-Id", "a");
        headers.push("x-request-id", "b");
        assert_eq!(headers.last_str("x-request-id"), Some("b"));
        assert_eq!(headers.len(), 2);
        assert!(!headers.contains("x-other"));
    }

    #[test]
    fn lines_whose_values_are_taken_out_are_still_there() {
        let mut headers = Headers::new();
        for (name, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            headers.push(name, value);
        }
        headers.empty("a");
        headers.empty("c");
        let lines: Vec<_> = headers.iter().map(|(name, value)| (name, &value[..])).collect();
        assert_eq!(lines, [("a", &b""[..]), ("b", b"2"), ("a", b"")]);
    }

    #[test]
    fn a_value_need_not_be_text() {
        let mut headers = Headers::new();
        headers.push("x-raw", &b"\xff\xfe"[..]);
        assert_eq!(headers.last_str("x-raw"), None);
        assert_eq!(headers.last("x-raw").map(|value| value.len()), Some(2));
    }

    #[test]
    fn debug_shows_no_value() {
        let mut headers = Headers::new();
        headers.push("authorization", "secret");
        assert_eq!(format!("{headers:?}"), r#"["authorization"]"#);
    }
}
