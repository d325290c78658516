//! The batch client against servers that refuse, cut and evict.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod proxy;
mod script;
mod scripted;
mod simulated;
