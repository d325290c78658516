//! Flow control as a user sees it: requests that wait in the picker, in whose order they enter the pool, and what they
//! are told if they do not.
//!
//! Most of these tests run against model servers that count ([`sluice_testkit::CountingUpstream`]) and hold each
//! request until the test lets it end, so that "full" and "has room" are facts rather than matters of timing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod ceilings;
mod concurrency;
mod growth;
mod hints;
mod identity;
mod ledger;
mod limits;
mod outcomes;
mod shedding;
mod shutdown;
pub(crate) mod support;
mod turns;
