use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use sluice_core::{Priority, Request};
use sluice_flow::Outcome;
use sluice_router::{DEFAULT_TENANT, Identity, ModelRewrites, OTHER, PerTenant, TenantLabel, TenantLabels, Twin};

use crate::ended::{EndCause, Ended};
use crate::eviction_metrics::{Evicted, EvictionMetrics};

/// At most this many different model names become label values; later ones are counted as `other`. They come from
/// clients, who could otherwise fill the memory with them.
const MAX_MODELS: usize = 1_000;

/// Bytes of a longer value would only fill the memory.
const MAX_LENGTH: usize = 128;

/// At most this many sets of label values of a counter or a gauge. For the first half of them models are told apart; the
/// models of later ones are counted as `other`, and beyond the bound the tenants as well.
const MAX_SETS: usize = 8_000;

/// The same of the histogram, of which each set is nineteen lines of the page, and as many under the deprecated name.
const MAX_QUEUE_SETS: usize = 2_000;

/// Labels of series that tell requests apart.
const LABELS: [&str; 4] = ["model_name", "target_model_name", "fairness_id", "priority"];

const QUEUE_LABELS: [&str; 6] =
    ["fairness_id", "priority", "outcome", "inference_pool", "model_name", "target_model_name"];

/// Seconds.
const QUEUE_BUCKETS: [f64; 16] =
    [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// What the request path counts.
#[derive(Debug)]
pub struct Metrics {
    families: Arc<Families>,
    evictions: EvictionMetrics,
    ended: Ended,
    models: ModelNames,
    tenants: TenantLabels,
}

#[derive(Debug)]
struct Families {
    requests: IntCounterVec,
    errors: IntCounterVec,
    running: IntGaugeVec,
    queue_duration: HistogramVec,
    objectives_not_found: IntCounter,
    /// Value of the label `inference_pool`.
    pool: String,
    legacy: Option<Legacy>,
    /// The model of what is beyond the bounds.
    other: Arc<str>,
    rewrites: IntCounterVec,
    placed: PerTenant<(Models, Priority), Arc<Placed>>,
    queued: PerTenant<(Models, Priority, &'static str), Histogram>,
    failed: PerTenant<(Models, Priority, &'static str), IntCounter>,
}

/// The same under the names of earlier releases, where their labels differ.
#[derive(Debug)]
struct Legacy {
    requests: IntCounterVec,
    errors: IntCounterVec,
    running: IntGaugeVec,
}

/// What counts the requests of one tenant, model and priority that got an endpoint.
#[derive(Debug)]
struct Placed {
    requests: Vec<IntCounter>,
    /// None for requests without a model.
    running: Vec<IntGauge>,
}

/// Values of the labels `model_name` and `target_model_name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Models {
    model: Arc<str>,
    target: Arc<str>,
}

/// The name of a model, and whether the operator has chosen it: such a name is always one of the label values.
#[derive(Clone, Debug, Default)]
struct Name {
    name: Option<Arc<str>>,
    is_own: bool,
}

/// The names of models that clients choose.
#[derive(Debug)]
struct ModelNames {
    known: Mutex<BTreeSet<Arc<str>>>,
    max: usize,
    none: Arc<str>,
    other: Arc<str>,
}

/// Label values of one request.
#[derive(Debug)]
pub(crate) struct Labels {
    model: Name,
    target: Name,
    /// The rule that has chosen the target.
    rewritten_by: Option<Arc<str>>,
    tenant: Arc<str>,
    priority: Priority,
    /// Keeps the tenant's label value for as long as the request lives; none before the request was let in.
    held: Option<TenantLabel>,
}

/// Counts a request as running until it is dropped.
#[derive(Debug)]
pub(crate) struct Running(Arc<Placed>);

impl Metrics {
    /// `pool` is what the label `inference_pool` says; `legacy_names` also emits the series under their deprecated names.
    pub fn register(
        registry: &Registry,
        pool: &str,
        tenants: TenantLabels,
        legacy_names: bool,
    ) -> Result<Self, prometheus::Error> {
        let families = Arc::new(Families::register(registry, pool, legacy_names)?);
        let evictions = EvictionMetrics::register(registry, pool)?;
        let ended = Ended::register(registry)?;
        let listener = Arc::clone(&families);
        tenants.on_forget(move |tenant| listener.forget(tenant));
        Ok(Self { families, evictions, ended, models: ModelNames::at_most(MAX_MODELS), tenants })
    }

    /// Nothing is counted yet, and no label value taken.
    pub(crate) fn labels(&self, identity: &Identity) -> Labels {
        Labels { tenant: Arc::clone(&identity.tenant), priority: identity.priority, ..Labels::default() }
    }

    /// A request got its endpoint. It counts as running until the value returned is dropped; a request without a
    /// model does not.
    pub(crate) fn placed(&self, labels: &mut Labels) -> Running {
        let models = Models { model: self.models.admit(&labels.model), target: self.models.admit(&labels.target) };
        if let Some(rule) = &labels.rewritten_by {
            self.families.rewrites.with_label_values(&[&**rule, &models.model, &models.target]).inc();
        }
        let priority = labels.priority;
        let placed = self.families.placed(labels.hold(&self.tenants), &models, priority);
        placed.requests.iter().for_each(IntCounter::inc);
        placed.running.iter().for_each(IntGauge::inc);
        Running(placed)
    }

    /// Admission ended with `outcome` after `waited`.
    pub(crate) fn queued(&self, labels: &mut Labels, outcome: Outcome, waited: Duration) {
        if !is_refusal(outcome) {
            labels.hold(&self.tenants);
        }
        let models = self.known(labels);
        labels.known(&self.tenants, |tenant| {
            let series = self.families.queued(tenant, &models, labels.priority, outcome);
            series.observe(waited.as_secs_f64());
        });
    }

    pub(crate) fn evicted(&self, evicted: Evicted) {
        self.evictions.count(evicted);
    }

    /// A request is over. Every request comes here once.
    pub(crate) fn ended(&self, cause: EndCause) {
        self.ended.count(cause);
    }

    pub(crate) fn objective_not_found(&self) {
        self.families.objectives_not_found.inc();
    }

    /// A request failed or was refused.
    pub(crate) fn failed(&self, labels: &Labels, error_code: &'static str) {
        let models = self.known(labels);
        labels.known(&self.tenants, |tenant| {
            self.families.failed(tenant, &models, labels.priority, error_code).inc();
        });
        if let Some(legacy) = &self.families.legacy {
            legacy.errors.with_label_values(&[&*models.model, &*models.target, error_code]).inc();
        }
    }

    fn known(&self, labels: &Labels) -> Models {
        Models { model: self.models.known(&labels.model), target: self.models.known(&labels.target) }
    }
}

/// The request was never in a queue.
const fn is_refusal(outcome: Outcome) -> bool {
    match outcome {
        Outcome::RejectedCapacity | Outcome::RejectedNoEndpoints | Outcome::RejectedOther => true,
        Outcome::Dispatched
        | Outcome::EvictedTtl
        | Outcome::EvictedNoEndpoints
        | Outcome::EvictedContextCancelled
        | Outcome::EvictedOther => false,
    }
}

impl Families {
    fn register(registry: &Registry, pool: &str, legacy_names: bool) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<_, prometheus::Error> {
            let family = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| -> Result<_, prometheus::Error> {
            let family = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        };
        let objectives_not_found = IntCounter::new(
            "llm_d_epp_objective_not_found_total",
            "requests with an objective that nobody has defined",
        )?;
        registry.register(Box::new(objectives_not_found.clone()))?;
        let queue_duration = HistogramOpts::new(
            "llm_d_epp_flow_control_request_queue_duration_seconds",
            "time from asking for admission until the request was started or dropped, by how it ended",
        );
        let queue_duration = HistogramVec::new(queue_duration.buckets(QUEUE_BUCKETS.to_vec()), &QUEUE_LABELS)?;
        let deprecated = "inference_extension_flow_control_request_queue_duration_seconds";
        registry.register(Box::new(Twin::new(queue_duration.clone(), legacy_names.then_some(deprecated))))?;
        let rewrites = IntCounterVec::new(
            Opts::new("llm_d_epp_model_rewrite_decisions_total", "requests placed whose model a rule has chosen"),
            &["model_rewrite_name", "model_name", "target_model"],
        )?;
        let deprecated = "inference_extension_model_rewrite_decisions_total";
        registry.register(Box::new(Twin::new(rewrites.clone(), legacy_names.then_some(deprecated))))?;
        let [model, target, fairness, priority] = LABELS;
        let legacy = || -> Result<Legacy, prometheus::Error> {
            Ok(Legacy {
                requests: counter(
                    "inference_objective_request_total",
                    "[Deprecated: Use llm_d_epp_request_total] requests placed on an endpoint",
                    &[model, target, priority],
                )?,
                errors: counter(
                    "inference_objective_request_error_total",
                    "[Deprecated: Use llm_d_epp_request_error_total] requests that failed or were refused",
                    &[model, target, "error_code"],
                )?,
                running: gauge(
                    "inference_objective_running_requests",
                    "[Deprecated: Use llm_d_epp_request_running] requests running on an endpoint",
                    &[model],
                )?,
            })
        };
        Ok(Self {
            requests: counter("llm_d_epp_request_total", "requests placed on an endpoint", &LABELS)?,
            errors: counter(
                "llm_d_epp_request_error_total",
                "requests that failed or were refused, by the kind of the error",
                &[model, target, fairness, priority, "error_code"],
            )?,
            running: gauge("llm_d_epp_request_running", "requests running on an endpoint", &LABELS)?,
            queue_duration,
            objectives_not_found,
            pool: pool.to_owned(),
            legacy: legacy_names.then(legacy).transpose()?,
            other: OTHER.into(),
            rewrites,
            placed: PerTenant::at_most(MAX_SETS),
            queued: PerTenant::at_most(MAX_QUEUE_SETS),
            failed: PerTenant::at_most(MAX_SETS),
        })
    }

    fn placed(&self, tenant: &str, models: &Models, priority: Priority) -> Arc<Placed> {
        let make = |tenant: &str, (Models { model, target }, priority): &(Models, Priority)| {
            let priority = priority.to_string();
            let values = [&**model, target, tenant, &priority];
            let mut placed = Placed { requests: vec![self.requests.with_label_values(&values)], running: Vec::new() };
            if let Some(legacy) = &self.legacy {
                placed.requests.push(legacy.requests.with_label_values(&[&**model, target, &priority]));
            }
            if !model.is_empty() {
                placed.running.push(self.running.with_label_values(&values));
                placed.running.extend(self.legacy.iter().map(|legacy| legacy.running.with_label_values(&[&**model])));
            }
            Arc::new(placed)
        };
        let fold = |(models, priority): (Models, _)| (self.fold(models), priority);
        self.placed.find(tenant, (models.clone(), priority), fold, make)
    }

    fn queued(&self, tenant: &str, models: &Models, priority: Priority, outcome: Outcome) -> Histogram {
        let outcome = outcome.as_str();
        let make = |tenant: &str, (Models { model, target }, ..): &(Models, _, _)| {
            let values = [tenant, &priority.to_string(), outcome, &self.pool, model, target];
            self.queue_duration.with_label_values(&values)
        };
        let fold = |(models, priority, outcome): (Models, _, _)| (self.fold(models), priority, outcome);
        self.queued.find(tenant, (models.clone(), priority, outcome), fold, make)
    }

    fn failed(&self, tenant: &str, models: &Models, priority: Priority, error_code: &'static str) -> IntCounter {
        let make = |tenant: &str, (Models { model, target }, ..): &(Models, _, _)| {
            self.errors.with_label_values(&[&**model, target, tenant, &priority.to_string(), error_code])
        };
        let fold = |(models, priority, error_code): (Models, _, _)| (self.fold(models), priority, error_code);
        self.failed.find(tenant, (models.clone(), priority, error_code), fold, make)
    }

    /// A request without a model stays one: it does not count as running.
    fn fold(&self, Models { model, target }: Models) -> Models {
        let fold = |name: Arc<str>| if name.is_empty() { name } else { Arc::clone(&self.other) };
        Models { model: fold(model), target: fold(target) }
    }

    /// Drops the series of `tenant`: another takes its place.
    fn forget(&self, tenant: &str) {
        // What was made is there to be removed; `running` is not there for requests without a model.
        for (Models { model, target }, priority) in self.placed.forget(tenant).into_keys() {
            let values = [&*model, &*target, tenant, &priority.to_string()];
            self.requests.remove_label_values(&values).unwrap_or_default();
            self.running.remove_label_values(&values).unwrap_or_default();
        }
        for (Models { model, target }, priority, outcome) in self.queued.forget(tenant).into_keys() {
            let values = [tenant, &priority.to_string(), outcome, &self.pool, &*model, &*target];
            self.queue_duration.remove_label_values(&values).unwrap_or_default();
        }
        for (Models { model, target }, priority, error_code) in self.failed.forget(tenant).into_keys() {
            let values = [&*model, &*target, tenant, &priority.to_string(), error_code];
            self.errors.remove_label_values(&values).unwrap_or_default();
        }
    }
}

impl ModelNames {
    fn at_most(max: usize) -> Self {
        Self { known: Mutex::default(), max, none: "".into(), other: OTHER.into() }
    }

    /// The name, or `other` if it is too long or there are too many already.
    fn admit(&self, Name { name, is_own }: &Name) -> Arc<str> {
        let Some(model) = name else { return Arc::clone(&self.none) };
        if *is_own {
            return Arc::clone(model);
        }
        let mut known = self.lock();
        if !known.contains(model) {
            if model.len() > MAX_LENGTH || known.len() >= self.max {
                return Arc::clone(&self.other);
            }
            known.insert(Arc::clone(model));
        }
        Arc::clone(model)
    }

    /// The name if it was admitted before or is none, else `other`: what failed takes no place.
    fn known(&self, Name { name, is_own }: &Name) -> Arc<str> {
        let Some(model) = name else { return Arc::clone(&self.none) };
        Arc::clone(if *is_own || self.lock().contains(model) { model } else { &self.other })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Labels {
    fn default() -> Self {
        static DEFAULT: OnceLock<Arc<str>> = OnceLock::new();
        let tenant = Arc::clone(DEFAULT.get_or_init(|| DEFAULT_TENANT.into()));
        let (model, target) = (Name::default(), Name::default());
        Self { model, target, rewritten_by: None, tenant, priority: Priority(0), held: None }
    }
}

impl Labels {
    /// Adds what the body says, and what `rewrites` have made of it.
    pub(crate) fn name_model(&mut self, request: &Request, rewrites: &ModelRewrites) {
        let name = |name: &Option<Arc<str>>| Name {
            is_own: name.as_ref().is_some_and(|name| rewrites.names(name)),
            name: name.clone(),
        };
        (self.model, self.target) = (name(&request.model), name(&request.target_model));
        self.rewritten_by.clone_from(&request.rewritten_by);
    }

    /// Takes a label value for the tenant, if it has none yet and one is to be had.
    fn hold(&mut self, tenants: &TenantLabels) -> &str {
        self.held.get_or_insert_with(|| tenants.admit(&self.tenant)).as_str()
    }

    /// Counts under the label value that the tenant has, without taking one.
    fn known(&self, tenants: &TenantLabels, count: impl FnOnce(&str)) {
        match &self.held {
            Some(held) => count(held.as_str()),
            None => count(tenants.known(&self.tenant).as_str()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.iter().for_each(IntGauge::dec);
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
