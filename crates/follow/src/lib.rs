//! A file that others replace while the process runs: read once at the start, and followed from then on by a thread of
//! its own. A file can block whoever reads it for as long as it likes (a dead mount), so no thread that serves requests
//! ever touches it.
//!
//! ```text
//! notify ──ring──> Bell ──> Follower ── stat ──differs?──> read ──another content?──> Consumer
//!                   ^          │ once a second, whatever the bell says
//! process ends ─stop┘          └─ arms the watch anew when other directories hold the file
//! ```
//!
//! Whoever reads several files that belong together tells by [`Settled`] when they have been replaced for good.

mod bell;
mod file;
mod follower;
mod settled;
mod watch;

pub use file::{FileError, FollowedFile};
pub use follower::{CHECK_EVERY, Consumer, DEBOUNCE, Follower, Verdict};
pub use settled::{Look, Settled};
