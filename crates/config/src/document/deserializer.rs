use serde::de::value::{StrDeserializer, U32Deserializer};
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use super::decode::Pass;
use super::located::MARKER;
use super::problem::DecodeError;
use super::{Document, NodeId, Value};

/// Reads the node `id`, passing over what `pass` says is wrong.
#[derive(Clone, Copy)]
pub(super) struct NodeDeserializer<'de> {
    pub(super) document: &'de Document,
    pub(super) pass: &'de Pass,
    pub(super) id: NodeId,
}

impl<'de> NodeDeserializer<'de> {
    fn value(self) -> &'de Value {
        &self.document.node(self.id).value
    }

    const fn other(self, id: NodeId) -> Self {
        Self { id, ..self }
    }

    fn left_out(self, id: NodeId) -> bool {
        self.pass.left_out.contains(&id)
    }

    fn unexpected(self) -> Unexpected<'de> {
        match self.value() {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Integer(value) => Unexpected::Signed(*value),
            Value::Unsigned(value) => Unexpected::Unsigned(*value),
            Value::Float(value) => Unexpected::Float(*value),
            Value::Text(text) => Unexpected::Str(text),
            Value::List(_) => Unexpected::Seq,
            Value::Mapping(_) => Unexpected::Map,
        }
    }

    fn mismatch(self, expected: &str) -> DecodeError {
        <DecodeError as de::Error>::invalid_type(self.unexpected(), &expected).or_at(self.id)
    }

    fn read<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(self).map_err(|error| error.or_at(self.id))
    }
}

impl<'de> Deserializer<'de> for NodeDeserializer<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value() {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            // Visitors of unsigned numbers take either.
            Value::Integer(value) => match u64::try_from(*value) {
                Ok(value) => visitor.visit_u64(value),
                Err(_) => visitor.visit_i64(*value),
            },
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(Items { of: self, rest: items.iter() }),
            Value::Mapping(entries) => {
                visitor.visit_map(Entries { of: self, rest: entries.iter(), fields: None, value: None })
            }
        }
        .map_err(|error: DecodeError| error.or_at(self.id))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.document.is_null(self.id) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        if name == MARKER {
            visitor.visit_seq(LocatedParts { of: self, next: 0 })
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.value() {
            Value::Mapping(entries) => visitor
                .visit_map(Entries { of: self, rest: entries.iter(), fields: Some(fields), value: None })
                .map_err(|error| error.or_at(self.id)),
            _ => Err(self.mismatch("a mapping")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value() {
            Value::Mapping(_) => self.deserialize_any(visitor),
            _ => Err(self.mismatch("a mapping")),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value() {
            Value::List(_) => self.deserialize_any(visitor),
            _ => Err(self.mismatch("a list")),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value() {
            Value::Bool(_) => self.deserialize_any(visitor),
            _ => Err(self.mismatch("true or false")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.value() {
            Value::Text(text) => {
                let text: StrDeserializer<'de, DecodeError> = text.as_str().into_deserializer();
                visitor.visit_enum(text).map_err(|error| error.or_at(self.id))
            }
            _ => Err(self.mismatch(&format!("one of {}", variants.join(", ")))),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct identifier
    }
}

struct Items<'de> {
    of: NodeDeserializer<'de>,
    rest: std::slice::Iter<'de, NodeId>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let of = self.of;
        match self.rest.find(|&&item| !of.left_out(item)) {
            Some(&item) => of.other(item).read(seed).map(Some),
            None => Ok(None),
        }
    }
}

struct Entries<'de> {
    of: NodeDeserializer<'de>,
    rest: std::slice::Iter<'de, (Box<str>, NodeId)>,
    /// The fields of the struct that is read; none for a map.
    fields: Option<&'static [&'static str]>,
    value: Option<NodeId>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        for (key, value) in self.rest.by_ref() {
            if self.of.left_out(*value) {
                continue;
            }
            if let Some(fields) = self.fields {
                if !fields.contains(&&**key) {
                    self.of.pass.unknown.borrow_mut().insert(*value, fields);
                    continue;
                }
                if self.of.document.is_null(*value) {
                    continue;
                }
            }
            self.value = Some(*value);
            let key: StrDeserializer<'de, DecodeError> = (**key).into_deserializer();
            return seed.deserialize(key).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DecodeError> {
        let value = self.value.take().ok_or_else(|| de::Error::custom("a value was asked for before its key"))?;
        self.of.other(value).read(seed)
    }
}

/// Node and value, as [`Located`](super::Located) asks for them.
struct LocatedParts<'de> {
    of: NodeDeserializer<'de>,
    next: u8,
}

impl<'de> SeqAccess<'de> for LocatedParts<'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        self.next += 1;
        match self.next {
            1 => {
                let id: U32Deserializer<DecodeError> = self.of.id.0.into_deserializer();
                seed.deserialize(id).map(Some)
            }
            2 => self.of.read(seed).map(Some),
            _ => Ok(None),
        }
    }
}
