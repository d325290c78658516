use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sluice_core::TokenEstimate;
use sluice_data::{Discovery, EngineMappings, MetricsSource};
use sluice_flow::policy::{FairnessPolicy, OrderingPolicy, SaturationDetector, UsageLimitPolicy};
use sluice_payload::Parser;
use sluice_schedule::{Filter, Picker, ProfileHandler, Scorer};

use crate::diagnostics::{Diagnostics, Place, Remark};
use crate::document::{Document, NodeId, parameter_names};
use crate::files::{FileReport, NamedFile};

/// A kind of plugin that a configuration can name.
///
/// ```text
/// plugins:
///   - name: spread            any name; the type if there is none
///     type: random-picker     Plugin::TYPE
///     parameters: {...}       Plugin::Params
/// ```
pub trait Plugin {
    /// What the configuration calls it.
    const TYPE: &'static str;
    const STABILITY: Stability;

    /// What it can be told. Unknown parameters are refused; absent parameters are read as an empty mapping,
    /// so a field without a default is one that has to be given. Written out again they show the defaults that were
    /// filled in; null stands for a parameter that is not set. Of two
    /// instances with the same name that are written out alike, the first one goes on in place of the second.
    type Params: DeserializeOwned + Serialize;

    /// Makes an instance. It must not start anything: the configuration may yet turn out to be wrong.
    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError>;
}

/// How much may be expected of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// May change or go at any time; has to be allowed by `--allow-experimental-plugins`.
    Alpha,
    Beta,
    Stable,
}

/// The extension points that an instance fills.
#[derive(Clone, Debug, Default)]
pub struct Roles {
    pub filter: Option<Arc<dyn Filter>>,
    pub scorer: Option<Arc<dyn Scorer>>,
    pub picker: Option<Arc<dyn Picker>>,
    pub profile_handler: Option<Arc<dyn ProfileHandler>>,
    pub discovery: Option<Discovery>,
    pub ordering: Option<Arc<dyn OrderingPolicy>>,
    pub fairness: Option<Arc<dyn FairnessPolicy>>,
    pub usage_limit: Option<Arc<dyn UsageLimitPolicy>>,
    pub detector: Option<Arc<dyn SaturationDetector>>,
    pub parser: Option<Parser>,
    pub token_estimate: Option<TokenEstimate>,
    /// Headers that name the tenant of a request without a fairness id, the first non-empty one counting; in lower
    /// case.
    pub tenant_headers: Option<Vec<String>>,
    /// Where endpoints serve their metrics.
    pub metrics_source: Option<MetricsSource>,
    /// How these metrics are read.
    pub metrics_extractor: Option<Arc<EngineMappings>>,
    /// It acts on what model servers say of themselves ([`Endpoint::scraped`](sluice_core::Endpoint::scraped)). Nothing
    /// is scraped by default unless such a plugin is in use.
    pub reads_scraped: bool,
    /// It acts on this. Where no declared plugin brings it, the default one for it is filled in.
    pub needs: Option<Produced>,
    pub produces: Option<Produced>,
}

/// What one plugin works out for others, about a request and an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Produced {
    /// How much of a prompt an endpoint has in its cache.
    PrefixMatches,
}

impl Produced {
    /// The type of the plugin that brings it by default.
    pub(crate) const fn default_producer(self) -> &'static str {
        match self {
            Self::PrefixMatches => "approx-prefix-cache-producer",
        }
    }
}

impl Roles {
    pub fn filter(filter: impl Filter + 'static) -> Self {
        Self { filter: Some(Arc::new(filter)), ..Self::default() }
    }

    pub fn scorer(scorer: impl Scorer + 'static) -> Self {
        Self { scorer: Some(Arc::new(scorer)), ..Self::default() }
    }

    pub fn picker(picker: impl Picker + 'static) -> Self {
        Self { picker: Some(Arc::new(picker)), ..Self::default() }
    }

    pub fn profile_handler(handler: impl ProfileHandler + 'static) -> Self {
        Self { profile_handler: Some(Arc::new(handler)), ..Self::default() }
    }

    pub fn discovery(discovery: Discovery) -> Self {
        Self { discovery: Some(discovery), ..Self::default() }
    }

