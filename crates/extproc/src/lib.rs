//! Envoy's external processing protocol.
//!
//! ```text
//!  Envoy ─messages─> convert ─> Session::on_message ─> actions ──┬─ Route ──> Router
//!    ^                             (pure)   ^                    ├─ Reply ──> convert ─> Envoy
//!    │                                      └──── on_routed ─────┤
//!    └── one gRPC stream = one HTTP request                      └─ End, Close
//! ```
//!
//! [`Session`] decides and does nothing else: a message in, actions out. The service drives one session per
//! stream, and the protocol's own types appear only there and in `convert`.

mod action;
mod body_memory;
mod convert;
mod driver;
mod error_shape;
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

pub use metrics::Metrics;
pub use reject::RefusalStyle;
pub use service::{Bodies, Service, ServiceSettings};
