use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tracing::{Dispatch, Level};

/// Collects what this project logs, all fields of an event in one text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl Lines {
    /// Collects what `work` logs on this thread.
    pub(crate) fn hear<T>(&self, work: impl FnOnce() -> T) -> T {
        // Where there is one subscriber only, an event that is logged for the first time on a thread that has none is never
        // heard of again, on no thread. Tests run side by side: so there are two.
        static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Lines::default()));
        LazyLock::force(&ANOTHER);
        tracing::subscriber::with_default(self.clone(), work)
    }

    /// What was logged since the last call.
    pub(crate) fn take(&self) -> Vec<(Level, String)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Collects events, all fields in one text.
impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("sluice")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}
