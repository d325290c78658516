use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A task's body.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// What the end of a task means for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criticality {
    /// The process cannot serve without it: if it ends before shutdown began, by return or by panic, the
    /// process ends too and names it.
    Critical,
    /// Its end, even by panic, is logged and concerns nobody else.
    Expendable,
}

/// Starts tasks on a runtime. Implemented once, in the binary, and by tests.
///
/// An implementation runs `body` until it ends or the process shuts down, reports a panic with the task's
/// name, and applies `criticality` when it ends.
pub trait Spawn: Send + Sync {
    fn spawn(&self, name: &'static str, criticality: Criticality, body: BoxFuture);

    /// The same on a thread of its own, if there are threads to be had.
    fn spawn_apart(&self, name: &'static str, criticality: Criticality, body: BoxFuture) {
        self.spawn(name, criticality, body);
    }
}

/// The only way to start a task.
#[derive(Clone)]
pub struct Tasks(Arc<dyn Spawn>);

impl Tasks {
    pub fn new(spawner: impl Spawn + 'static) -> Self {
        Self(Arc::new(spawner))
    }

    pub fn spawn(&self, name: &'static str, criticality: Criticality, body: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(name, criticality, Box::pin(body));
    }

    /// For a task that is to hold up no other and to be held up by none, however busy either is; `name` is at most 15 bytes
    /// long. It ends with the process if not before.
    pub fn spawn_apart(
        &self,
        name: &'static str,
        criticality: Criticality,
        body: impl Future<Output = ()> + Send + 'static,
    ) {
        self.0.spawn_apart(name, criticality, Box::pin(body));
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tasks")
    }
}
