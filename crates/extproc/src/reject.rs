//! What a refused client sees: status, reason and body. Made here and nowhere else.

use std::borrow::Cow;
use std::time::Duration;

use sluice_core::{DropReason, MAX_MODEL_NAME};
use sluice_payload::ParseError;
use sluice_router::Rejection;

use crate::error_shape::ErrorShape;
use crate::message::BodyMode;
use crate::request_headers::BodyLimit;
use crate::session::SessionSettings;

/// The shape of a refusal's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusalStyle {
    /// JSON as the API called would send it.
    #[default]
    Api,
    /// Plain text: `inference error: <code> - <message>`.
    Text,
}

/// A request that is not served, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) reason: Option<DropReason>,
    /// Seconds after which trying again makes sense.
    pub(crate) retry_after: Option<u64>,
}

/// The kind of a refusal, under the name that metrics use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    BadRequest,
    RequestTimeout,
    PayloadTooLarge,
    ResourceExhausted,
    HeadersTooLarge,
    Internal,
    ServiceUnavailable,
    GatewayTimeout,
}

impl Code {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::RequestTimeout => "RequestTimeout",
            Self::PayloadTooLarge => "PayloadTooLarge",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::HeadersTooLarge => "RequestHeaderFieldsTooLarge",
            Self::Internal => "Internal",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::GatewayTimeout => "GatewayTimeout",
        }
    }

    pub(crate) const fn http_status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::RequestTimeout => 408,
            Self::PayloadTooLarge => 413,
            Self::ResourceExhausted => 429,
            Self::HeadersTooLarge => 431,
            Self::Internal => 500,
            Self::ServiceUnavailable => 503,
            Self::GatewayTimeout => 504,
        }
    }

    /// The status a gRPC client is given.
    const fn grpc_status(self) -> tonic::Code {
        match self {
            Self::BadRequest => tonic::Code::InvalidArgument,
            Self::RequestTimeout | Self::GatewayTimeout => tonic::Code::DeadlineExceeded,
            Self::PayloadTooLarge | Self::ResourceExhausted | Self::HeadersTooLarge => tonic::Code::ResourceExhausted,
            Self::Internal => tonic::Code::Internal,
            Self::ServiceUnavailable => tonic::Code::Unavailable,
        }
    }
}

/// A refusal as it goes to the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImmediateReply {
    pub(crate) status: u16,
    pub(crate) grpc_status: tonic::Code,
    pub(crate) headers: Vec<(&'static str, Cow<'static, str>)>,
    pub(crate) body: String,
}

