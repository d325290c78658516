//! The way of a request: which endpoints it may use, which one it gets, and the booking that makes it count.

pub mod admission;
mod identity;
mod rejection;
mod route;

pub use identity::{DEFAULT_TENANT, Identities, Identity, IdentityRules, Objectives, Vouched};
pub use rejection::Rejection;
pub use route::{Intent, Routed, Router};
