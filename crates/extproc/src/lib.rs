//! Envoy's external processing protocol.
//!
//! ```text
//!  proxy ─messages─> convert ─> Session ─> actions ──┬─ Route ──> Router ──┐
//!    ^                          (pure)               ├─ Reply ──> convert ─┼─> proxy
//!    │                            ^                  └─ End, Close         │
//!    │                            └───────────── on_routed ────────────────┘
//!    └── one gRPC stream = one HTTP request
//! ```
//!
//! [`Session`](session::Session) decides and does nothing else: a message in, actions out. A
//! [`Driver`](driver::Driver) drives one session per stream and holds what the request holds. The protocol's own types
//! appear only there, in [`service`] and in [`convert`].

mod action;
mod body_memory;
mod convert;
#[cfg(test)]
mod documentation_tests;
mod driver;
mod ended;
mod error_shape;
mod event_ends;
mod eviction_metrics;
mod gave_up;
mod ids;
mod message;
mod metrics;
mod notices;
mod phases;
mod reject;
mod reply;
mod request_headers;
mod service;
mod session;
mod timer;
mod trailer_watch;
mod unread;

pub use metrics::Metrics;
pub use reject::RefusalStyle;
pub use service::{Bodies, MidStream, Server, Service, ServiceSettings};
pub use trailer_watch::Peer;
