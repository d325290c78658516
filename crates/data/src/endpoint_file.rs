mod warnings;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use serde_saphyr::{MessageFormatter as _, UserMessageFormatter};
use sluice_core::{EndpointId, EndpointUid};

pub use self::warnings::{EndpointFileWarning, EndpointFileWarningKind};

use crate::EndpointSpec;

/// A larger file is refused.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// What an endpoint file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFile {
    /// In the order of the file.
    pub endpoints: Vec<EndpointSpec>,
    pub warnings: Vec<EndpointFileWarning>,
}

/// Why an endpoint file was not taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointFileError {
    #[error("the file is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("not UTF-8 from byte {byte} on")]
    NotUtf8 { byte: usize },
    #[error("line {line}, column {column}: {what}")]
    Syntax { line: u64, column: u64, what: String },
    #[error("no list `endpoints` at the top level (an empty pool is written `endpoints: []`)")]
    NoList,
    /// Every entry that is wrong, in the order of the file.
    #[error("{}", EntryErrors(.0))]
    Entries(Vec<EntryError>),
}

/// What is wrong with one entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoints[{index}]{}: {what}", name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default())]
pub struct EntryError {
    pub index: usize,
    pub name: Option<String>,
    pub what: String,
}

struct EntryErrors<'a>(&'a [EntryError]);

impl fmt::Display for EntryErrors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

/// Reads a list of endpoints, YAML or JSON:
///
/// ```yaml
/// endpoints:
///   - name: gpu-a-0            # with the namespace, the endpoint's id
///     namespace: rack1         # default: "default"
///     address: 192.0.2.11      # IPv4 or IPv6
///     port: 8000               # number or text
///     labels: {llm-d.ai/role: decode}
/// ```
///
/// Keys that mean nothing here are passed over, in entries with a warning. All bad entries are reported together, and one
/// is enough to refuse the file: half a pool is worse than the previous one.
pub fn parse_endpoint_file(text: &str) -> Result<EndpointFile, EndpointFileError> {
    if text.len() > MAX_BYTES {
        return Err(EndpointFileError::TooLarge);
    }
    let options = serde_saphyr::options! { with_snippet: false };
    let document: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| syntax_error(&error))?;
    let Some(Value::Array(entries)) = document.get("endpoints") else {
        return Err(EndpointFileError::NoList);
    };

    let mut specs = Vec::with_capacity(entries.len());
    let mut errors = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        match parse_entry(entry) {
            Ok(spec) => specs.push(spec),
            Err(problems) => {
                let name = entry.get("name").and_then(Value::as_str).map(str::to_owned);
                errors.extend(problems.into_iter().map(|what| EntryError { index, name: name.clone(), what }));
            }
        }
    }
    if !errors.is_empty() {
        return Err(EndpointFileError::Entries(errors));
    }
    let warnings = warnings::warnings(text, entries, &specs);
    Ok(EndpointFile { endpoints: specs, warnings })
}

/// One line for the author of the file: the parser's own texts quote the file, and advise who calls the parser.
fn syntax_error(error: &serde_saphyr::Error) -> EndpointFileError {
    // Line 0 stands for an unknown place.
    let (line, column) = error.location().map_or((1, 1), |place| (place.line().max(1), place.column().max(1)));
    EndpointFileError::Syntax { line, column, what: syntax_fault(error) }
}

fn syntax_fault(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::AliasError { error, .. } => syntax_fault(error),
        serde_saphyr::Error::MultipleDocuments { .. } => "a second document starts here, only one is read".to_owned(),
        serde_saphyr::Error::Budget { .. } => {
            "too large or too deeply nested, or its aliases expand too far".to_owned()
        }
        _ => {
            let message = UserMessageFormatter.format_message(error);
            let printable: String = message.chars().filter(|letter| !letter.is_control()).collect();
            format!("not valid YAML: {printable}")
        }
    }
}

fn parse_entry(entry: &Value) -> Result<EndpointSpec, Vec<String>> {
    if !entry.is_object() {
        return Err(vec!["not a mapping".to_owned()]);
    }
    match (text(entry, "name", ""), text(entry, "namespace", "default"), address(entry), port(entry), labels(entry)) {
        (Ok(name), Ok(namespace), Ok(ip), Ok(port), Ok(labels)) => {
            let address = SocketAddr::new(ip, port);
            // A file names no lives: what runs at another address is another one.
            let uid = EndpointUid(address.to_string().into());
            Ok(EndpointSpec { id: EndpointId::new(&namespace, &name), uid, address, labels })
        }
        (name, namespace, ip, port, labels) => {
            Err([name.err(), namespace.err(), ip.err(), port.err(), labels.err()].into_iter().flatten().collect())
        }
    }
}

fn text(entry: &Value, key: &str, default: &str) -> Result<String, String> {
    match entry.get(key) {
        None | Some(Value::Null) => Ok(default.to_owned()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(_) => Err(format!("{key}: not a text")),
    }
}

fn address(entry: &Value) -> Result<IpAddr, String> {
    let Some(Value::String(text)) = entry.get("address") else {
        return Err("address: missing, or not a text".to_owned());
    };
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    bare.parse().map_err(|_| format!("address: {text:?} is not an IPv4 or IPv6 address"))
}

fn port(entry: &Value) -> Result<u16, String> {
    let port = match entry.get("port") {
        None | Some(Value::Null) => return Err("port: missing".to_owned()),
        Some(Value::Number(number)) => number.as_u64().and_then(|number| u16::try_from(number).ok()),
        Some(Value::String(text)) => text.parse().ok(),
        Some(_) => None,
    };
    port.filter(|&port| port > 0).ok_or_else(|| format!("port: {} is not a port from 1 to 65535", entry["port"]))
}

fn labels(entry: &Value) -> Result<BTreeMap<String, String>, String> {
    match entry.get("labels") {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(labels)) => labels
            .iter()
            .map(|(key, value)| match value {
                Value::String(text) => Ok((key.clone(), text.clone())),
                Value::Number(number) => Ok((key.clone(), number.to_string())),
                Value::Bool(flag) => Ok((key.clone(), flag.to_string())),
                Value::Null | Value::Array(_) | Value::Object(_) => Err(format!("labels.{key}: not a text")),
            })
            .collect(),
        Some(_) => Err("labels: not a mapping".to_owned()),
    }
}

#[cfg(test)]
#[path = "endpoint_file_tests.rs"]
mod tests;
