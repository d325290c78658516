//! Thousands of requests at the same time, and what may happen to all of them at once: clients that leave in a burst, a
//! picker that stalls, a picker that dies, a picker that hands over.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod crowd;
mod replicas;
mod stalls;
mod waiting;
