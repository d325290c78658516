use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use sluice_core::{Api, MAX_MODEL_NAME};

/// What a request body says that matters for picking an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFields {
    /// `model`, if it is a non-empty string: at most [`MAX_MODEL_NAME`] bytes.
    pub model: Option<String>,
    /// `stream` is the literal `true`.
    pub stream: bool,
    /// The bound on generated tokens: the first of the API's names for it that holds a whole number.
    pub max_output_tokens: Option<u64>,
}

/// Why a request body is not taken. Never quotes the body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("error unmarshaling request bodyMap: {what} at line {line} column {column}")]
    Json { what: String, line: usize, column: usize },
    #[error("error unmarshaling request bodyMap: the body is not a JSON object")]
    NotAnObject,
    #[error("the field \"model\" of the request body is longer than {} bytes", MAX_MODEL_NAME)]
    ModelTooLong,
}

/// Reads the body of a request of `api`. A passthrough body is not looked at.
///
/// Fields of an unexpected type count as absent, and of a repeated key the last counts: the model server is
/// the judge of a request, not the picker. One thing is not left to it: a text in `model` that is longer than
/// [`MAX_MODEL_NAME`], wherever a repeated key has it.
pub fn parse_request(api: Api, body: &[u8]) -> Result<RequestFields, ParseError> {
    let bound = match api {
        Api::OpenAiChat => Bound::AtTop(&["max_completion_tokens", "max_tokens"]),
        Api::OpenAiCompletions | Api::AnthropicMessages => Bound::AtTop(&["max_tokens"]),
        Api::OpenAiResponses => Bound::AtTop(&["max_output_tokens"]),
        Api::OpenAiConversations | Api::OpenAiOther => Bound::AtTop(&[]),
        Api::VllmGenerate => Bound::Inside("sampling_params"),
        Api::Passthrough => return Ok(RequestFields::default()),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let fields = deserializer
        .deserialize_any(ObjectVisitor { bound })
        .and_then(|fields| deserializer.end().map(|()| fields))
        .map_err(|error| json_error(&error))?;
    let Found { fields, model_too_long } = fields.ok_or(ParseError::NotAnObject)?;
    if model_too_long { Err(ParseError::ModelTooLong) } else { Ok(fields) }
}

fn json_error(error: &serde_json::Error) -> ParseError {
    let (line, column) = (error.line(), error.column());
    // The message of a syntax error is a fixed text followed by the position, which is a field of its own.
    let text = error.to_string();
    let what = text.split_once(" at line ").map_or(text.as_str(), |(what, _position)| what);
    ParseError::Json { what: what.to_owned(), line, column }
}

/// Where an API has the bound on generated tokens.
#[derive(Clone, Copy)]
enum Bound {
    /// Under the first of these names, at most two, that holds a whole number.
    AtTop(&'static [&'static str]),
    /// Under `max_tokens` of the object of this name.
    Inside(&'static str),
}

/// What an object says.
#[derive(Default)]
struct Found {
    fields: RequestFields,
    model_too_long: bool,
}

/// Collects the known fields of an object; `None` for any other value.
struct ObjectVisitor {
    bound: Bound,
}

impl<'de> DeserializeSeed<'de> for ObjectVisitor {
    type Value = Option<Found>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Option<Found>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Found { mut fields, mut model_too_long } = Found::default();
        // One bound per name, so that the order of names decides, not the order in the body.
        let mut bounds = [None; 2];
        while let Some(Key(key)) = map.next_key()? {
            if key == "model" {
                let value = map.next_value()?;
                model_too_long |= matches!(value, Scalar::LongText);
                fields.model = match value {
                    Scalar::Text(text) if !text.is_empty() => Some(text.into_owned()),
                    _ => None,
                };
            } else if key == "stream" {
                fields.stream = matches!(map.next_value()?, Scalar::Bool(true));
            } else {
                match self.bound {
                    Bound::AtTop(names) => match names.iter().position(|name| *name == key) {
                        Some(index) => {
                            bounds[index] = match map.next_value()? {
                                Scalar::Whole(number) => Some(number),
                                _ => None,
                            };
                        }
                        None => drop(map.next_value::<IgnoredAny>()?),
                    },
                    Bound::Inside(name) if name == key => {
                        let inner = Self { bound: Bound::AtTop(&["max_tokens"]) };
                        bounds[0] = map.next_value_seed(inner)?.and_then(|found| found.fields.max_output_tokens);
                    }
                    Bound::Inside(_) => drop(map.next_value::<IgnoredAny>()?),
                }
            }
        }
        fields.max_output_tokens = bounds.into_iter().flatten().next();
        Ok(Some(Found { fields, model_too_long }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// An object key, borrowed from the body unless it holds an escape; empty if it is too long to be a known one.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Scalar::deserialize(deserializer)? {
            Scalar::Text(text) => Ok(Self(text)),
            Scalar::LongText | Scalar::Bool(_) | Scalar::Whole(_) | Scalar::Other => Ok(Self(Cow::Borrowed(""))),
        }
    }
}

/// A value of interest; everything else, arrays and objects among it, is `Other`.
enum Scalar<'de> {
    /// Of at most [`MAX_MODEL_NAME`] bytes.
    Text(Cow<'de, str>),
    /// A longer one, of which no copy is made.
    LongText,
    Bool(bool),
    Whole(u64),
    Other,
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(if text.len() > MAX_MODEL_NAME { Scalar::LongText } else { Scalar::Text(Cow::Borrowed(text)) })
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(if text.len() > MAX_MODEL_NAME { Scalar::LongText } else { Scalar::Text(Cow::Owned(text.to_owned())) })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Scalar::Whole(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(u64::try_from(number).map_or(Scalar::Other, Scalar::Whole))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        // 2^53: above it a float no longer tells whole numbers apart.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if number.fract() == 0.0 && (0.0..=EXACT).contains(&number) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and within 0..=2^53")]
            return Ok(Scalar::Whole(number as u64));
        }
        Ok(Scalar::Other)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
