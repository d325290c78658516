//! The OpenAI-shaped API: what a request asks for, and how its answer is written.

mod error;
mod request;
mod response;

pub(crate) use error::ApiError;
pub(crate) use request::{ApiRequest, Model};
pub(crate) use response::{Envelope, EventWriter};

/// The two ways to ask for text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// `/v1/completions`: goes on with a prompt.
    Completions,
    /// `/v1/chat/completions`: answers messages.
    Chat,
}
