//! What the bodies of inference APIs say: the few fields of a request that admission and picking need, and the
//! token usage that a response reports.
//!
//! Requests are read once, whole, and never changed here. Responses are read as they pass: [`UsageScanner`]
//! takes chunks cut anywhere and keeps no more than one event or one usage object.

mod json_usage;
mod parser;
mod request;
mod sse_usage;
mod usage;

pub use parser::{Parser, Parsers};
pub use request::{ParseError, RequestFields, parse_request};
pub use usage::{ResponseFormat, UsageScanner};
