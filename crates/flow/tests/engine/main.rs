//! The engine, event by event, and under random operations.

#![expect(clippy::unwrap_used, reason = "a test may fail by panic wherever it stands")]

mod cancel;
mod evict;
mod evict_where;
mod falsified;
mod first_chunk;
mod harness;
mod inherit;
mod least_attained;
mod observe_desired;
mod observe_drain;
mod observe_pool;
mod observe_reload;
mod on_time;
mod park;
mod policies;
mod random_operations;
mod rebook;
mod refuse_by_headers;
mod release;
mod scraped;
mod start;
mod stats;
mod submit;
mod throughput;