    pub fn ordering(ordering: impl OrderingPolicy + 'static) -> Self {
        Self { ordering: Some(Arc::new(ordering)), ..Self::default() }
    }

    pub fn fairness(fairness: impl FairnessPolicy + 'static) -> Self {
        Self { fairness: Some(Arc::new(fairness)), ..Self::default() }
    }

    pub fn usage_limit(usage_limit: impl UsageLimitPolicy + 'static) -> Self {
        Self { usage_limit: Some(Arc::new(usage_limit)), ..Self::default() }
    }

    pub fn detector(detector: impl SaturationDetector + 'static) -> Self {
        Self { detector: Some(Arc::new(detector)), ..Self::default() }
    }

    pub fn parser(parser: Parser) -> Self {
        Self { parser: Some(parser), ..Self::default() }
    }

    pub fn token_estimate(estimate: TokenEstimate) -> Self {
        Self { token_estimate: Some(estimate), ..Self::default() }
    }

    pub fn tenant_headers(headers: Vec<String>) -> Self {
        Self { tenant_headers: Some(headers), ..Self::default() }
    }

    pub fn metrics_source(source: MetricsSource) -> Self {
        Self { metrics_source: Some(source), ..Self::default() }
    }

    pub fn metrics_extractor(engines: EngineMappings) -> Self {
        Self { metrics_extractor: Some(Arc::new(engines)), ..Self::default() }
    }

    pub fn producer(produced: Produced) -> Self {
        Self { produces: Some(produced), ..Self::default() }
    }

    /// The same, of a plugin that acts on what another one brings.
    #[must_use]
    pub fn needing(self, produced: Produced) -> Self {
        Self { needs: Some(produced), ..self }
    }

    /// The same, of a plugin that acts on what model servers say of themselves.
    #[must_use]
    pub fn reading_scraped(self) -> Self {
        Self { reads_scraped: true, ..self }
    }

    /// Takes part in a scheduling profile.
    pub(crate) const fn has_profile_role(&self) -> bool {
        self.filter.is_some() || self.scorer.is_some() || self.picker.is_some()
    }

    /// Is a policy of flow control, which may be off.
    pub(crate) const fn has_policy_role(&self) -> bool {
        self.ordering.is_some() || self.fairness.is_some() || self.usage_limit.is_some()
    }
}

/// Why an instance cannot be made of its parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter}: {}", remark.message())]
pub struct BuildError {
    parameter: Cow<'static, str>,
    remark: Remark,
}

impl BuildError {
    /// `message` says what is wrong with the parameter `parameter`, or with a part of it: `weights[2].tenant`. Where this is
    /// called is the [`Rule`](crate::Rule).
    #[track_caller]
    pub fn new(parameter: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { parameter: parameter.into(), remark: Remark::new(message) }
    }
}

/// What a plugin may use while it is built. A parameter is named as [`BuildError::new`] has it.
#[derive(Debug)]
pub struct BuildContext<'a> {
    document: &'a Document,
    owner: NodeId,
    scrape_interval: Duration,
    diagnostics: &'a mut Diagnostics,
    /// As they were read and filled in.
    parameters: Map<String, Value>,
    files: Vec<NamedFile>,
}

