//! What is said of objectives and rewrites to those who look at them: conditions in their status.
//!
//! ```text
//! Index ──verdicts──> told before, or there already? ──no, and this process leads──> server-side apply
//!   ^                        (pure: Ledger)                                               │
//!   └───────────────────────────── watch: the status as it is now <───────────────────────┘
//! ```
//!
//! What changes faster than it is written is written as it is at last. A status that somebody else has edited is made
//! right again, at longer and longer intervals while it does not stay so: neither another writer nor a server that keeps
//! less than it is told can make a loop of it. An object that refers to another pool by now gets back what was said of
//! it, by an apply of nothing.

mod ledger;
mod pauses;
mod reporter;
mod verdict;

pub use self::reporter::Reporter;
pub use self::verdict::{Bands, Conditions, Observed, Stand, Subject, SubjectKind, Verdict};
pub(crate) use self::verdict::{of_objectives, of_rewrites, released, reporters};
