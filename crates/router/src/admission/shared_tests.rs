use std::sync::{Arc, LazyLock, PoisonError};

use sluice_core::{Priority, SystemClock};
use sluice_flow::{BandConfig, Config};
use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};
use tracing::{Dispatch, Level};

use super::*;

/// What was logged, all fields in one text.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl Lines {
    /// What `work` logs on this thread.
    fn of(work: impl FnOnce()) -> Vec<(Level, String)> {
        // Where there is one subscriber only, an event that is logged for the first time on a thread that has none is never
        // heard of again, on no thread. Tests run side by side: so there are two.
        static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Lines::default()));
        LazyLock::force(&ANOTHER);
        let lines = Self::default();
        tracing::subscriber::with_default(lines.clone(), work);
        lines.lines().clone()
    }

    fn lines(&self) -> MutexGuard<'_, Vec<(Level, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.lines().push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}

#[test]
fn too_many_bands_are_logged_once_with_their_number() {
    let template = BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin));
    let config = Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(ConcurrencyDetector::default()));
    let shared = Shared::new(Engine::new(config), Arc::new(SystemClock::start()));
    let name = |count: i32| {
        let named = (1..=count).map(Priority).collect();
        shared.call(|engine, now| engine.observe(now, Signal::Desired(named)));
    };
    let lines = Lines::of(|| [63, 64, 80, 64].into_iter().for_each(name));
    let [(level, text)] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(*level, Level::WARN);
    assert!(text.contains("bands=65") && text.contains("soft_limit=64"), "{text}");
}
