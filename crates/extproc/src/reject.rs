//! What a refused client sees: status, reason and body. Made here and nowhere else.

use std::borrow::Cow;

use serde_json::json;
use sluice_core::{Api, DropReason};
use sluice_payload::ParseError;
use sluice_router::Rejection;

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
    PayloadTooLarge,
    ResourceExhausted,
    ServiceUnavailable,
    Internal,
}

impl Code {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::PayloadTooLarge => "PayloadTooLarge",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Internal => "Internal",
        }
    }

    const fn http_status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::PayloadTooLarge => 413,
            Self::ResourceExhausted => 429,
            Self::ServiceUnavailable => 503,
            Self::Internal => 500,
        }
    }

    /// The status a gRPC client is given.
    const fn grpc_status(self) -> tonic::Code {
        match self {
            Self::BadRequest => tonic::Code::InvalidArgument,
            Self::PayloadTooLarge | Self::ResourceExhausted => tonic::Code::ResourceExhausted,
            Self::ServiceUnavailable => tonic::Code::Unavailable,
            Self::Internal => tonic::Code::Internal,
        }
    }

    /// The `error.type` of the OpenAI API.
    const fn openai_type(self) -> &'static str {
        match self {
            Self::BadRequest | Self::PayloadTooLarge => "invalid_request_error",
            Self::ResourceExhausted => "rate_limit_error",
            Self::ServiceUnavailable => "service_unavailable_error",
            Self::Internal => "server_error",
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

    pub(crate) fn model_missing() -> Self {
        Self::new(Code::BadRequest, "model not found in request body")
    }

    pub(crate) fn body_too_large(limit: u64) -> Self {
        Self::new(Code::PayloadTooLarge, format!("the request body is larger than {limit} bytes"))
    }

    /// The proxy is set up in a way that cannot work.
    pub(crate) fn body_mode(direction: &str, mode: &str) -> Self {
        let what = format!(
            "the proxy sends {direction} bodies in mode {mode}: set {direction}_body_mode to FULL_DUPLEX_STREAMED"
        );
        Self::new(Code::Internal, what)
    }

    pub(crate) fn render(&self, settings: SessionSettings, api: Api) -> ImmediateReply {
        let Self { code, message, reason, retry_after } = self;
        let (content_type, body) = match (settings.refusal_style, api) {
            (RefusalStyle::Api, Api::OpenAiChat | Api::OpenAiCompletions) => {
                let code_name = reason.map_or_else(|| code.as_str(), DropReason::as_str);
                let error = json!({"message": message, "type": code.openai_type(), "param": null, "code": code_name});
                ("application/json", json!({ "error": error }).to_string())
            }
            (RefusalStyle::Text, _) | (RefusalStyle::Api, Api::Passthrough) => {
                ("text/plain", format!("inference error: {} - {message}", code.as_str()))
            }
        };
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
        SessionSettings { max_request_body: 1, refusal_style, retry_after: true }
    }

    #[test]
    fn when_to_come_back_is_said_if_wanted() {
        let rejection = Rejection::NotAdmitted { outcome: Outcome::EvictedTtl, retry_after: Some(7) };
        let said = |settings| {
            let reply = Refusal::from(rejection.clone()).render(settings, Api::OpenAiChat);
            reply.headers.iter().any(|(name, value)| *name == "retry-after" && value == "7")
        };
        assert!(said(settings(RefusalStyle::Api)));
        assert!(!said(SessionSettings { retry_after: false, ..settings(RefusalStyle::Api) }));
    }

    #[test]
    fn an_openai_client_gets_json_with_the_reason() {
        let rejection = Rejection::NoCandidates { retry_after: 2 };
        let reply = Refusal::from(rejection).render(settings(RefusalStyle::Api), Api::OpenAiChat);
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
        for (style, api) in [(RefusalStyle::Text, Api::OpenAiChat), (RefusalStyle::Api, Api::Passthrough)] {
            let reply = Refusal::model_missing().render(settings(style), api);
            assert_eq!(reply.status, 400);
            assert_eq!(reply.body, "inference error: BadRequest - model not found in request body");
            assert_eq!(reply.headers, [("content-type", "text/plain".into())]);
        }
    }

    #[test]
    fn quotes_in_a_message_stay_inside_the_json() {
        let refusal = Refusal::new(Code::Internal, "a \"quoted\" word");
        let reply = refusal.render(settings(RefusalStyle::Api), Api::OpenAiCompletions);
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["error"]["message"], "a \"quoted\" word");
    }
}
