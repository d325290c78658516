//! The admission engine: decides which request may enter the pool, and when.
//!
//! ```text
//!                      ┌─────────────────────────── bands, highest first ───────────────────────────┐
//! submit ──> limits ──>│ flow queues ──ordering──> fairness ──> gate: saturation < ceiling?         │──> grant
//!                      │ parked tickets ──room on one of their endpoints──┘                         │      │
//!                      └────────────────────────────────────────────────────────────────────────────┘      │
//!                                          ^                                                              v
//!                        release, cancel ──┴────────────── started <── start ──────────────────────── lease
//!                                                                      park ──> back among the waiting
//! ```
//!
//! [`Engine`] is synchronous and deterministic. Time is an argument; what it wants done comes out of
//! [`Engine::poll`] as [`Effect`]s. Every verb runs the dispatch until the gate closes or nothing
//! dispatchable is left, so that capacity is used in the call that frees it, and an idle engine has no
//! wake-ups.
//!
//! | verb | says |
//! |---|---|
//! | [`submit`](Engine::submit) | a request wants in |
//! | [`cancel`](Engine::cancel) | whoever waited for it has gone |
//! | [`start`](Engine::start), [`park`](Engine::park) | a grant is used, or cannot be: every endpoint it may use is full |
//! | [`first_chunk`](Engine::first_chunk), [`release`](Engine::release) | a started request is past its prefill, or over |
//! | [`scraped`](Engine::scraped) | an endpoint has said how it is |
//! | [`observe`](Engine::observe) | pool, objectives or configuration changed, or the end has come |
//! | [`on_time`](Engine::on_time) | the time of [`next_wakeup`](Engine::next_wakeup) has come |
//!
//! One [`Ticket`] names a request from submit to end: queued → granted → (parked → granted)* → started →
//! ended. A lease is charged in the step that grants it, so that the next decision sees it.

mod ask;
mod band;
mod config;
mod demand;
mod effect;
mod engine;
mod eviction;
mod gate;
mod heap;
mod invariant;
mod item;
mod line;
mod load;
pub mod policy;
mod pool;
mod queue;
mod rate;
mod signal;
mod stale;
mod start;
mod stats;
mod ticket;

pub use ask::{Ask, Eligibility, TtlHeader};
pub use band::Waiting;
pub use config::{
    BandConfig, Budgets, Config, DesiredPriorities, DryRun, EvictionConfig, GlobalLimits, OTHER_TENANT, VictimOrder,
    WhenFull,
};
pub use effect::{Effect, Ended, Outcome, RevokeCause, SOFT_BAND_LIMIT, Verdict};
pub use engine::Engine;
pub use invariant::{InvariantId, Violations};
pub use load::{EndpointKey, Load, Partition, Partitions, Stage, Stages};
pub use pool::EndpointStats;
pub use signal::{PoolMember, Signal};
pub use start::{Booking, Park, Start, StartError, TokensAtFirstChunk};
pub use stats::{BandStats, BandTotals, FlowStats, LeaseStats, RevocationStats, Stats};
pub use ticket::{FlowId, Ticket, Waiter};
