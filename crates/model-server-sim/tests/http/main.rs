//! The server over real connections.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod answers;
mod departures;
mod metrics;
mod process;
mod resumption;
mod support;
