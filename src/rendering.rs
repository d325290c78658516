//! Pages that take a while to write: off the runtime's workers, so that picking goes on meanwhile.

use std::fmt;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError, Weak};

use axum::body::Bytes;
use tokio::sync::{Mutex, OnceCell};

/// The page, or what was wrong.
pub(crate) type Rendered = Result<Bytes, String>;

/// One page, written anew for those who ask for it, and once for all who ask before the writing begins:
///
/// ```text
/// page() ─> joins the turn that is next ─> waits for the writer ─> the turn closes, is written, goes to all who joined
/// ```
///
/// Whoever waits holds no page, and a page lives no longer than those who read it.
#[derive(Clone)]
pub(crate) struct Rendering {
    write: Arc<dyn Fn() -> Result<String, String> + Send + Sync>,
    writer: Writer,
    next: Arc<SyncMutex<Weak<Turn>>>,
}

/// Writes one page at a time. Clones are the same writer.
pub(crate) type Writer = Arc<Mutex<()>>;

type Turn = OnceCell<Rendered>;

impl Rendering {
    pub(crate) fn new(writer: Writer, write: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self { write: Arc::new(write), writer, next: Arc::default() }
    }

    /// The page as it is now or later.
    pub(crate) async fn page(&self) -> Rendered {
        let turn = self.join();
        // Should the one who writes go away, another of those who joined begins again.
        turn.get_or_init(|| self.write(&turn)).await.clone()
    }

    fn join(&self) -> Arc<Turn> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.upgrade().unwrap_or_else(|| {
            let turn = Arc::default();
            *next = Arc::downgrade(&turn);
            turn
        })
    }

    async fn write(&self, turn: &Arc<Turn>) -> Rendered {
        let writing = Arc::clone(&self.writer).lock_owned().await;
        self.close(turn);
        let write = Arc::clone(&self.write);
        #[expect(clippy::disallowed_methods, reason = "its end is awaited, and a panic becomes the answer")]
        let written = tokio::task::spawn_blocking(move || {
            // In here, since the writing goes on when nobody waits for it any more.
            let _writing = writing;
            write().map(Bytes::from)
        });
        written.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Who asks from now on may want to see what happens after `turn` has begun to be written.
    fn close(&self, turn: &Arc<Turn>) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.ptr_eq(&Arc::downgrade(turn)) {
            *next = Weak::new();
        }
    }
}

impl fmt::Debug for Rendering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendering").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::future::{FutureExt as _, join_all};

    use super::*;

    /// Writes the number of the page once `allowed` says so.
    struct World {
        rendering: Rendering,
        allow: mpsc::Sender<()>,
        begun: Arc<AtomicU32>,
    }

    fn world() -> World {
        let (allow, allowed) = mpsc::channel();
        let (allowed, begun) = (SyncMutex::new(allowed), Arc::new(AtomicU32::new(0)));
        let counter = Arc::clone(&begun);
        let write = move || {
            let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
            // Two at a time would show here.
            let allowed = allowed.try_lock().map_err(|error| error.to_string())?;
            allowed.recv_timeout(Duration::from_secs(30)).map_err(|error| error.to_string())?;
            Ok(number.to_string())
        };
        World { rendering: Rendering::new(Writer::default(), write), allow, begun }
    }

    impl World {
        async fn until_begun(&self, number: u32) {
            while self.begun.load(Ordering::SeqCst) < number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// On one worker: whatever blocks it blocks the test.
    #[tokio::test]
    async fn other_tasks_run_while_a_page_is_written() {
        let world = world();
        let mut pages = [Box::pin(world.rendering.page()), Box::pin(world.rendering.page())];
        for page in &mut pages {
            assert!(page.now_or_never().is_none());
        }
        world.until_begun(1).await;
        world.allow.send(()).unwrap();
        world.allow.send(()).unwrap();
        assert_eq!(join_all(pages).await, [Ok("1".into()), Ok("2".into())]);
    }

    #[tokio::test]
    async fn who_asks_during_the_writing_shares_the_next_page() {
        let world = world();
        let mut first = Box::pin(world.rendering.page());
        assert!((&mut first).now_or_never().is_none());
        world.until_begun(1).await;
        let mut later: Vec<_> = (0..100).map(|_| Box::pin(world.rendering.page())).collect();
        for page in &mut later {
            assert!(page.now_or_never().is_none());
        }
        world.allow.send(()).unwrap();
        world.allow.send(()).unwrap();
        assert_eq!(first.await, Ok("1".into()));
        assert_eq!(join_all(later).await, vec![Ok("2".into()); 100]);
        assert_eq!(world.begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_writing_that_nobody_waits_for_is_still_the_only_one() {
        let world = world();
        let mut gone = Box::pin(world.rendering.page());
        assert!((&mut gone).now_or_never().is_none());
        world.until_begun(1).await;
        drop(gone);
        let mut page = Box::pin(world.rendering.page());
        assert!((&mut page).now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(world.begun.load(Ordering::SeqCst), 1);
        world.allow.send(()).unwrap();
        world.allow.send(()).unwrap();
        assert_eq!(page.await, Ok("2".into()));
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_and_the_next_page_is_written() {
        let fails = AtomicU32::new(1);
        let write = move || {
            assert_eq!(fails.swap(0, Ordering::SeqCst), 0, "on purpose");
            Ok("page".to_owned())
        };
        let rendering = Rendering::new(Writer::default(), write);
        assert!(rendering.page().await.is_err_and(|error| error.contains("panicked")));
        assert_eq!(rendering.page().await, Ok("page".into()));
    }
}