impl Refusal {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), reason: None, retry_after: None }
    }

    pub(crate) fn no_parser(path: &str) -> Self {
        let path = path.split_once('?').map_or(path, |(path, _query)| path);
        let shown: String = path.chars().take(200).collect();
        Self::new(Code::BadRequest, format!("no parser registered matching path suffix for: {shown}"))
    }

    pub(crate) fn model_missing() -> Self {
        Self::new(Code::BadRequest, "model not found in request body")
    }

    /// `header` asks for a model by a name that is too long.
    pub(crate) fn model_too_long(header: &'static str) -> Self {
        Self::new(Code::BadRequest, format!("the header {header} is longer than {MAX_MODEL_NAME} bytes"))
    }

    pub(crate) fn body_too_large(limit: BodyLimit) -> Self {
        let BodyLimit { bytes, setting } = limit;
        Self::new(Code::PayloadTooLarge, format!("the request body is larger than {bytes} bytes ({setting})"))
    }

    /// It came within the limit, and is beyond it with the model in it that the endpoint is asked for.
    pub(crate) fn changed_body_too_large(limit: BodyLimit) -> Self {
        let BodyLimit { bytes, setting } = limit;
        let what = format!("the body with its model replaced is larger than {bytes} bytes ({setting})");
        Self::new(Code::PayloadTooLarge, what)
    }

    pub(crate) fn headers_too_large(limit: u64) -> Self {
        let what = format!("the request headers are larger than {limit} bytes (maxRequestHeaders)");
        Self::new(Code::HeadersTooLarge, what)
    }

    pub(crate) fn too_many_headers(limit: usize) -> Self {
        Self::new(Code::HeadersTooLarge, format!("the request has more than {limit} header lines"))
    }

    /// The body of the request stopped arriving.
    pub(crate) fn body_stalled(limit: Duration) -> Self {
        Self::new(Code::RequestTimeout, format!("nothing of the request body arrived for {}s", limit.as_secs_f64()))
    }

    /// The proxy sent more in one message than is taken.
    pub(crate) fn message_too_large() -> Self {
        let what = "a message of the proxy is larger than the picker takes: raise --grpc-max-recv-msg-size, or lower \
                    per_connection_buffer_limit_bytes in the proxy";
        Self::new(Code::PayloadTooLarge, what)
    }

    /// There is no room for the request.
    pub(crate) fn out_of_body_memory(retry_after: u64) -> Self {
        let reason = Some(DropReason::RejectedSaturated);
        let what = "too many bytes of requests wait already";
        Self { reason, retry_after: Some(retry_after), ..Self::new(Code::ResourceExhausted, what) }
    }

    pub(crate) fn shutting_down(retry_after: u64) -> Self {
        let reason = Some(DropReason::RejectedShuttingDown);
        Self {
            reason,
            retry_after: Some(retry_after),
            ..Self::new(Code::ServiceUnavailable, "the picker is shutting down")
        }
    }

    /// The request had its place, which goes to more urgent work. `retry_after` to the second, here.
    pub(crate) fn evicted(retry_after: Duration) -> Self {
        let seconds = retry_after.saturating_add(Duration::from_millis(500)).as_secs();
        let reason = Some(DropReason::Evicted);
        let what = "request evicted by flow control";
        Self { reason, retry_after: Some(seconds), ..Self::new(Code::ResourceExhausted, what) }
    }

    /// The proxy is set up in a way that cannot work.
    pub(crate) fn body_mode(direction: &str, mode: BodyMode) -> Self {
        let mode = mode.as_str();
        let what = format!(
            "the proxy sends {direction} bodies in mode {mode}: set {direction}_body_mode to FULL_DUPLEX_STREAMED"
        );
        Self::new(Code::Internal, what)
    }

    /// In mode BUFFERED the decision goes with the answer to the body, and here is none.
    pub(crate) fn trailers_only() -> Self {
        let what = "a request with trailers and without a body cannot be placed in mode BUFFERED: \
                    set request_body_mode to FULL_DUPLEX_STREAMED";
        Self::new(Code::Internal, what)
    }

    /// The proxy and the picker do not agree what comes next.
    pub(crate) fn out_of_order(what: &str) -> Self {
        Self::new(Code::Internal, format!("unexpected from the proxy: {what}"))
    }

    /// The picker has a bug.
    pub(crate) fn failed() -> Self {
        Self::new(Code::Internal, "the picker failed on this request")
    }

    /// The proxy has ended a request, with `status`, that was not placed yet. None if that is for the proxy alone to
    /// tell.
    pub(crate) fn given_up_by_proxy(status: u16, details: Option<&str>) -> Option<Self> {
        let code = match status {
            408 => Code::RequestTimeout,
            413 => Code::PayloadTooLarge,
            504 => Code::GatewayTimeout,
            _ => return None,
        };
        let details = details.unwrap_or("no details");
        // The proxy's settings behind its words.
        let setting = match details {
            "stream_idle_timeout" => "stream_idle_timeout of the connection manager or idle_timeout of the route",
            "max_duration_timeout" => "max_stream_duration",
            "request_overall_timeout" => "request_timeout of the connection manager",
            "request_payload_too_large" => "per_connection_buffer_limit_bytes of the listener",
            _ => "the limit that was hit",
        };
        let what =
            format!("the proxy ended the request before it had an endpoint ({details}): raise {setting} in the proxy");
        Some(Self::new(code, what))
    }

    pub(crate) fn render(&self, settings: SessionSettings, shape: ErrorShape) -> ImmediateReply {
        let Self { code, message, reason, retry_after } = self;
        let shape = match settings.refusal_style {
            RefusalStyle::Api => shape,
            // As llm-d-router's EPP words it: without the kind in front.
            RefusalStyle::Text if *reason == Some(DropReason::Evicted) => ErrorShape::Grpc,
            RefusalStyle::Text => ErrorShape::Text,
        };
        let detail = reason.map_or_else(|| code.as_str(), DropReason::as_str);
        let (content_type, body) = shape.body(*code, detail, message);
        let mut headers = vec![("content-type", Cow::Borrowed(content_type))];
        headers.extend(reason.map(|reason| ("x-llm-d-request-dropped-reason", Cow::Borrowed(reason.as_str()))));
        let retry_after = retry_after.filter(|_| settings.retry_after);
        headers.extend(retry_after.map(|seconds| ("retry-after", Cow::Owned(seconds.to_string()))));
        ImmediateReply { status: code.http_status(), grpc_status: code.grpc_status(), headers, body }
    }
}

