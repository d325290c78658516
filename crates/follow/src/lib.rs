//! A file that others replace while the process runs: read once at the start, and followed from then on by a thread of
//! its own. A file can block whoever reads it for as long as it likes (a dead mount), so no thread that serves requests
//! ever touches it.
//!
//! ```text
//! notify ──ring──> Bell ──> Follower ── stat ──differs?──> read ──another content that lasts?──> Consumer
//!                   ^          │ every 750 ms, whatever the bell says
//! process ends ─stop┘          └─ arms the watch anew when other directories hold the file
//! ```
//!
//! Several small files that make up one value, such as a certificate and its key, are a [`FileSet`]: they are read again
//! once a second, and [`FilesFollower`] takes over what has been replaced for good. [`pem`] reads what such files hold.

mod bell;
mod file;
mod files;
mod follower;
pub mod pem;
mod settled;
mod watch;

pub use file::{FileError, FollowedFile, read_at_most};
pub use files::{FileSet, FilesFollower, read_file};
pub use follower::{CHECK_EVERY, Consumer, DEBOUNCE, Follower, UNCHANGED_FOR, Verdict};
