use std::thread;

/// The exit code of a process whose engine may be half changed.
const EXIT_CODE: i32 = 70;

/// Held together with the engine's lock: a panic in between ends the process. Serving on with an engine that
/// was interrupted in the middle of a change could lose requests or pass a ceiling unseen.
#[derive(Debug)]
pub(super) struct ExitOnPanic {
    panicking_before: bool,
}

impl ExitOnPanic {
    pub(super) fn arm() -> Self {
        Self { panicking_before: thread::panicking() }
    }
}

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        // A permit may be dropped by a panic elsewhere; that one is not the engine's.
        if thread::panicking() && !self.panicking_before {
            std::process::exit(EXIT_CODE);
        }
    }
}