impl From<ParseError> for Refusal {
    fn from(error: ParseError) -> Self {
        Self::new(Code::BadRequest, error.to_string())
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        let retry_after = rejection.retry_after();
        let (code, reason) = match rejection {
            Rejection::UnknownObjective { .. } => (Code::BadRequest, None),
            Rejection::TooLarge { .. } => (Code::PayloadTooLarge, None),
            Rejection::Shed { .. } => (Code::ResourceExhausted, None),
            Rejection::NotAdmitted { outcome, .. } => {
                let reason = outcome.reason();
                let saturated = matches!(reason, Some(DropReason::RejectedSaturated | DropReason::RejectedTtlExpired));
                (if saturated { Code::ResourceExhausted } else { Code::ServiceUnavailable }, reason)
            }
            Rejection::NoCandidates { .. } => (Code::ServiceUnavailable, Some(DropReason::RejectedNoEndpoints)),
            Rejection::NoneAvailable { .. } => (Code::ResourceExhausted, Some(DropReason::RejectedSaturated)),
            Rejection::Scheduling(_) => (Code::Internal, None),
        };
        Self { code, message: rejection.to_string(), reason, retry_after }
    }
}

#[cfg(test)]
mod tests {
    use sluice_flow::Outcome;

    use super::*;

    const fn settings(refusal_style: RefusalStyle) -> SessionSettings {
        SessionSettings { refusal_style, ..SessionSettings::TEST }
    }

    #[test]
    fn when_to_come_back_is_said_if_wanted() {
        let rejection = Rejection::NotAdmitted { outcome: Outcome::EvictedTtl, retry_after: Some(7) };
        let said = |settings| {
            let reply = Refusal::from(rejection.clone()).render(settings, ErrorShape::OpenAi);
            reply.headers.iter().any(|(name, value)| *name == "retry-after" && value == "7")
        };
        assert!(said(settings(RefusalStyle::Api)));
        assert!(!said(SessionSettings { retry_after: false, ..settings(RefusalStyle::Api) }));
    }

    #[test]
    fn an_openai_client_gets_json_with_the_reason() {
        let rejection = Rejection::NoCandidates { retry_after: 2 };
        let reply = Refusal::from(rejection).render(settings(RefusalStyle::Api), ErrorShape::OpenAi);
        assert_eq!(reply.status, 503);
        assert_eq!(reply.grpc_status, tonic::Code::Unavailable);
        let headers = [
            ("content-type", "application/json"),
            ("x-llm-d-request-dropped-reason", "rejected-no-endpoints"),
            ("retry-after", "2"),
        ];
        assert_eq!(reply.headers, headers.map(|(name, value)| (name, value.into())));
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["error"]["code"], "rejected-no-endpoints");
        assert_eq!(body["error"]["message"], "failed to find endpoint candidates for serving the request");
    }

    #[test]
    fn the_text_style_is_one_line() {
        for shape in [ErrorShape::Anthropic, ErrorShape::OpenAi, ErrorShape::Responses] {
            let reply = Refusal::model_missing().render(settings(RefusalStyle::Text), shape);
            assert_eq!(reply.status, 400);
            assert_eq!(reply.body, "inference error: BadRequest - model not found in request body");
            assert_eq!(reply.headers, [("content-type", "text/plain".into())]);
        }
    }

    #[test]
    fn a_request_that_the_proxy_gave_up_is_told_which_setting_did_it() {
        for (status, details, code, setting) in [
            (504, Some("stream_idle_timeout"), Code::GatewayTimeout, "stream_idle_timeout"),
            (504, Some("max_duration_timeout"), Code::GatewayTimeout, "max_stream_duration"),
            (408, Some("request_overall_timeout"), Code::RequestTimeout, "request_timeout"),
            (413, Some("request_payload_too_large"), Code::PayloadTooLarge, "per_connection_buffer_limit_bytes"),
            (504, None, Code::GatewayTimeout, "the limit that was hit"),
        ] {
            let refusal = Refusal::given_up_by_proxy(status, details).unwrap();
            assert_eq!((refusal.code, refusal.code.http_status()), (code, status));
            assert!(refusal.message.contains(setting), "{}", refusal.message);
        }
        for status in [200, 403, 429, 500, 503] {
            assert_eq!(Refusal::given_up_by_proxy(status, Some("stream_idle_timeout")), None, "{status}");
        }
    }
}
