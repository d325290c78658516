use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use sluice_core::{BoxFuture, Criticality, Spawn};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Runs tasks on a runtime; a critical one that ends is reported.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeTasks {
    runtime: Handle,
    fallen: mpsc::UnboundedSender<&'static str>,
}

impl RuntimeTasks {
    /// The receiver gets the name of each critical task that ended.
    pub(crate) fn new(runtime: Handle) -> (Self, mpsc::UnboundedReceiver<&'static str>) {
        let (fallen, reports) = mpsc::unbounded_channel();
        (Self { runtime, fallen }, reports)
    }
}

impl Spawn for RuntimeTasks {
    fn spawn(&self, name: &'static str, criticality: Criticality, body: BoxFuture) {
        let fallen = self.fallen.clone();
        let watched = async move {
            let outcome = AssertUnwindSafe(body).catch_unwind().await;
            if outcome.is_err() {
                tracing::error!(task = name, "task panicked");
            }
            if criticality == Criticality::Critical {
                // Nobody listens any more once shutdown began, and then it does not matter.
                fallen.send(name).unwrap_or_default();
            }
        };
        drop(self.runtime.spawn(watched));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_critical_task_that_ends_is_named() {
        let (tasks, mut reports) = RuntimeTasks::new(Handle::current());
        tasks.spawn("expendable", Criticality::Expendable, Box::pin(async { panic!("on purpose") }));
        tasks.spawn("returns", Criticality::Critical, Box::pin(async {}));
        assert_eq!(reports.recv().await, Some("returns"));
        tasks.spawn("panics", Criticality::Critical, Box::pin(async { panic!("on purpose") }));
        assert_eq!(reports.recv().await, Some("panics"));
    }
}
