use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Which series of a page are meant: those of a family that carry certain labels.
///
/// ```text
/// nv_trt_llm_request_metrics{request_type=waiting, model="a, b"}
/// ```
///
/// A value stands in quotes, with the escapes of the text format (`\\`, `\"`, `\n`), or bare up to the next comma or
/// brace. An empty value is that of a series without the label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricSpec {
    text: Arc<str>,
    name: Box<str>,
    matchers: Vec<Matcher>,
}

/// The label `name` has the value `value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matcher {
    pub(super) name: Box<str>,
    pub(super) value: Box<str>,
}

/// Why a text is no [`MetricSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("the name of the metric is missing")]
    NoName,
    #[error("{0:?} is no name of a metric: letters, digits, _ and :, no digit first")]
    Name(String),
    #[error("{0:?} is no name of a label: letters, digits and _, no digit first")]
    Label(String),
    #[error("the label {0:?} is not followed by = and a value; labels can only be compared with =")]
    NoEquals(String),
    #[error("the label {0:?} has no value; write \"\" for an empty one")]
    NoValue(String),
    #[error("the label {0:?} is given twice")]
    Twice(String),
    #[error("the quoted value of the label {0:?} does not end, or has an escape other than \\\\, \\\" and \\n")]
    Quote(String),
    #[error("the labels do not end with }}")]
    NoClosingBrace,
    #[error("{0:?} follows where nothing, or a comma between labels, is expected")]
    Rest(String),
}

impl MetricSpec {
    /// The series of the family `name` with all of these labels.
    pub(super) fn new(name: &str, matchers: &[(&str, &str)]) -> Self {
        let matchers: Vec<_> =
            matchers.iter().map(|&(name, value)| Matcher { name: name.into(), value: value.into() }).collect();
        Self { text: canonical(name, &matchers).into(), name: name.into(), matchers }
    }

    /// The spec in its usual spelling.
    pub const fn text(&self) -> &Arc<str> {
        &self.text
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn matchers(&self) -> &[Matcher] {
        &self.matchers
    }
}

fn canonical(name: &str, matchers: &[Matcher]) -> String {
    if matchers.is_empty() {
        return name.to_owned();
    }
    let escape = |value: &str| value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let matchers: Vec<_> =
        matchers.iter().map(|Matcher { name, value }| format!("{name}=\"{}\"", escape(value))).collect();
    format!("{name}{{{}}}", matchers.join(","))
}

impl fmt::Display for MetricSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for MetricSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let text = text.trim();
        let (name, labels) = match text.split_once('{') {
            Some((name, labels)) => (name.trim_end(), Some(labels)),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(SpecError::NoName);
        }
        if !is_name(name, ":_") {
            return Err(SpecError::Name(name.to_owned()));
        }
        let matchers = labels.map(parse_matchers).transpose()?.unwrap_or_default();
        Ok(Self { text: canonical(name, &matchers).into(), name: name.into(), matchers })
    }
}

impl<'de> Deserialize<'de> for MetricSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for MetricSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// What stands behind the opening brace.
fn parse_matchers(text: &str) -> Result<Vec<Matcher>, SpecError> {
    let mut matchers: Vec<Matcher> = Vec::new();
    let mut rest = text.trim_start();
    while !rest.starts_with('}') {
        let (label, value, after) = parse_matcher(rest)?;
        if matchers.iter().any(|earlier| *earlier.name == *label) {
            return Err(SpecError::Twice(label.to_owned()));
        }
        matchers.push(Matcher { name: label.into(), value: value.into() });
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after.is_empty() || after.starts_with('}') => after,
            None => return Err(SpecError::Rest(after.to_owned())),
        };
        if rest.is_empty() {
            return Err(SpecError::NoClosingBrace);
        }
    }
    match rest.strip_prefix('}').map(str::trim) {
        Some("") => Ok(matchers),
        Some(more) => Err(SpecError::Rest(more.to_owned())),
        None => Err(SpecError::NoClosingBrace),
    }
}