impl BuildContext<'_> {
    /// How often each endpoint is scraped, if anything is.
    pub const fn scrape_interval(&self) -> Duration {
        self.scrape_interval
    }

    /// Tells the author of the configuration that `parameter` does not do what they may think.
    #[track_caller]
    pub fn warn(&mut self, parameter: &str, message: impl Into<String>) {
        let place = self.place_of(parameter);
        self.diagnostics.warn(place, Remark::new(message));
    }

    /// Tells the author of the configuration that `parameter` may not be what it is. No instance comes of it; building may go
    /// on to look for more.
    #[track_caller]
    pub fn refuse(&mut self, parameter: &str, message: impl Into<String>) {
        let place = self.place_of(parameter);
        self.diagnostics.error(place, Remark::new(message));
    }

    /// As [`refuse`](Self::refuse), of a mistake that was found elsewhere.
    pub fn report(&mut self, BuildError { parameter, remark }: BuildError) {
        let place = self.place_of(&parameter);
        self.diagnostics.error(place, remark);
    }

    /// Tells the author of the configuration that the plugin as a whole does not do what they may think.
    #[track_caller]
    pub fn warn_of_plugin(&mut self, message: impl Into<String>) {
        let node = self.document.child(self.owner, "type").unwrap_or(self.owner);
        self.diagnostics.warn(self.document.place(node), Remark::new(message));
    }

    /// Shows `value` for `parameter` in the configuration in force: what was taken instead of what was given, or a default
    /// that depends on other parameters and so is none of [`Plugin::Params`].
    pub fn fill_in(&mut self, parameter: &str, value: impl Serialize) {
        if let Ok(value) = serde_json::to_value(value) {
            self.parameters.insert(parameter.to_owned(), value);
        }
    }

    /// Notes that the plugin reads a file that `parameter` names. `check` reads it, and is called when somebody wants to know
    /// if the file is there and good, not when a configuration is put in force.
    pub fn reads_file(&mut self, parameter: &str, check: impl Fn() -> FileReport + Send + Sync + 'static) {
        self.files.push(NamedFile::new(self.place_of(parameter), check));
    }

    fn place_of(&self, parameter: &str) -> Place {
        let parameters = self.document.child(self.owner, PARAMETERS);
        let name = parameter.split(['.', '[']).next().unwrap_or_default();
        match parameters.filter(|&parameters| self.document.child(parameters, name).is_some()) {
            Some(parameters) => self.document.place_below(parameters, parameter),
            None => {
                let mut place = self.document.place_of_missing(self.owner, PARAMETERS);
                place.path = format!("{}.{parameter}", place.path);
                place
            }
        }
    }
}

const PARAMETERS: &str = "parameters";

/// An instance, and what it was made of.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    pub(crate) roles: Roles,
    /// Its parameters, with their defaults.
    pub(crate) parameters: Map<String, Value>,
    /// Those it reads.
    pub(crate) files: Vec<NamedFile>,
}

/// A [`Plugin`] without its type: an entry of the list of plugins that a binary has.
#[derive(Clone, Copy, Debug)]
pub struct PluginType {
    name: &'static str,
    stability: Stability,
    parameters: fn() -> &'static [&'static str],
    build: Build,
}

type Build = fn(&Document, NodeId, Duration, &mut Diagnostics) -> Option<Built>;

impl PluginType {
    pub const fn of<P: Plugin>() -> Self {
        Self { name: P::TYPE, stability: P::STABILITY, parameters: parameter_names::<P::Params>, build: build::<P> }
    }

    pub const fn name(&self) -> &'static str {
        self.name
    }

    pub const fn stability(&self) -> Stability {
        self.stability
    }

    /// The names of its parameters.
    pub fn parameters(&self) -> &'static [&'static str] {
        (self.parameters)()
    }

    /// Makes the instance that `owner`, an element of `plugins`, describes. Without a result there is an
    /// error in `diagnostics`.
    pub(crate) fn build(
        &self,
        document: &Document,
        owner: NodeId,
        scrape_interval: Duration,
        diagnostics: &mut Diagnostics,
    ) -> Option<Built> {
        (self.build)(document, owner, scrape_interval, diagnostics)
    }
}

fn build<P: Plugin>(
    document: &Document,
    owner: NodeId,
    scrape_interval: Duration,
    diagnostics: &mut Diagnostics,
) -> Option<Built> {
    let errors_before = diagnostics.errors();
    let params: P::Params = document.decode_child(owner, PARAMETERS, diagnostics)?;
    if diagnostics.errors() > errors_before {
        return None;
    }
    let parameters = written_out(&params);
    let mut cx = BuildContext { document, owner, scrape_interval, diagnostics, parameters, files: Vec::new() };
    match P::build(params, &mut cx) {
        Ok(_) if cx.diagnostics.errors() > errors_before => None,
        Ok(roles) => Some(Built { roles, parameters: cx.parameters, files: cx.files }),
        Err(error) => {
            cx.report(error);
            None
        }
    }
}

/// `params` as a configuration would give them; nothing for what is not set.
fn written_out(params: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(params).map(without_nulls) {
        Ok(Value::Object(parameters)) => parameters,
        // No plugin has parameters that are not a mapping.
        Ok(_) | Err(_) => Map::new(),
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let set = entries.into_iter().filter(|(_, value)| !value.is_null());
            set.map(|(key, value)| (key, without_nulls(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}
