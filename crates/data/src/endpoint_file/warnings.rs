//! What an endpoint file says that can be taken over, but not as its author may think.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;
use sluice_core::{EndpointId, nearest};

use crate::EndpointSpec;

/// The keys of an entry that mean something.
const KEYS: [&str; 5] = ["name", "namespace", "address", "port", "labels"];

/// Something in an endpoint file that does not do what its author may think, and the lines of the entries it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFileWarning {
    pub lines: Vec<u64>,
    pub kind: EndpointFileWarningKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointFileWarningKind {
    /// A key of entries that means nothing is passed over.
    UnknownKey { key: String, suggestion: Option<&'static str> },
    /// Of entries with the same id the last one counts.
    Repeated { id: EndpointId },
    /// What is one server is taken for several, each with limits of its own.
    SameAddress { address: SocketAddr, ids: Vec<EndpointId> },
}

impl fmt::Display for EndpointFileWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, kind } = self;
        match lines.as_slice() {
            [] => {}
            [line] => write!(f, "line {line}: ")?,
            lines => write!(f, "lines {}: ", list(lines))?,
        }
        match kind {
            EndpointFileWarningKind::UnknownKey { key, suggestion } => {
                write!(f, "the key {key:?} means nothing")?;
                suggestion.map_or(Ok(()), |suggestion| write!(f, ", did you mean {suggestion:?}?"))
            }
            EndpointFileWarningKind::Repeated { id } => {
                let unnamed = if id.name.is_empty() { "(no name)" } else { "" };
                write!(f, "{id}{unnamed} is listed more than once, the last entry counts")
            }
            EndpointFileWarningKind::SameAddress { address, ids } => {
                write!(f, "{} have the same address {address}: it is sent as much as all of them together", list(ids))
            }
        }
    }
}

/// `1, 2 and 3`; of a long list the beginning.
fn list(items: &[impl fmt::Display]) -> String {
    const SHOWN: usize = 5;
    let (shown, last) = match items {
        [first @ .., last] if items.len() <= SHOWN => (first, last.to_string()),
        _ => (&items[..items.len().min(SHOWN)], format!("{} more", items.len().saturating_sub(SHOWN))),
    };
    let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
    if shown.is_empty() { last } else { format!("{} and {last}", shown.join(", ")) }
}

/// Everything there is to warn of in `text`, whose list has these `entries`, which mean these `specs`.
pub(super) fn warnings(text: &str, entries: &[Value], specs: &[EndpointSpec]) -> Vec<EndpointFileWarning> {
    let places = Places(lines_of_entries(text));
    let (mut unknown, mut ids) = (BTreeMap::<&str, Vec<usize>>::new(), BTreeMap::<&EndpointId, Vec<usize>>::new());
    for (index, (entry, spec)) in entries.iter().zip(specs).enumerate() {
        let keys = entry.as_object().into_iter().flat_map(serde_json::Map::keys);
        keys.filter(|key| !KEYS.contains(&key.as_str())).for_each(|key| unknown.entry(key).or_default().push(index));
        ids.entry(&spec.id).or_default().push(index);
    }
    let mut addresses = BTreeMap::<SocketAddr, Vec<usize>>::new();
    // Of a repeated id only the last entry is an endpoint.
    for last in ids.values().filter_map(|indices| indices.last()) {
        addresses.entry(specs[*last].address).or_default().push(*last);
    }
    let unknown = unknown.into_iter().map(|(key, indices)| {
        let kind = EndpointFileWarningKind::UnknownKey { key: key.to_owned(), suggestion: nearest(key, KEYS) };
        places.warning(&indices, kind)
    });
    let repeated = ids.into_iter().filter(|(_, indices)| indices.len() > 1);
    let repeated =
        repeated.map(|(id, indices)| places.warning(&indices, EndpointFileWarningKind::Repeated { id: id.clone() }));
    let shared = addresses.into_iter().filter(|(_, indices)| indices.len() > 1).map(|(address, mut indices)| {
        indices.sort_unstable();
        let ids = indices.iter().map(|&index| specs[index].id.clone()).collect();
        places.warning(&indices, EndpointFileWarningKind::SameAddress { address, ids })
    });
    unknown.chain(repeated).chain(shared).collect()
}

/// The lines of the entries; none if they are not known.
struct Places(Vec<u64>);

impl Places {
    fn warning(&self, indices: &[usize], kind: EndpointFileWarningKind) -> EndpointFileWarning {
        EndpointFileWarning { lines: indices.iter().filter_map(|&index| self.0.get(index).copied()).collect(), kind }
    }
}

/// A second reading: the first one must take whatever stands in the file, and tell what is wrong with it.
fn lines_of_entries(text: &str) -> Vec<u64> {
    #[derive(Deserialize)]
    struct File {
        endpoints: Vec<Spanned<Value>>,
    }
    let options = serde_saphyr::options! { with_snippet: false };
    let file = serde_saphyr::from_str_with_options::<File>(text, options);
    file.map(|file| file.endpoints.iter().map(|entry| entry.referenced.line()).collect()).unwrap_or_default()
}
