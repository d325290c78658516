use std::fmt;
use std::sync::Arc;

/// How urgent a request is: higher is more important. Work below zero is *sheddable*: it may be refused
/// or evicted to make room for other work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub i32);

impl Priority {
    pub const fn is_sheddable(self) -> bool {
        self.0 < 0
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One tenant's queue inside one priority band.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The fairness id the client was given or sent.
    pub tenant: Arc<str>,
    pub priority: Priority,
}
