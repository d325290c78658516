use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Endpoint, FlowKey, Time};

use crate::Stages;

/// What a request brings to admission.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Tenant and priority.
    pub flow: FlowKey,
    /// Bytes of the body, counted against queue limits.
    pub bytes: u64,
    /// Estimated tokens: what a lease is charged beside one request.
    pub tokens: u64,
    /// When the headers arrived.
    pub received: Time,
    /// `x-llm-d-inference-ttl`.
    pub ttl: TtlHeader,
    /// `x-llm-d-slo-ttft-ms`; none if absent or not to be honoured.
    pub ttft: Option<Duration>,
    /// The deadline of the stream the request came on.
    pub stream_deadline: Option<Time>,
    /// Every stage it may use; it is charged in each until it starts.
    pub stages: Stages,
    /// The stages without which it cannot be served at all.
    pub required: Stages,
    /// The endpoints it may use; none means the whole pool.
    pub eligible: Option<Arc<dyn Eligibility>>,
}

impl Ask {
    /// An ask for one request in the decode stage of the whole pool, without any deadline of its own.
    pub const fn new(flow: FlowKey, received: Time) -> Self {
        Self {
            flow,
            bytes: 0,
            tokens: 0,
            received,
            ttl: TtlHeader::Absent,
            ttft: None,
            stream_deadline: None,
            stages: Stages::DECODE,
            required: Stages::DECODE,
            eligible: None,
        }
    }
}

/// A bound on the time in the queue that the client set itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TtlHeader {
    #[default]
    Absent,
    /// Unparsable or negative: ignored and counted.
    Invalid,
    /// From arrival; zero means admit at once or refuse.
    Within(Duration),
}

/// Which endpoints a request may use: a subset hint, an affinity, a label.
///
/// The answer for one endpoint must not change while a ticket holds the value.
pub trait Eligibility: fmt::Debug + Send + Sync {
    fn allows(&self, endpoint: &Endpoint) -> bool;
}
