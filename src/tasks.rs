use std::panic::AssertUnwindSafe;
use std::thread;

use futures_util::FutureExt as _;
use sluice_core::{BoxFuture, Criticality, Spawn};
use tokio::runtime::{Builder, Handle};
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

impl RuntimeTasks {
    /// Runs `body` and reports its end.
    async fn watch(self, name: &'static str, criticality: Criticality, body: BoxFuture) {
        let outcome = AssertUnwindSafe(body).catch_unwind().await;
        if outcome.is_err() {
            tracing::error!(task = name, "task panicked");
        }
        self.ended(name, criticality);
    }

    fn ended(&self, name: &'static str, criticality: Criticality) {
        if criticality == Criticality::Critical {
            // Nobody listens any more once shutdown began, and then it does not matter.
            self.fallen.send(name).unwrap_or_default();
        }
    }
}

impl Spawn for RuntimeTasks {
    fn spawn(&self, name: &'static str, criticality: Criticality, body: BoxFuture) {
        drop(self.runtime.spawn(self.clone().watch(name, criticality, body)));
    }

    fn spawn_apart(&self, name: &'static str, criticality: Criticality, body: BoxFuture) {
        let watched = self.clone().watch(name, criticality, body);
        let runtime = Builder::new_current_thread().enable_all().build();
        let thread = thread::Builder::new().name(name.to_owned());
        let started = runtime.and_then(|runtime| thread.spawn(move || runtime.block_on(watched)));
        if let Err(error) = started {
            tracing::error!(task = name, %error, "there is no thread for the task");
            self.ended(name, criticality);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    #[test]
    fn a_task_apart_has_its_own_thread_and_is_not_held_up_by_others() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (tasks, mut reports) = RuntimeTasks::new(runtime.handle().clone());
        let (tell, told) = std::sync::mpsc::channel();
        // The runtime of the others does not run at all.
        let body = async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send(thread::current().name().map(str::to_owned)).unwrap();
        };
        tasks.spawn_apart("apart", Criticality::Critical, Box::pin(body));
        assert_eq!(told.recv().unwrap().as_deref(), Some("apart"));
        assert_eq!(reports.blocking_recv(), Some("apart"));
        tasks.spawn_apart("panics", Criticality::Critical, Box::pin(async { panic!("on purpose") }));
        assert_eq!(reports.blocking_recv(), Some("panics"));
    }
}
