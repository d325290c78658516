//! What a real Envoy does to the picker's streams, and what becomes of the requests: one test or more for each thing
//! that the product relies on. Where Envoy behaves differently in its next version, these tests say so.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod bypass;
mod deaths;
mod failure_modes;
mod grpc;
mod leaving;
mod metadata;
pub(crate) mod modes;
mod outside_full_duplex;
mod raw_http2;
mod timeouts;
mod trailers;
mod unread;
mod uploads;
