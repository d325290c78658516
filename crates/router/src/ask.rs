//! What a request brings to admission, read from its headers.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Endpoint, FlowKey, GoDuration, Headers, Request, Time};
use sluice_data::Subset;
use sluice_flow::{Ask, Eligibility, Stages, TtlHeader};

use crate::Identity;

/// The endpoints that a gateway's hint allows, without one all, except those that filters rule out.
#[derive(Debug, Default)]
pub(crate) struct Allowed {
    pub(crate) subset: Option<Subset>,
    /// Serial numbers, in order. Endpoints that come later are not among them: they have to be tried.
    pub(crate) ruled_out: Vec<u64>,
}

impl Eligibility for Allowed {
    fn allows(&self, endpoint: &Endpoint) -> bool {
        self.subset.as_ref().is_none_or(|subset| subset.allows(endpoint))
            && self.ruled_out.binary_search(&endpoint.serial()).is_err()
    }
}

/// What is known before the body: enough to tell whether the request would be refused whatever it says.
pub(crate) fn ask_of_headers(identity: &Identity, bytes: u64) -> Ask {
    let flow = FlowKey { tenant: Arc::clone(&identity.tenant), priority: identity.priority };
    Ask { bytes, ..Ask::new(flow, Time::ZERO) }
}

/// `held_bytes` of the request are kept while it waits; `tokens` is what it is taken for, `deadline` until when its
/// stream lets it wait.
pub(crate) fn ask(
    request: &Request,
    identity: &Identity,
    held_bytes: u64,
    subset: Option<&Subset>,
    tokens: u64,
    deadline: Option<Time>,
) -> Ask {
    Ask {
        flow: FlowKey { tenant: Arc::clone(&identity.tenant), priority: identity.priority },
        bytes: held_bytes,
        tokens,
        received: request.received,
        ttl: ttl(&request.headers),
        ttft: ttft(&request.headers),
        stream_deadline: deadline,
        stages: Stages::DECODE,
        required: Stages::DECODE,
        eligible: subset.map(|subset| {
            let allowed = Allowed { subset: Some(subset.clone()), ruled_out: Vec::new() };
            Arc::new(allowed) as Arc<dyn Eligibility>
        }),
    }
}

/// `x-llm-d-inference-ttl`: how long the client is ready to wait, as Go writes durations.
pub(crate) fn ttl(headers: &Headers) -> TtlHeader {
    let Some(value) = headers.last("x-llm-d-inference-ttl") else { return TtlHeader::Absent };
    let duration = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse::<GoDuration>().ok());
    duration.and_then(GoDuration::non_negative).map_or(TtlHeader::Invalid, TtlHeader::Within)
}

/// `x-llm-d-slo-ttft-ms`, or its older name where that is absent: whole milliseconds until the first token. None for
/// anything else.
fn ttft(headers: &Headers) -> Option<Duration> {
    const LONGEST: u64 = i64::MAX as u64 / 1_000_000;
    let value = headers.last("x-llm-d-slo-ttft-ms").or_else(|| headers.last("x-slo-ttft-ms"))?;
    let millis: u64 = std::str::from_utf8(value).ok()?.trim().parse().ok()?;
    (millis <= LONGEST).then(|| Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &str, value: &[u8]) -> Headers {
        let mut headers = Headers::new();
        headers.push(name, value.to_vec());
        headers
    }

    #[test]
    fn a_ttl_is_a_go_duration() {
        let ttl = |value: &[u8]| ttl(&headers("X-LLM-D-Inference-TTL", value));
        assert_eq!(ttl(b"2s"), TtlHeader::Within(Duration::from_secs(2)));
        assert_eq!(ttl(b" 1m30s "), TtlHeader::Within(Duration::from_secs(90)));
        assert_eq!(ttl(b"0s"), TtlHeader::Within(Duration::ZERO));
        for bad in [&b"-2s"[..], b"2", b"soon", b"", b"\xff", b"99999999999999999h"] {
            assert_eq!(ttl(bad), TtlHeader::Invalid, "{bad:?}");
        }
        assert_eq!(super::ttl(&Headers::new()), TtlHeader::Absent);
    }

    #[test]
    fn a_first_token_target_is_whole_milliseconds() {
        let read = |value: &[u8]| ttft(&headers("x-llm-d-slo-ttft-ms", value));
        assert_eq!(read(b"250"), Some(Duration::from_millis(250)));
        assert_eq!(read(b" 0 "), Some(Duration::ZERO));
        for bad in [&b"-1"[..], b"1.5", b"NaN", b"", b"\xff", b"9223372036855", b"99999999999999999999"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(ttft(&headers("x-slo-ttft-ms", b"3")), Some(Duration::from_millis(3)));
        let mut both = headers("x-slo-ttft-ms", b"3");
        both.push("x-llm-d-slo-ttft-ms", "");
        assert_eq!(ttft(&both), None, "the present name counts wherever it is present");
    }
}
