use std::fmt;

use serde::de::{self, Expected, Unexpected};
use sluice_core::nearest;

use super::NodeId;
use crate::diagnostics::Remark;

/// Why a value could not be read, and the innermost node that is to blame.
#[derive(Debug)]
pub(super) struct DecodeError {
    pub(super) at: Option<NodeId>,
    pub(super) problem: Problem,
}

#[derive(Debug)]
pub(super) enum Problem {
    Missing(&'static str),
    Mismatch { found: String, expected: String, hint: Option<&'static str> },
    UnknownWord { found: String, expected: &'static [&'static str] },
    Other(Remark),
}

impl Problem {
    pub(super) fn remark(self) -> Remark {
        match self {
            Self::Missing(field) => missing(field),
            Self::Mismatch { found, expected, hint } => {
                let remark = Remark::new(format!("expected {expected}, found {found}"));
                match hint {
                    Some(hint) => remark.hint(hint),
                    None => remark,
                }
            }
            Self::UnknownWord { found, expected } => {
                let remark = Remark::new(format!("unknown value {found:?}"));
                match nearest(&found, expected.iter().copied()) {
                    Some(suggestion) => remark.suggest(suggestion),
                    None => remark.hint(format!("the values are {}", expected.join(", "))),
                }
            }
            Self::Other(remark) => remark,
        }
    }
}

impl DecodeError {
    pub(super) const fn new(problem: Problem) -> Self {
        Self { at: None, problem }
    }

    /// Blames `id` unless a node inside it is to blame.
    pub(super) fn or_at(self, id: NodeId) -> Self {
        Self { at: self.at.or(Some(id)), problem: self.problem }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.problem)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    /// The rule is where a type says what is wrong with a value of it.
    #[track_caller]
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Problem::Other(Remark::new(message.to_string())))
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        let hint = match unexpected {
            Unexpected::Bool(_) | Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_)
                if expected.ends_with("string") =>
            {
                Some("put it in quotes")
            }
            Unexpected::Str(text) if number_words(&expected).is_some() && text.parse::<f64>().is_ok() => {
                Some("remove the quotes")
            }
            _ => None,
        };
        let expected = match number_words(&expected) {
            Some(words) => words.to_owned(),
            None if expected == "path string" => "a path".to_owned(),
            None => expected,
        };
        Self::new(Problem::Mismatch { found: words(&unexpected), expected, hint })
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(unexpected, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Problem::UnknownWord { found: variant.to_owned(), expected })
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Problem::Missing(field))
    }
}

/// Rust's name of a number type in plain words.
fn number_words(expected: &str) -> Option<&'static str> {
    Some(match expected {
        "i8" | "i16" | "i64" | "isize" => "a whole number",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 up",
        "a nonzero u32" => "a whole number from 1 to 4294967295",
        "f32" | "f64" => "a number",
        _ => return None,
    })
}

fn words(unexpected: &Unexpected<'_>) -> String {
    match unexpected {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value}"),
        Unexpected::Str(text) => {
            let mut shown: String = text.chars().take(60).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            format!("the string {shown:?}")
        }
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a mapping".to_owned(),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        other => other.to_string(),
    }
}

pub(super) fn missing(field: &str) -> Remark {
    Remark::new(format!("the field {field:?} is missing"))
}
