//! The way of a request: which endpoints it may use, which one it gets, and the booking that makes it count.

mod route;

pub use route::{Intent, Rejection, Routed, Router};
