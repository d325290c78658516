//! The model by which the endpoint is asked in the place of the client's, and how the client gets its own name back.
//!
//! ```text
//! client ──"model":"chat"──> rules, or the header ──"model":"llama-v2"──> model server
//!        <─"model":"chat"──── ModelRestorer <──────"model":"llama-v2"───
//! ```
//!
//! A request is changed where its body is read here before it is placed, a response where its body passes through here.
//!
//! Clients choose both names, and how often they are written, so neither is taken on trust: a name has at most
//! [`MAX_MODEL_NAME`] bytes; a request is measured and booked with its new body before that is made; and a message of a
//! response grows by a bounded number of bytes ([`ModelRestorer`]).

use std::sync::Arc;

use bytes::Bytes;
use sluice_core::{Headers, MAX_MODEL_NAME};
use sluice_payload::{ModelReplacement, ModelRestorer, ResponseFormat};
use sluice_router::{ModelRewrites, Rewritten, Vouched};

use super::Session;
use crate::action::{Action, Notice};
use crate::message::BodyMode;
use crate::phases::{Answer, ResponsePhase};
use crate::reject::Refusal;
use crate::reply::Reply;
use crate::request_headers::{BodyLimit, path_of};

/// By these a request asks for a model in place of the one that its body names. The first counts wherever it is present.
const HEADERS: [&str; 2] = ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];

/// The model that the endpoint is asked for.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) target: Option<Arc<str>>,
    /// The rule that has chosen it; none if none has.
    pub(super) rewritten_by: Option<Arc<str>>,
}

/// A model of two names.
#[derive(Debug)]
pub(super) struct Renamed {
    model: Arc<str>,
    target: Arc<str>,
}

impl Renamed {
    /// None if the client named no model, or the one that it gets.
    pub(super) fn of(model: Option<&Arc<str>>, choice: &Choice) -> Option<Self> {
        let (model, target) = (model?, choice.target.as_ref()?);
        (model != target).then(|| Self { model: Arc::clone(model), target: Arc::clone(target) })
    }
}

impl Session {
    /// The rules that the stream goes by.
    pub(crate) fn rewrites(&self) -> &ModelRewrites {
        &self.rewrites
    }

    /// A request with these headers may have its model replaced.
    pub(super) fn may_rewrite(&self, headers: &Headers) -> bool {
        let asked = !self.rewrites.is_empty() || asked_for(headers).is_some();
        asked && self.settings.parsers.api_of(path_of(headers)).is_some_and(|api| api.names_model())
    }

    /// What is to stand in the place of `model`, which the body names if it `is_read`.
    pub(super) fn choose_model(
        &self,
        headers: &Headers,
        model: Option<&Arc<str>>,
        is_read: bool,
        random: &mut dyn FnMut() -> u64,
    ) -> Choice {
        let may_change = is_read && self.api.names_model();
        let rewritten = self.rewrites.apply(model.map(|model| &**model), random);
        if let Some(Rewritten { target, origin }) = rewritten.filter(|_| may_change) {
            return Choice { target: Some(target).filter(|target| !target.is_empty()), rewritten_by: Some(origin) };
        }
        let asked_for = asked_for(headers).filter(|_| may_change);
        Choice { target: asked_for.map(Arc::from).or_else(|| model.cloned()), rewritten_by: None }
    }

    /// What becomes of `body`, which names `model`; none if it is to stay. It is booked here, and made when the request has
    /// its endpoint: a short body may have room for very many models.
    pub(super) fn change_model(
        &self,
        choice: &Choice,
        model: Option<&Arc<str>>,
        body: &Bytes,
        actions: &mut Vec<Action>,
    ) -> Result<Option<ModelReplacement>, Refusal> {
        let target = choice.target.as_ref().filter(|&target| model != Some(target));
        let Some(change) = target.and_then(|target| ModelReplacement::new(body.clone(), target)) else {
            return Ok(None);
        };
        let limit = self.settings.max_request_body;
        if change.length() as u64 > limit {
            return Err(Refusal::changed_body_too_large(BodyLimit::of_requests(limit)));
        }
        let held = change.length().max(body.len()) as u64;
        actions.push(Action::Holding(self.header_bytes + held));
        Ok(Some(change))
    }

    /// The body of a request is not seen before it is placed: what it names is what the model server gets.
    pub(super) fn note_unread(&self, headers: &Headers, actions: &mut Vec<Action>) {
        if self.may_rewrite(headers) && !self.is_upgrade {
            actions.push(Action::Notice(Notice::ModelsStay { mode: self.request_mode() }));
        }
    }

    /// What puts the client's name back into a response of this format.
    pub(super) fn restorer(&self, format: ResponseFormat) -> Option<Box<ModelRestorer>> {
        let Renamed { model, target } = self.renamed.as_ref()?;
        ModelRestorer::new(format, target, model).map(Box::new)
    }

    /// The same, if the response passes through here.
    pub(super) fn where_seen(
        &self,
        restorer: Option<Box<ModelRestorer>>,
        actions: &mut Vec<Action>,
    ) -> Option<Box<ModelRestorer>> {
        if restorer.is_some() && self.response_mode() == BodyMode::None {
            actions.push(Action::Notice(Notice::TargetsShow));
            return None;
        }
        restorer
    }

    /// A response breaks off, in the midst of what may have been the name. Where every message has one answer it is too
    /// late for that.
    pub(super) fn release_held(&mut self, actions: &mut Vec<Action>) {
        if let ResponsePhase::Passing { restorer: Some(restorer), answer: Answer::Echo, .. } = &mut self.response {
            let held = Bytes::from(restorer.finish());
            if !held.is_empty() {
                self.reply_pieces(held, false, Reply::ResponseBody, actions);
            }
        }
    }
}

/// What goes on of a response in the place of `chunk`; none: the chunk itself.
pub(super) fn restored(restorer: &mut Option<Box<ModelRestorer>>, chunk: &[u8], end_of_stream: bool) -> Option<Bytes> {
    let restorer = restorer.as_mut()?;
    let mut changed = restorer.push(chunk)?;
    if end_of_stream {
        changed.extend(restorer.finish());
    }
    Some(changed.into())
}

/// Where clients are not to be trusted, what the proxy says takes the place of what they ask for.
pub(crate) fn heed_only_vouched(headers: &mut Headers, vouched: Option<&Vouched>) {
    // The lines stay, so that they are taken out of what goes on.
    HEADERS.iter().for_each(|name| headers.empty(name));
    if let Some(model) = vouched.and_then(|vouched| vouched.model_name_rewrite.as_deref()) {
        headers.push(HEADERS[0], model.as_bytes().to_vec());
    }
}

/// The header, if it asks for a model by a name that is too long.
pub(super) fn asks_for_too_long(headers: &Headers) -> Option<&'static str> {
    let (name, value) = asking(headers)?;
    (value.len() > MAX_MODEL_NAME).then_some(name)
}

fn asked_for(headers: &Headers) -> Option<&str> {
    let (_, value) = asking(headers)?;
    std::str::from_utf8(value).ok().filter(|model| !model.is_empty())
}

/// The header that counts.
fn asking(headers: &Headers) -> Option<(&'static str, &Bytes)> {
    HEADERS.iter().find_map(|name| Some((*name, headers.last(name)?)))
}
