//! What the tests of this crate share.
//!
//! `world` runs random operations on the engine and, beside it, on `oracle`, a naive engine that scans
//! everything; both have to say the same. `checker` finds broken invariants in the history of a run.

pub(crate) mod checker;
pub(crate) mod checker_pool;
pub(crate) mod checker_shares;
pub(crate) mod endpoints;
pub(crate) mod history;
pub(crate) mod ops;
pub(crate) mod oracle;
pub(crate) mod oracle_drain;
pub(crate) mod oracle_evict;
pub(crate) mod oracle_limits;
pub(crate) mod oracle_pool;
pub(crate) mod oracle_turns;
pub(crate) mod rig;
pub(crate) mod servers;
pub(crate) mod shrink;
pub(crate) mod world;
