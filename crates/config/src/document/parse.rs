use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Location, MessageFormatter, Spanned, UserMessageFormatter};

use super::{Document, Node, NodeId, Step, Value, join, path};
use crate::diagnostics::{Diagnostics, Place, Position, Remark};
use crate::source::Source;

/// A longer text is refused unread.
const MAX_BYTES: usize = Source::MAX_BYTES;
/// What stands under it, a mapping or several in a list, gives what the mapping around it does not have itself.
const MERGE_KEY: &str = "<<";
const START: Position = Position { line: 1, column: 1 };

impl Document {
    /// Reads `text`. Without a result there is at least one error in `diagnostics`; a key that stands twice
    /// is an error too, but the document can still be looked at.
    pub(crate) fn parse(text: &[u8], diagnostics: &mut Diagnostics) -> Option<Self> {
        if text.len() > MAX_BYTES {
            let message = format!("the configuration has {} bytes, at most {MAX_BYTES} are read", text.len());
            diagnostics.error(whole_text(START), Remark::new(message));
            return None;
        }
        let text = match std::str::from_utf8(text) {
            Ok(text) => text,
            Err(error) => {
                let position = position_after(&text[..error.valid_up_to()]);
                let byte = text.get(error.valid_up_to()).copied().unwrap_or_default();
                diagnostics.error(
                    whole_text(position),
                    Remark::new(format!("the configuration is not UTF-8: byte 0x{byte:02x}")),
                );
                return None;
            }
        };
        let options = serde_saphyr::options! {
            duplicate_keys: DuplicateKeyPolicy::PassThrough,
            // They are followed here, where one that stands twice is seen.
            merge_keys: MergeKeyPolicy::AsOrdinary,
            non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
            // As the YAML library of Kubernetes does.
            legacy_octal_numbers: true,
            with_snippet: false,
            // Of what a configuration repeats by aliases, for which each repetition takes time.
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 20_000 },
            // What no configuration needs but an alias bomb or a tower of brackets does.
            budget: serde_saphyr::budget! {
                max_depth: 48,
                flow_nesting_limit: 48,
                max_nodes: 50_000,
                max_events: 200_000,
                max_total_scalar_bytes: 4 * MAX_BYTES,
                max_recorded_anchor_bytes: 4 * MAX_BYTES,
            },
        };
        match serde_saphyr::from_str_with_options::<Spanned<Parsed>>(text, options) {
            Ok(root) => {
                if matches!(root.value, Parsed::Null) {
                    let remark = Remark::new("the configuration is empty").hint("write {} to take every default");
                    diagnostics.error(whole_text(START), remark);
                    return None;
                }
                let mut builder = Builder { text, nodes: Vec::new(), diagnostics };
                builder.add(root, None, None);
                Some(Self { nodes: builder.nodes })
            }
            Err(error) => {
                let position = error.location().map_or(START, |location| position(&location));
                diagnostics.error(whole_text(position), syntax_error(&error));
                None
            }
        }
    }
}

const fn whole_text(position: Position) -> Place {
    Place { position, path: String::new() }
}

fn syntax_error(error: &serde_saphyr::Error) -> Remark {
    match error {
        serde_saphyr::Error::AliasError { error, .. } => syntax_error(error),
        serde_saphyr::Error::MultipleDocuments { .. } => Remark::new("a second document starts here, only one is read"),
        serde_saphyr::Error::Budget { .. } | serde_saphyr::Error::AliasReplayLimitExceeded { .. } => {
            Remark::new("the configuration is too large or too deeply nested, or its aliases expand to too much")
        }
        _ => {
            let message = UserMessageFormatter.format_message(error);
            let printable: String = message.chars().filter(|letter| !letter.is_control()).collect();
            Remark::new(format!("not valid YAML: {printable}"))
        }
    }
}

/// The position right behind `text`.
fn position_after(text: &[u8]) -> Position {
    let text = String::from_utf8_lossy(text);
    let line = text.split('\n').count();
    let column = text.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    Position { line: u32::try_from(line).unwrap_or(u32::MAX), column: u32::try_from(column).unwrap_or(u32::MAX) }
}

fn position(location: &Location) -> Position {
    // Line 0 stands for an unknown place.
    let at_least_one = |number: u64| u32::try_from(number.max(1)).unwrap_or(u32::MAX);
    Position { line: at_least_one(location.line()), column: at_least_one(location.column()) }
}

/// Of a mapping.
type Entry = (Spanned<Parsed>, Spanned<Parsed>);

/// Numbers the nodes and notes what is wrong with the keys.
struct Builder<'a> {
    text: &'a str,
    nodes: Vec<Node>,
    diagnostics: &'a mut Diagnostics,
}

