//! Refusals, in OpenAI's shape and with vLLM's types.

use hyper::StatusCode;
use serde_json::json;

use crate::engine::AskError;

/// Why a request is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("the body is not valid JSON for this API: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the body could not be read")]
    Unreadable,
    #[error("the body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("{message}")]
    Invalid { param: &'static str, message: String },
    #[error(transparent)]
    Unanswerable(#[from] AskError),
    #[error("the model `{0}` does not exist")]
    UnknownModel(String),
    #[error("no such path")]
    UnknownPath,
    #[error("the method is not allowed for this path")]
    MethodNotAllowed,
    #[error("the metrics could not be written: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl ApiError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(_) | Self::Unreadable | Self::Invalid { .. } | Self::Unanswerable(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownModel(_) | Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Metrics(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The JSON body of the refusal.
    pub(crate) fn body(&self) -> String {
        let status = self.status();
        let kind = match status {
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::INTERNAL_SERVER_ERROR => "InternalServerError",
            _ => "BadRequestError",
        };
        let param = match self {
            Self::Invalid { param, .. } => Some(*param),
            Self::UnknownModel(_) => Some("model"),
            Self::Unanswerable(AskError::OutputTooLong { .. }) => Some("max_tokens"),
            Self::Unanswerable(AskError::EmptyPrompt | AskError::PromptTooLong { .. })
            | Self::Malformed(_)
            | Self::Unreadable
            | Self::TooLarge { .. }
            | Self::UnknownPath
            | Self::MethodNotAllowed
            | Self::Metrics(_) => None,
        };
        let error = json!({"message": self.to_string(), "type": kind, "param": param, "code": status.as_u16()});
        json!({ "error": error }).to_string()
    }
}
