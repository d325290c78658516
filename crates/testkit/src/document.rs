use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A configuration file as a tree that can be edited. Every edit names a place that must exist, so that a test notices
/// when a file has moved on.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    origin: String,
    root: Value,
}

impl Document {
    /// Reads YAML or JSON. `origin` stands in messages.
    pub(crate) fn parse(origin: &str, text: &str) -> Result<Self> {
        let root = serde_saphyr::from_str(text).with_context(|| format!("reading {origin}"))?;
        Ok(Self { origin: origin.to_owned(), root })
    }

    /// The value at a path of keys and of list entries chosen by a field: `listeners/[name=inference]/address`. The empty
    /// path is the whole file.
    pub(crate) fn at(&mut self, path: &str) -> Result<&mut Value> {
        let mut place = &mut self.root;
        for step in path.split('/').filter(|step| !step.is_empty()) {
            place = descend(place, step).with_context(|| format!("{} has no {path}: stuck at {step}", self.origin))?;
        }
        Ok(place)
    }

    /// Replaces the value at `path`.
    pub(crate) fn set(&mut self, path: &str, value: impl Into<Value>) -> Result<()> {
        *self.at(path)? = value.into();
        Ok(())
    }

    /// Adds the field `key` to the object at `path`, which must not have it yet.
    pub(crate) fn add(&mut self, path: &str, key: &str, value: impl Into<Value>) -> Result<()> {
        let origin = self.origin.clone();
        match self.at(path)? {
            Value::Object(object) if !object.contains_key(key) => object.insert(key.to_owned(), value.into()),
            Value::Object(_) => bail!("{origin} already has {path}/{key}"),
            _ => bail!("{origin}: {path} is no object"),
        };
        Ok(())
    }

    /// Gives the object at `path` the field `key`, in place of the one it may have.
    pub(crate) fn put(&mut self, path: &str, key: &str, value: impl Into<Value>) -> Result<()> {
        let origin = self.origin.clone();
        match self.at(path)? {
            Value::Object(object) => object.insert(key.to_owned(), value.into()),
            _ => bail!("{origin}: {path} is no object"),
        };
        Ok(())
    }

    /// Removes the field `key` of the object at `path`.
    pub(crate) fn remove(&mut self, path: &str, key: &str) -> Result<()> {
        let origin = self.origin.clone();
        let removed = self.at(path)?.as_object_mut().and_then(|object| object.remove(key));
        removed.map(drop).with_context(|| format!("{origin} has no {path}/{key}"))
    }

    /// The entries of the list at `path`.
    pub(crate) fn list(&mut self, path: &str) -> Result<&mut Vec<Value>> {
        let origin = self.origin.clone();
        match self.at(path)? {
            Value::Array(entries) => Ok(entries),
            _ => bail!("{origin}: {path} is not a list"),
        }
    }

    pub(crate) fn to_json(&self) -> String {
        self.root.to_string()
    }

    /// Writes the tree as JSON, which is also YAML.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.to_json()).with_context(|| format!("writing {}", path.display()))
    }
}

fn descend<'a>(place: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    let Some(choice) = step.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return place.get_mut(step);
    };
    let entries = place.as_array_mut()?;
    match choice.split_once('=') {
        Some((field, wanted)) => entries.iter_mut().find(|entry| entry.get(field).is_some_and(|value| value == wanted)),
        None => entries.get_mut(choice.parse::<usize>().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Document {
        let text = "servers:\n- {name: a, port: 1}\n- {name: b, port: 2, tls: {}}\n";
        Document::parse("sample.yaml", text).unwrap()
    }

    #[test]
    fn edits_the_place_that_is_named() {
        let mut document = document();
        document.set("servers/[name=b]/port", 3).unwrap();
        document.remove("servers/[name=b]", "tls").unwrap();
        document.set("servers/[0]/port", 4).unwrap();
        document.add("servers/[0]", "zone", "y").unwrap();
        document.add("", "clients", 0).unwrap();
        document.put("servers/[0]", "zone", "z").unwrap();
        let expected = r#"{"clients":0,"servers":[{"name":"a","port":4,"zone":"z"},{"name":"b","port":3}]}"#;
        assert_eq!(document.to_json(), expected);
    }

    #[test]
    fn a_place_that_is_missing_is_an_error_that_names_it() {
        let mut document = document();
        for path in ["servers/[name=c]/port", "servers/[2]", "clients", "servers/[name=a]/address"] {
            let message = format!("{:#}", document.set(path, 1).unwrap_err());
            assert!(message.contains(path) && message.contains("sample.yaml"), "{message}");
        }
        assert!(document.remove("servers/[name=a]", "tls").is_err());
        assert!(document.list("servers/[name=a]").is_err());
        assert!(document.add("servers/[name=a]", "port", 4).is_err());
        assert!(document.add("servers", "zone", "z").is_err());
        assert!(document.put("servers", "zone", "z").is_err());
    }
}
