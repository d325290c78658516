//! The process as its supervisor and its peers see it: exit codes, signals, health, TLS, and what it does when the system
//! gives it nothing.
#![expect(clippy::disallowed_methods, reason = "waits for another process, which has a clock of its own")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod agreement;
mod check;
mod client;
mod client_certificates;
mod connections;
mod debug;
mod health;
mod raw_http2;
mod reload;
mod setup;
mod signals;
mod support;
mod tls;
mod unread;
