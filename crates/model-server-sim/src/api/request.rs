//! What a request asks for.

use std::num::NonZeroU32;

use serde::Deserialize;

use super::{Api, ApiError};
use crate::engine::Ask;
use crate::settings::Settings;
use crate::text::{Context, VOCABULARY, Word};

/// What the completions API produces where a request sets no limit. Chat has no such limit: it ends where the
/// model ends the text or has no more room.
const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// The model as requests see it.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// Never empty; the first one is meant where a request names none.
    pub(crate) names: Vec<String>,
    pub(crate) max_len: u32,
    seed: u64,
}

impl Model {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { names: settings.models.clone(), max_len: settings.max_model_len.get(), seed: settings.seed }
    }

    fn resolve(&self, requested: Option<&str>) -> Result<String, ApiError> {
        let served = match requested {
            None => self.names.first(),
            Some(requested) => self.names.iter().find(|&name| name == requested),
        };
        served.cloned().ok_or_else(|| ApiError::UnknownModel(requested.unwrap_or_default().to_owned()))
    }
}

/// A request, understood.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    /// The model's name as the request says it.
    pub(crate) model: String,
    pub(crate) ask: Ask,
    pub(crate) stream: bool,
    /// Ends a stream with the usage.
    pub(crate) include_usage: bool,
}

impl ApiRequest {
    /// Reads the body of a request. Fields that are not listed in [`Body`], such as the temperature, are
    /// accepted and have no effect.
    pub(crate) fn parse(api: Api, body: &[u8], model: &Model) -> Result<Self, ApiError> {
        let body: Body = serde_json::from_slice(body)?;
        let name = model.resolve(body.model.as_deref())?;
        if body.n.is_some_and(|n| n != 1) {
            return Err(invalid("n", "only n = 1 is supported"));
        }
        let mut context = Context::new(model.seed);
        match api {
            Api::Completions => push_prompt(&mut context, body.prompt.as_ref())?,
            Api::Chat => push_messages(&mut context, body.messages.as_deref().unwrap_or_default(), body.turn()?)?,
        }
        let max_tokens = match api {
            Api::Completions => body.max_tokens.or_else(|| {
                let room = model.max_len.saturating_sub(context.tokens());
                NonZeroU32::new(room.min(DEFAULT_COMPLETION_TOKENS))
            }),
            Api::Chat => body.max_completion_tokens.or(body.max_tokens),
        };
        Ok(Self {
            model: name,
            ask: Ask { context, max_tokens, ignore_eos: body.ignore_eos.unwrap_or(false) },
            stream: body.stream.unwrap_or(false),
            include_usage: body.stream_options.is_some_and(|options| options.include_usage.unwrap_or(false)),
        })
    }
}

/// The fields of both APIs. Every field may be missing or null.
#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    prompt: Option<Prompt>,
    messages: Option<Vec<Message>>,
    max_tokens: Option<NonZeroU32>,
    max_completion_tokens: Option<NonZeroU32>,
    ignore_eos: Option<bool>,
    n: Option<u32>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
}

impl Body {
    fn turn(&self) -> Result<Turn, ApiError> {
        match (self.add_generation_prompt.unwrap_or(true), self.continue_final_message.unwrap_or(false)) {
            (true, true) => {
                let message = "continue_final_message requires add_generation_prompt to be false";
                Err(invalid("continue_final_message", message))
            }
            (true, false) => Ok(Turn::Begin),
            (false, true) => Ok(Turn::Continue),
            (false, false) => Ok(Turn::Open),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "prompt must be a string, an array of token ids, or an array of one of these")]
enum Prompt {
    Text(String),
    TokenIds(Vec<u32>),
    Texts(Vec<String>),
    ManyTokenIds(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "content must be a string or an array of text parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// What the model is to say after the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// A message of its own.
    Begin,
    /// The rest of the last message.
    Continue,
    /// Whatever follows.
    Open,
}

fn push_prompt(context: &mut Context, prompt: Option<&Prompt>) -> Result<(), ApiError> {
    match prompt {
        None => Err(invalid("prompt", "a prompt is required")),
        Some(Prompt::Text(text)) => {
            context.push_text(text.as_bytes());
            Ok(())
        }
        Some(Prompt::TokenIds(ids)) => push_token_ids(context, ids),
        Some(Prompt::Texts(texts)) => {
            context.push_text(only(texts)?.as_bytes());
            Ok(())
        }
        Some(Prompt::ManyTokenIds(prompts)) => push_token_ids(context, only(prompts)?),
    }
}

fn push_token_ids(context: &mut Context, ids: &[u32]) -> Result<(), ApiError> {
    for &id in ids {
        let word = Word::from_token_id(id)
            .ok_or_else(|| invalid("prompt", format!("token id {id} is outside the vocabulary of {VOCABULARY}")))?;
        context.push_word(word);
    }
    Ok(())
}

fn only<T>(prompts: &[T]) -> Result<&T, ApiError> {
    match prompts {
        [prompt] => Ok(prompt),
        _ => Err(invalid("prompt", "only one prompt per request is supported")),
    }
}

/// Writes the messages as the model reads them:
///
/// ```text
/// <|user|>
/// what is a word?<|end|>
/// <|assistant|>
/// ```
///
/// A message that is to be continued has no end mark, so that an answer cut off and sent back as the last
/// message stands in the same text as when it was written.
fn push_messages(context: &mut Context, messages: &[Message], turn: Turn) -> Result<(), ApiError> {
    if messages.is_empty() {
        return Err(invalid("messages", "at least one message is required"));
    }
    let last = messages.len() - 1;
    for (index, Message { role, content }) in messages.iter().enumerate() {
        push_role(context, role);
        match content {
            None => {}
            Some(Content::Text(text)) => context.push_text(text.as_bytes()),
            Some(Content::Parts(parts)) => push_parts(context, parts)?,
        }
        if index < last || turn != Turn::Continue {
            context.push_text(b"<|end|>\n");
        }
    }
    if turn == Turn::Begin {
        push_role(context, "assistant");
    }
    Ok(())
}

fn push_role(context: &mut Context, role: &str) {
    context.push_text(b"<|");
    context.push_text(role.as_bytes());
    context.push_text(b"|>\n");
}

fn push_parts(context: &mut Context, parts: &[Part]) -> Result<(), ApiError> {
    for Part { r#type, text } in parts {
        match (r#type.as_str(), text) {
            ("text", Some(text)) => context.push_text(text.as_bytes()),
            ("text", None) => return Err(invalid("messages", "a text part has no text")),
            (other, _) => {
                return Err(invalid("messages", format!("content parts of type `{other}` are not supported")));
            }
        }
    }
    Ok(())
}

fn invalid(param: &'static str, message: impl Into<String>) -> ApiError {
    ApiError::Invalid { param, message: message.into() }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
