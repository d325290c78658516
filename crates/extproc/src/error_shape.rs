//! The shape that an error has in the API that was called.

use std::time::Duration;

use serde_json::json;
use sluice_core::{DropReason, Headers};

use crate::reject::{Code, Refusal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    /// Also where nothing is known of the API.
    OpenAi,
    /// The same, but for its streams, which have kinds of events.
    Responses,
    Anthropic,
    /// The proxy makes a gRPC message of the text.
    Grpc,
    /// One line, for people.
    Text,
}

impl ErrorShape {
    /// Told by how a path ends and by what the body is declared to be.
    pub(crate) fn of(path: &str, headers: &Headers) -> Self {
        if headers.last_str("content-type").is_some_and(is_grpc) {
            return Self::Grpc;
        }
        let path = path.split_once('?').map_or(path, |(path, _query)| path);
        let mut segments = path.trim_end_matches('/').rsplit('/');
        match (segments.next(), segments.next()) {
            (Some("messages"), _) | (Some("count_tokens"), Some("messages")) => Self::Anthropic,
            (Some("responses"), _) => Self::Responses,
            _ => Self::OpenAi,
        }
    }

    /// The content type and the body of a refusal. `detail` says more precisely than `code` what the matter is.
    pub(crate) fn body(self, code: Code, detail: &str, message: &str) -> (&'static str, String) {
        match self {
            Self::OpenAi | Self::Responses => {
                let error = json!({"message": message, "type": openai_type(code), "param": null, "code": detail});
                ("application/json", json!({ "error": error }).to_string())
            }
            Self::Anthropic => {
                let error = json!({"type": anthropic_type(code), "message": message});
                ("application/json", json!({"type": "error", "error": error}).to_string())
            }
            Self::Grpc => ("text/plain", message.to_owned()),
            Self::Text => ("text/plain", format!("inference error: {} - {message}", code.as_str())),
        }
    }

    /// An event that ends a stream in which a response had begun, after so many others. In all shapes the field `error`
    /// has the same fields.
    pub(crate) fn last_event(self, refusal: &Refusal, retry_after: Option<Duration>, events: u64) -> String {
        let Refusal { code, message, reason, retry_after: _ } = refusal;
        let kind = if self == Self::Anthropic { anthropic_type(*code) } else { openai_type(*code) };
        let reason = reason.map(DropReason::as_str);
        let mut error = json!({"message": message, "type": kind, "code": code.http_status(), "reason": reason});
        if let Some(retry_after) = retry_after {
            error["retry_after_ms"] = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX).into();
        }
        match self {
            Self::Anthropic => format!("event: error\ndata: {}\n\n", json!({"type": "error", "error": error})),
            // The API's own event has its fields beside `type`, and numbers events from 0.
            Self::Responses => {
                let event = json!({"type": "error", "code": reason, "message": message, "param": null,
                    "sequence_number": events, "error": error});
                format!("event: error\ndata: {event}\n\n")
            }
            Self::OpenAi | Self::Grpc | Self::Text => format!("data: {}\n\n", json!({ "error": error })),
        }
    }
}

/// As a proxy decides whether it answers in gRPC: gRPC-Web is none.
fn is_grpc(content_type: &str) -> bool {
    content_type.strip_prefix("application/grpc").is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

const fn openai_type(code: Code) -> &'static str {
    match code {
        Code::BadRequest | Code::PayloadTooLarge | Code::RequestTimeout | Code::HeadersTooLarge => {
            "invalid_request_error"
        }
        Code::ResourceExhausted => "rate_limit_error",
        Code::ServiceUnavailable => "service_unavailable_error",
        Code::Internal | Code::GatewayTimeout => "server_error",
    }
}

const fn anthropic_type(code: Code) -> &'static str {
    match code {
        Code::BadRequest | Code::HeadersTooLarge => "invalid_request_error",
        Code::PayloadTooLarge => "request_too_large",
        Code::ResourceExhausted => "rate_limit_error",
        Code::ServiceUnavailable => "overloaded_error",
        Code::RequestTimeout | Code::GatewayTimeout => "timeout_error",
        Code::Internal => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_tells_the_shape() {
        for (path, shape) in [
            ("/v1/chat/completions", ErrorShape::OpenAi),
            ("/v1/chat/completions/render", ErrorShape::OpenAi),
            ("/team/v1/embeddings/?x=/messages", ErrorShape::OpenAi),
            ("/v1/models", ErrorShape::OpenAi),
            ("/v1/responses", ErrorShape::Responses),
            ("/v1/responses/resp_1", ErrorShape::OpenAi),
            ("/v1/messages", ErrorShape::Anthropic),
            ("/v1/messages/count_tokens", ErrorShape::Anthropic),
            ("/count_tokens", ErrorShape::OpenAi),
            ("/v1/mymessages", ErrorShape::OpenAi),
            ("/generate", ErrorShape::OpenAi),
            ("", ErrorShape::OpenAi),
        ] {
            assert_eq!(ErrorShape::of(path, &Headers::new()), shape, "{path}");
        }
    }

    #[test]
    fn a_grpc_client_is_told_by_its_content_type() {
        let shape = |content_type: &'static str| {
            let mut headers = Headers::new();
            headers.push("content-type", content_type);
            ErrorShape::of("/v1/messages", &headers)
        };
        for grpc in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert_eq!(shape(grpc), ErrorShape::Grpc, "{grpc}");
        }
        for other in ["application/grpc-web", "application/grpc-web+proto", "application/json"] {
            assert_eq!(shape(other), ErrorShape::Anthropic, "{other}");
        }
    }

    #[test]
    fn an_anthropic_error_has_its_own_envelope() {
        let (content_type, body) = ErrorShape::Anthropic.body(Code::ResourceExhausted, "rejected-saturated", "full");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(content_type, "application/json");
        assert_eq!(body, json!({"type": "error", "error": {"type": "rate_limit_error", "message": "full"}}));
    }

    #[test]
    fn quotes_in_a_message_stay_inside_the_json() {
        for shape in [ErrorShape::OpenAi, ErrorShape::Anthropic] {
            let (_, body) = shape.body(Code::Internal, "Internal", "a \"quoted\" word");
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["error"]["message"], "a \"quoted\" word");
        }
    }
}