/// Label, value, and what follows them.
fn parse_matcher(text: &str) -> Result<(&str, String, &str), SpecError> {
    let name_end = text.find(['=', '!', '~', ',', '}', '"']).unwrap_or(text.len());
    let (label, rest) = text.split_at(name_end);
    let label = label.trim_end();
    if !is_name(label, "_") {
        return if rest.is_empty() && label.is_empty() {
            Err(SpecError::NoClosingBrace)
        } else {
            Err(SpecError::Label(label.to_owned()))
        };
    }
    let owned = || label.to_owned();
    let value = rest.strip_prefix('=').filter(|value| !value.starts_with(['~', '=']));
    let value = value.ok_or_else(|| SpecError::NoEquals(owned()))?.trim_start();
    if let Some(quoted) = value.strip_prefix('"') {
        let (value, after) = unquote(quoted).ok_or_else(|| SpecError::Quote(owned()))?;
        return Ok((label, value, after.trim_start()));
    }
    let (value, after) = value.split_at(value.find([',', '}']).unwrap_or(value.len()));
    match value.trim_end() {
        "" => Err(SpecError::NoValue(owned())),
        bare => Ok((label, bare.to_owned(), after)),
    }
}

/// The text up to the closing quote, and what follows the quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        value.push(match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => match chars.next()? {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            },
            plain => plain,
        });
    }
}

/// Letters, digits and `others`, no digit first.
fn is_name(text: &str, others: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|character| character.is_ascii_alphanumeric() || others.contains(character))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, SpecError> {
        text.parse().map(|spec: MetricSpec| spec.to_string())
    }

    #[test]
    fn a_spec_is_a_name_with_or_without_labels() {
        for (text, expected) in [
            ("vllm:num_requests_waiting", "vllm:num_requests_waiting"),
            ("  up ", "up"),
            ("up{}", "up"),
            ("m{request_type=waiting}", "m{request_type=\"waiting\"}"),
            ("m { a = b , c=\"d\" , }", "m{a=\"b\",c=\"d\"}"),
            (r#"m{a="x, y}",b="\"\\\n"}"#, r#"m{a="x, y}",b="\"\\\n"}"#),
            ("m{a=\"\"}", "m{a=\"\"}"),
            ("m{a=b c}", "m{a=\"b c\"}"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(expected), "{text}");
            assert_eq!(parsed(expected).as_deref(), Ok(expected), "{expected}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_spec_is_named() {
        let owned = str::to_owned;
        for (text, expected) in [
            ("", SpecError::NoName),
            ("{a=b}", SpecError::NoName),
            ("9lives", SpecError::Name(owned("9lives"))),
            ("num-requests", SpecError::Name(owned("num-requests"))),
            ("m}", SpecError::Name(owned("m}"))),
            ("m{a:b=c}", SpecError::Label(owned("a:b"))),
            ("m{=c}", SpecError::Label(owned(""))),
            ("m{a=b,,}", SpecError::Label(owned(""))),
            ("m{a}", SpecError::NoEquals(owned("a"))),
            ("m{a!=b}", SpecError::NoEquals(owned("a"))),
            ("m{a=~\"b.*\"}", SpecError::NoEquals(owned("a"))),
            ("m{a!~b}", SpecError::NoEquals(owned("a"))),
            ("m{a=}", SpecError::NoValue(owned("a"))),
            ("m{a=b,a=c}", SpecError::Twice(owned("a"))),
            ("m{a=\"b}", SpecError::Quote(owned("a"))),
            ("m{a=\"\\t\"}", SpecError::Quote(owned("a"))),
            ("m{", SpecError::NoClosingBrace),
            ("m{a=b", SpecError::NoClosingBrace),
            ("m{a=b,", SpecError::NoClosingBrace),
            ("m{a=\"b\"", SpecError::NoClosingBrace),
            ("m{a=b} 5", SpecError::Rest(owned("5"))),
            ("m{a=\"b\" c=d}", SpecError::Rest(owned("c=d}"))),
        ] {
            assert_eq!(parsed(text), Err(expected), "{text}");
        }
    }
}
