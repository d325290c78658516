//! The model by which the endpoint is asked in the place of the client's, and how the client gets its own name back.
//!
//! ```text
//! client ──"model":"chat"──> rules, or the header ──"model":"llama-v2"──> model server
//!        <─"model":"chat"──── ModelRestorer <──────"model":"llama-v2"───
//! ```
//!
//! A request is changed where its body is read here before it is placed, a response where its body passes through here.

use std::sync::Arc;

use bytes::Bytes;
use sluice_core::Headers;
use sluice_payload::{ModelRestorer, ResponseFormat, replace_model};
use sluice_router::{ModelRewrites, Rewritten};

use super::Session;
use crate::action::{Action, Notice};
use crate::message::BodyMode;
use crate::phases::{Answer, ResponsePhase};
use crate::reply::Reply;
use crate::request_headers::path_of;

/// By these a request asks for a model in place of the one that its body names. The first counts wherever it is present.
const HEADERS: [&str; 2] = ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];

/// The model that the endpoint is asked for.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) target: Option<Arc<str>>,
    /// The rule that has chosen it; none if none has.
    pub(super) rewritten_by: Option<Arc<str>>,
}

impl Choice {
    /// The body that goes on in the place of `body`, which names `model`; none if that is to stay.
    pub(super) fn change(&self, model: Option<&str>, body: &[u8]) -> Option<Bytes> {
        let target = self.target.as_deref().filter(|&target| model != Some(target))?;
        replace_model(body, target).map(Bytes::from)
    }
}

/// A model of two names.
#[derive(Debug)]
pub(super) struct Renamed {
    model: Arc<str>,
    target: Arc<str>,
}

impl Renamed {
    /// None if the client named no model, or the one that it gets.
    pub(super) fn of(model: Option<&str>, choice: &Choice) -> Option<Self> {
        let (model, target) = (model?, choice.target.as_ref()?);
        (model != &**target).then(|| Self { model: model.into(), target: Arc::clone(target) })
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
        model: Option<&str>,
        is_read: bool,
        random: &mut dyn FnMut() -> u64,
    ) -> Choice {
        let may_change = is_read && self.api.names_model();
        if let Some(Rewritten { target, origin }) = self.rewrites.apply(model, random).filter(|_| may_change) {
            return Choice { target: Some(target).filter(|target| !target.is_empty()), rewritten_by: Some(origin) };
        }
        let asked_for = asked_for(headers).filter(|_| may_change);
        Choice { target: asked_for.or(model).map(Arc::from), rewritten_by: None }
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

fn asked_for(headers: &Headers) -> Option<&str> {
    let present = HEADERS.iter().find(|name| headers.contains(name))?;
    headers.last_str(present).filter(|model| !model.is_empty())
}
