use std::fmt;
use std::sync::Arc;

use crate::{Headers, Time};

/// Bytes of the longest name that a model may have, whoever names it: as many as a path may have, which some names are.
/// A name is kept as long as its request runs, and written into every event of the response.
pub const MAX_MODEL_NAME: usize = 4_096;

/// The id a request is logged under: the client's `x-request-id`, or one made here. Never a key: clients
/// may repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(pub Arc<str>);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which API a request speaks, told by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Api {
    /// `…/chat/completions`
    OpenAiChat,
    /// `…/completions`
    OpenAiCompletions,
    /// `…/responses`
    OpenAiResponses,
    /// `…/conversations`
    OpenAiConversations,
    /// What else of OpenAI's names a model, and generates no text: `…/embeddings`, `…/images/generations`
    OpenAiOther,
    /// `…/messages`
    AnthropicMessages,
    /// `…/inference/v1/generate`, by tokens instead of text
    VllmGenerate,
    /// Anything else: forwarded as it is, its body never read.
    Passthrough,
}

impl Api {
    /// A request without a model is none of this API.
    pub const fn requires_model(self) -> bool {
        match self {
            Self::OpenAiChat
            | Self::OpenAiCompletions
            | Self::OpenAiResponses
            | Self::OpenAiOther
            | Self::AnthropicMessages => true,
            Self::OpenAiConversations | Self::VllmGenerate | Self::Passthrough => false,
        }
    }

    /// Its requests have a place for the name of a model.
    pub const fn names_model(self) -> bool {
        !matches!(self, Self::Passthrough)
    }
}

/// A request as the picker understands it. Immutable once made.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    /// When its headers arrived.
    pub received: Time,
    pub api: Api,
    pub headers: Headers,
    /// The model the client asked for; none where the API carries none.
    pub model: Option<Arc<str>>,
    /// The model that the endpoint is asked for: `model`, if nothing has put another in its place.
    pub target_model: Option<Arc<str>>,
    /// What has chosen `target_model`, as metrics call it; none if no rule has.
    pub rewritten_by: Option<Arc<str>>,
    /// The client asked for a streamed response.
    pub stream: bool,
    /// The client's bound on generated tokens.
    pub max_output_tokens: Option<u64>,
    /// Bytes of the body as received.
    pub body_bytes: u64,
}

/// Tokens a model server reports for one request. A field the server did not send is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    pub prompt: Option<u64>,
    pub completion: Option<u64>,
    /// Prompt tokens that were found in the server's cache.
    pub cached: Option<u64>,
}

impl TokenUsage {
    /// Takes over every field that `newer` has.
    pub fn merge(&mut self, newer: Self) {
        let Self { prompt, completion, cached } = newer;
        self.prompt = prompt.or(self.prompt);
        self.completion = completion.or(self.completion);
        self.cached = cached.or(self.cached);
    }

    pub const fn is_empty(&self) -> bool {
        self.prompt.is_none() && self.completion.is_none() && self.cached.is_none()
    }
}
