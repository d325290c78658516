use std::io;
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// The process was told twice to stop.
const EXIT_SECOND_SIGNAL: i32 = 1;

/// SIGTERM and SIGINT, which mean the same: the first one asks the process to drain, the second one ends it at once.
///
/// A thread of their own takes them, with a runtime of its own: the second one works also when no thread that serves
/// gets on, be it that everything waits for a reader of the log.
#[derive(Debug)]
pub(crate) struct StopSignals {
    first: oneshot::Receiver<&'static str>,
}

impl StopSignals {
    /// From here on no signal is lost, also one that comes before [`StopSignals::first`].
    pub(crate) fn install() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let installed = {
            let _entered = runtime.enter();
            Installed { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? }
        };
        let (forward, first) = oneshot::channel();
        let body = move || runtime.block_on(watch(installed, forward));
        thread::Builder::new().name("signals".to_owned()).spawn(body)?;
        Ok(Self { first })
    }

    /// Waits for the first signal; returns its name. Cancel-safe until it has returned.
    pub(crate) async fn first(&mut self) -> &'static str {
        // Without a sender there is no thread that could tell: as good a reason to stop.
        (&mut self.first).await.unwrap_or("a failure of the thread that takes signals")
    }
}

struct Installed {
    terminate: Signal,
    interrupt: Signal,
}

impl Installed {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[expect(clippy::exit, reason = "nothing else ends a process whose threads are all blocked")]
async fn watch(mut signals: Installed, forward: oneshot::Sender<&'static str>) {
    // If nobody waits any more, the process is on its way out anyhow.
    forward.send(signals.next().await).unwrap_or_default();
    signals.next().await;
    // Not logged: that could block.
    std::process::exit(EXIT_SECOND_SIGNAL);
}
