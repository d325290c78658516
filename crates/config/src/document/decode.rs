use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use sluice_core::nearest;

use super::deserializer::NodeDeserializer;
use super::problem::{DecodeError, Problem, missing};
use super::{Document, NodeId};
use crate::diagnostics::{Diagnostics, Remark};

/// What earlier attempts at the same value have found.
#[derive(Default)]
pub(super) struct Pass {
    /// Wrong nodes, which are passed over.
    pub(super) left_out: BTreeSet<NodeId>,
    /// Values of unknown fields, with the fields that are known there.
    pub(super) unknown: RefCell<BTreeMap<NodeId, &'static [&'static str]>>,
}

impl Document {
    /// Reads a value from the node `id` and everything below it.
    ///
    /// `T` may be any type that derives `Deserialize`. Fields it does not know are errors, null fields count
    /// as absent. A serde type stops at its first error; here every error is noted and the wrong part left
    /// out until the rest can be read, so that one call finds all of them. What remains is returned for
    /// further checks; it is whole only if no error was noted.
    pub(crate) fn decode<T: DeserializeOwned>(&self, id: NodeId, diagnostics: &mut Diagnostics) -> Option<T> {
        let mut pass = Pass::default();
        let mut problems = Vec::new();
        let result = loop {
            let error = match T::deserialize(NodeDeserializer { document: self, pass: &pass, id }) {
                Ok(value) => break Some(value),
                Err(error) => error,
            };
            let at = error.at.unwrap_or(id);
            if !self.follows_from(&pass, at, &error.problem) {
                problems.push((at, error.problem));
            }
            if at == id || diagnostics.errors() + problems.len() > Diagnostics::MAX_ERRORS {
                break None;
            }
            pass.left_out.insert(at);
        };
        for (unknown, known) in pass.unknown.into_inner() {
            diagnostics.error(self.key_place(unknown), self.unknown_field(unknown, known));
        }
        for (at, problem) in problems {
            self.report(at, problem, diagnostics);
        }
        result
    }

    /// As [`Document::decode`] for the mapping under `key` of `owner`, which is empty if it is absent.
    pub(crate) fn decode_child<T: DeserializeOwned>(
        &self,
        owner: NodeId,
        key: &str,
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        if let Some(id) = self.child(owner, key) {
            return self.decode(id, diagnostics);
        }
        let nothing: MapDeserializer<'_, std::iter::Empty<(&str, &str)>, DecodeError> =
            MapDeserializer::new(std::iter::empty());
        match T::deserialize(nothing) {
            Ok(value) => Some(value),
            Err(error) => {
                let mut place = self.place_of_missing(owner, key);
                let remark = match error.problem {
                    Problem::Missing(field) => {
                        place.path = format!("{}.{field}", place.path);
                        missing(field)
                    }
                    problem => problem.remark(),
                };
                diagnostics.error(place, remark);
                None
            }
        }
    }

    /// The field is missing only because its value was wrong, which is known already.
    fn follows_from(&self, pass: &Pass, at: NodeId, problem: &Problem) -> bool {
        match problem {
            Problem::Missing(field) => self.child(at, field).is_some_and(|child| pass.left_out.contains(&child)),
            _ => false,
        }
    }

    fn report(&self, at: NodeId, problem: Problem, diagnostics: &mut Diagnostics) {
        match problem {
            Problem::Missing(field) => diagnostics.error(self.place_of_missing(at, field), missing(field)),
            problem => diagnostics.error(self.place(at), problem.remark()),
        }
    }

    fn unknown_field(&self, unknown: NodeId, known: &[&str]) -> Remark {
        let name = self.key(unknown).unwrap_or_default();
        let remark = Remark::new(format!("unknown field {name:?}"));
        match nearest(name, known.iter().copied()) {
            Some(suggestion) => remark.suggest(suggestion),
            None => match known {
                [] => remark.hint("there are no fields here"),
                [only] => remark.hint(format!("the only field is {only}")),
                _ => remark.hint(format!("the fields are {}", known.join(", "))),
            },
        }
    }
}