impl Builder<'_> {
    // Recursion is bounded by the budget of the parser.
    fn add(
        &mut self,
        parsed: Spanned<Parsed>,
        parent: Option<(NodeId, Step)>,
        key_position: Option<Position>,
    ) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        // `defined` is where an aliased value stands, which is where a mistake in it has to be mended.
        self.nodes.push(Node { value: Value::Null, position: position(&parsed.defined), key_position, parent });
        let value = match parsed.value {
            Parsed::Null => Value::Null,
            Parsed::Bool(value) => Value::Bool(value),
            Parsed::Integer(value) => Value::Integer(value),
            Parsed::Unsigned(value) => i64::try_from(value).map_or(Value::Unsigned(value), Value::Integer),
            Parsed::Float(value) => whole_number(value).map_or(Value::Float(value), Value::Integer),
            Parsed::Text(text) => Value::Text(text),
            Parsed::List(items) => Value::List(
                items
                    .into_iter()
                    .enumerate()
                    .map(|(index, item)| self.add(item, Some((id, Step::Index(index))), None))
                    .collect(),
            ),
            Parsed::Mapping(entries) => Value::Mapping(self.add_entries(id, entries)),
        };
        self.nodes[id.index()].value = value;
        id
    }

    fn add_entries(&mut self, mapping: NodeId, entries: Vec<Entry>) -> Vec<(Box<str>, NodeId)> {
        let mut added = Vec::with_capacity(entries.len());
        let mut merged = Vec::new();
        let mut first: BTreeMap<Box<str>, Position> = BTreeMap::new();
        for (key, value) in entries {
            let position = position(&key.defined);
            let Some(name) = self.key_text(&key) else {
                let path = path(&self.nodes, mapping);
                self.diagnostics.error(Place { position, path }, Remark::new("a key must be plain text"));
                continue;
            };
            let step = Step::Key(name.clone());
            if let Some(earlier) = first.get(&name) {
                let message = format!("duplicate key {name:?}, first seen on line {}", earlier.line);
                let path = join(path(&self.nodes, mapping), &step);
                self.diagnostics.error(Place { position, path }, Remark::new(message));
                continue;
            }
            first.insert(name.clone(), position);
            if &*name == MERGE_KEY {
                self.collect(value, &mut merged);
            } else {
                added.push((name, self.add(value, Some((mapping, step)), Some(position))));
            }
        }
        for (key, value) in merged {
            // What is wrong with it is told where it is written.
            let Some(name) = self.key_text(&key).filter(|name| !first.contains_key(name)) else { continue };
            let position = position(&key.defined);
            first.insert(name.clone(), position);
            let id = self.add(value, Some((mapping, Step::Key(name.clone()))), Some(position));
            added.push((name, id));
        }
        added
    }

    /// The entries of what stands under a merge key, of which the first of a name counts.
    fn collect(&mut self, merged: Spanned<Parsed>, entries: &mut Vec<Entry>) {
        match merged.value {
            Parsed::Mapping(own) => {
                let (further, own): (Vec<_>, Vec<_>) =
                    own.into_iter().partition(|(key, _)| self.key_text(key).is_some_and(|name| &*name == MERGE_KEY));
                entries.extend(own);
                further.into_iter().for_each(|(_, value)| self.collect(value, entries));
            }
            Parsed::List(items) => items.into_iter().for_each(|item| self.collect(item, entries)),
            Parsed::Null => {}
            Parsed::Bool(_) | Parsed::Integer(_) | Parsed::Unsigned(_) | Parsed::Float(_) | Parsed::Text(_) => {
                let place = whole_text(position(&merged.defined));
                self.diagnostics.error(place, Remark::new("a merge key takes a mapping, or a list of mappings"));
            }
        }
    }

    /// The key as it is written: `on` and `1` are text in this place.
    fn key_text(&self, key: &Spanned<Parsed>) -> Option<Box<str>> {
        match &key.value {
            Parsed::Text(text) => Some(text.as_str().into()),
            Parsed::Bool(_) | Parsed::Integer(_) | Parsed::Unsigned(_) | Parsed::Float(_) => {
                let span = key.defined.span();
                let start = usize::try_from(span.byte_offset()?).ok()?;
                let end = start.checked_add(usize::try_from(span.byte_len()?).ok()?)?;
                self.text.get(start..end).map(Into::into)
            }
            Parsed::Null | Parsed::List(_) | Parsed::Mapping(_) => None,
        }
    }
}

/// `2.0` and `1e3` are whole numbers.
#[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
fn whole_number(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64)
}

/// A value as the YAML parser hands it over.
enum Parsed {
    Null,
    Bool(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Self>>),
    Mapping(Vec<Entry>),
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParsedVisitor;

        impl<'de> Visitor<'de> for ParsedVisitor {
            type Value = Parsed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Parsed, E> {
                Ok(Parsed::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Parsed, E> {
                Ok(Parsed::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Parsed, E> {
                Ok(Parsed::Integer(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Parsed, E> {
                Ok(Parsed::Unsigned(value))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Parsed, E> {
                Ok(Parsed::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Parsed, E> {
                Ok(Parsed::Text(value.to_owned()))
            }

            fn visit_string<E>(self, value: String) -> Result<Parsed, E> {
                Ok(Parsed::Text(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Parsed, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Parsed::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Parsed, A::Error> {
                let mut mapping = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    mapping.push(entry);
                }
                Ok(Parsed::Mapping(mapping))
            }
        }

        deserializer.deserialize_any(ParsedVisitor)
    }
}
