use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use super::NodeId;

/// Tells the deserializer of a document that the node is wanted along with the value.
pub(super) const MARKER: &str = "$sluice::Located";

/// A value and the node it was read from. Can be read from a [`Document`](super::Document) only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) node: NodeId,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Located<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LocatedVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for LocatedVisitor<T> {
            type Value = Located<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a node and its value")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
                let node = parts.next_element()?.ok_or_else(|| de::Error::invalid_length(0, &self))?;
                let value = parts.next_element()?.ok_or_else(|| de::Error::invalid_length(1, &self))?;
                Ok(Located { value, node: NodeId(node) })
            }
        }

        deserializer.deserialize_newtype_struct(MARKER, LocatedVisitor(PhantomData))
    }
}
