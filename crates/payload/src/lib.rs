//! What the bodies of inference APIs say: the few fields of a request that admission and picking need, and the
//! token usage that a response reports.
//!
//! Requests are read once, whole. Responses are read as they pass: [`UsageScanner`] takes chunks cut anywhere and keeps
//! no more than one event or one usage object. The one thing that changes is the name of the model: [`ModelReplacement`]
//! in a request, [`ModelRestorer`] in its response.

mod json_usage;
mod model_field;
mod model_restorer;
mod parser;
mod request;
mod sse_usage;
mod usage;

pub use model_field::ModelReplacement;
pub use model_restorer::ModelRestorer;
pub use parser::{Parser, Parsers};
pub use request::{ParseError, RequestFields, parse_request};
pub use usage::{ResponseFormat, UsageScanner};
