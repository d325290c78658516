//! What is said of objectives and rewrites to those who look at them: conditions in their status.
//!
//! ```text
//! Index ──verdicts──> told before, or there already? ──no, and this process leads──> server-side apply
//!   ^                        (pure: Ledger)                                               │
//!   └───────────────────────────── watch: the status as it is now <───────────────────────┘
//! ```
//!
//! Each thing is said once: what a server keeps of it, or somebody else makes of it, is no reason to say it again. So a
//! write cannot be the cause of the next one. What changes faster than it is written is written as it is at last.

mod ledger;
mod pauses;
mod reporter;
mod verdict;

pub use self::reporter::Reporter;
pub use self::verdict::{Conditions, Observed, Stand, Subject, SubjectKind, Verdict};
pub(crate) use self::verdict::{of_objectives, of_rewrites};
