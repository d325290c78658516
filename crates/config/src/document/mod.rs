//! A configuration text as a tree of nodes that know where they stand, and typed values read from it.
//!
//! ```text
//! text ──parse──> Document ──decode::<T>(node)──> T
//!                    │             │
//!                    └── mistakes ─┴──> Diagnostics       all of them, not just the first
//! ```

mod decode;
mod deserializer;
mod fields;
mod located;
mod parse;
mod problem;

pub(crate) use fields::parameter_names;
pub(crate) use located::Located;

use crate::diagnostics::{Place, Position};

/// Names one node of its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u32);

impl NodeId {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A text that was read as YAML (or JSON, which is YAML too).
#[derive(Debug)]
pub(crate) struct Document {
    /// A node stands behind the one it is part of; the root is the first.
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    value: Value,
    position: Position,
    /// Where the key stands if the node is an entry of a mapping.
    key_position: Option<Position>,
    parent: Option<(NodeId, Step)>,
}

#[derive(Debug)]
enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    /// Above the range of `Integer`.
    Unsigned(u64),
    /// Not a whole number, or one beyond 64 bits.
    Float(f64),
    Text(String),
    List(Vec<NodeId>),
    Mapping(Vec<(Box<str>, NodeId)>),
}

/// The way from a node to a part of it.
#[derive(Clone, Debug)]
enum Step {
    Key(Box<str>),
    Index(usize),
}

impl Step {
    /// As it stands in a path behind a dot or an opening bracket.
    fn written(text: &str) -> Self {
        let index = text.strip_suffix(']').and_then(|digits| digits.parse().ok());
        index.map_or_else(|| Self::Key(text.into()), Self::Index)
    }
}

impl Document {
    pub(crate) const ROOT: NodeId = NodeId(0);

    /// `{}`
    pub(crate) fn empty() -> Self {
        let position = Position { line: 1, column: 1 };
        let root = Node { value: Value::Mapping(Vec::new()), position, key_position: None, parent: None };
        Self { nodes: vec![root] }
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The node under `key`, if `id` is a mapping that has it and it is not null: null means unset.
    pub(crate) fn child(&self, id: NodeId, key: &str) -> Option<NodeId> {
        self.entries(id).find(|&(name, child)| name == key && !self.is_null(child)).map(|(_, child)| child)
    }

    /// The node at the end of a path of keys.
    pub(crate) fn descend(&self, id: NodeId, keys: &[&str]) -> Option<NodeId> {
        keys.iter().try_fold(id, |node, key| self.child(node, key))
    }

    /// The entries of a mapping in the order they are written; none for any other node.
    pub(crate) fn entries(&self, id: NodeId) -> impl Iterator<Item = (&str, NodeId)> {
        let entries = match &self.node(id).value {
            Value::Mapping(entries) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().map(|(name, child)| (&**name, *child))
    }

    pub(crate) fn is_null(&self, id: NodeId) -> bool {
        matches!(self.node(id).value, Value::Null)
    }

    /// It is a mapping, list or text with nothing in it.
    pub(crate) fn is_empty(&self, id: NodeId) -> bool {
        match &self.node(id).value {
            Value::Text(text) => text.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Mapping(entries) => entries.is_empty(),
            Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Unsigned(_) | Value::Float(_) => false,
        }
    }

    /// The key that leads to `id`, if it is an entry of a mapping.
    fn key(&self, id: NodeId) -> Option<&str> {
        match &self.node(id).parent {
            Some((_, Step::Key(key))) => Some(key),
            _ => None,
        }
    }

    /// The place of the value of `id`.
    pub(crate) fn place(&self, id: NodeId) -> Place {
        Place { position: self.node(id).position, path: self.path(id) }
    }

    /// The place of the key that leads to `id`, or of the value if it has none.
    pub(crate) fn key_place(&self, id: NodeId) -> Place {
        let node = self.node(id);
        Place { position: node.key_position.unwrap_or(node.position), path: self.path(id) }
    }

    /// The place of an entry that `id` does not have.
    pub(crate) fn place_of_missing(&self, id: NodeId, key: &str) -> Place {
        let Place { position, path } = self.place(id);
        Place { position, path: join(path, &Step::Key(key.into())) }
    }

    /// The place of what a path of keys from the root leads to, there or not.
    pub(crate) fn place_at(&self, keys: &[&str]) -> Place {
        let mut node = Self::ROOT;
        for (depth, key) in keys.iter().enumerate() {
            match self.child(node, key) {
                Some(child) => node = child,
                None => {
                    let Place { position, path } = self.place(node);
                    let path = keys[depth..].iter().fold(path, |path, key| join(path, &Step::Key((*key).into())));
                    return Place { position, path };
                }
            }
        }
        self.place(node)
    }

    /// The place of what a path such as `weights[2].tenant` leads to from `id`. If that is not there, the place of the last
    /// on the way that is, with the whole path. The keys are names of settings.
    pub(crate) fn place_below(&self, id: NodeId, path: &str) -> Place {
        let mut reached = Some(id);
        let mut place = self.place(id);
        for step in path.split(['.', '[']).map(Step::written) {
            reached = reached.and_then(|node| self.part(node, &step));
            match reached {
                Some(part) => place = self.place(part),
                None => place.path = join(place.path, &step),
            }
        }
        place
    }

    fn part(&self, id: NodeId, step: &Step) -> Option<NodeId> {
        match (step, &self.node(id).value) {
            (Step::Key(key), _) => self.child(id, key),
            (Step::Index(index), Value::List(items)) => items.get(*index).copied(),
            (Step::Index(_), _) => None,
        }
    }

    fn path(&self, id: NodeId) -> String {
        path(&self.nodes, id)
    }
}

fn path(nodes: &[Node], id: NodeId) -> String {
    let mut steps = Vec::new();
    let mut node = &nodes[id.index()];
    while let Some((parent, step)) = &node.parent {
        steps.push(step);
        node = &nodes[parent.index()];
    }
    steps.into_iter().rev().fold(String::new(), join)
}

fn join(mut path: String, step: &Step) -> String {
    match step {
        Step::Index(index) => path + &format!("[{index}]"),
        Step::Key(key) if key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') => {
            if !path.is_empty() {
                path.push('.');
            }
            path + key
        }
        Step::Key(key) => path + &format!("[{key:?}]"),
    }
}
