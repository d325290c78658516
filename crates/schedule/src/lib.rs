//! Chooses the model server: profiles of filters, scorers and a picker, run over one snapshot of the
//! endpoints.
//!
//! ```text
//! candidates ──> filters ──> scorers ──> picker ──> targets      one profile
//!                                                      │
//!             profile handler <────────────────────────┘         which profile next, which is primary
//! ```
//!
//! Everything here is a function of its arguments: the generator is an argument too, so a decision can be
//! replayed from its seed.

mod profile;
mod scheduler;
mod traits;

pub use profile::{Profile, WeightedScorer};
pub use scheduler::{Decision, ProfileResult, ScheduleError, Scheduler, SchedulerError};
pub use traits::{Candidates, Filter, Next, Picker, ProfileHandler, Rng, Scorer};
