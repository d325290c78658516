//! The words of the domain, shared by every other crate.
//!
//! Nothing here does I/O, reads a clock on its own account or knows a protocol. The one exception is
//! [`SystemClock`], the single place where the process reads the monotonic clock.

mod attributes;
mod drop_reason;
mod endpoint;
mod flow_key;
mod go_duration;
mod headers;
mod request;
mod scraped;
mod suggest;
mod tasks;
mod time;
mod token_estimate;

pub use attributes::{Attributes, Slot, SlotAllocator};
pub use drop_reason::{DropReason, TerminationCause};
pub use endpoint::{Endpoint, EndpointId, EndpointLoad, EndpointUid};
pub use flow_key::{FlowKey, Priority};
pub use go_duration::{GoDuration, GoDurationError};
pub use headers::Headers;
pub use request::{Api, MAX_MODEL_NAME, Request, RequestId, TokenUsage};
pub use scraped::{CacheGeometry, LoraAdapters, Scraped};
pub use suggest::nearest;
pub use tasks::{BoxFuture, Criticality, Spawn, Tasks};
pub use time::{Clock, SystemClock, Time};
pub use token_estimate::{OutputEstimate, TokenEstimate};
