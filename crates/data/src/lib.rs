//! The endpoints of the pool: where they come from, which are there now, and what this process has in flight
//! on each.
//!
//! ```text
//! file discovery ──> EndpointTable ──snapshot──> router, scheduler
//!                                                   │ Permit::start
//!                                                   v
//!                                                InFlight        RAII: dropped = released
//! ```

mod discovery;

pub use discovery::{Discovery, FileDiscovery};
