use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use sluice_core::Request;
use sluice_flow::Outcome;
use sluice_router::{DEFAULT_TENANT, Identity};

/// At most this many different model names become label values; later ones are counted as `other`. They come from
/// clients, who could otherwise fill the memory with them.
const MAX_MODELS: usize = 1_000;

/// Bytes of a longer value would only fill the memory.
const MAX_LENGTH: usize = 256;

/// What every value stands under that is not told apart.
const OTHER: &str = "other";

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
    requests: IntCounterVec,
    errors: IntCounterVec,
    running: IntGaugeVec,
    queue_duration: HistogramVec,
    objectives_not_found: IntCounter,
    /// Value of the label `inference_pool`.
    pool: String,
    legacy: Option<Legacy>,
    models: LabelValues,
    tenants: LabelValues,
}

/// The values of a label that clients choose.
#[derive(Debug)]
struct LabelValues {
    known: Mutex<BTreeSet<String>>,
    max: usize,
}

impl LabelValues {
    const fn at_most(max: usize) -> Self {
        Self { known: Mutex::new(BTreeSet::new()), max }
    }

    /// `value`, or `other` if it is too long or there are too many already.
    fn admit(&self, value: &str) -> String {
        let mut known = self.lock();
        if !known.contains(value) {
            if value.len() > MAX_LENGTH || known.len() >= self.max {
                return OTHER.to_owned();
            }
            known.insert(value.to_owned());
        }
        value.to_owned()
    }

    /// `value` if it was admitted before or is empty, else `other`: what failed takes no place.
    fn known(&self, value: &str) -> String {
        let known = value.is_empty() || self.lock().contains(value);
        if known { value.to_owned() } else { OTHER.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same under the names of earlier releases.
#[derive(Debug)]
struct Legacy {
    requests: IntCounterVec,
    errors: IntCounterVec,
    running: IntGaugeVec,
    queue_duration: HistogramVec,
}

/// Label values of one request.
#[derive(Clone, Debug)]
pub(crate) struct Labels {
    model: String,
    fairness_id: String,
    priority: String,
}

impl Default for Labels {
    fn default() -> Self {
        Self { model: String::new(), fairness_id: DEFAULT_TENANT.to_owned(), priority: "0".to_owned() }
    }
}

/// Counts a request as running until it is dropped.
#[derive(Debug)]
pub(crate) struct Running(Vec<IntGauge>);

impl Metrics {
    /// `pool` is what the label `inference_pool` says, `max_tenants` how many fairness ids become label values, later
    /// ones being counted as `other`; `legacy_names` also emits the series under their deprecated names.
    pub fn register(
        registry: &Registry,
        pool: &str,
        max_tenants: usize,
        legacy_names: bool,
    ) -> Result<Self, prometheus::Error> {
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
        let histogram = |name: &str, help: &str| -> Result<_, prometheus::Error> {
            let options = HistogramOpts::new(name, help).buckets(QUEUE_BUCKETS.to_vec());
            let family = HistogramVec::new(options, &QUEUE_LABELS)?;
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        };
        let objectives_not_found = IntCounter::new(
            "llm_d_epp_objective_not_found_total",
            "requests with an objective that nobody has defined",
        )?;
        registry.register(Box::new(objectives_not_found.clone()))?;
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
                queue_duration: histogram(
                    "inference_extension_flow_control_request_queue_duration_seconds",
                    "[Deprecated: Use llm_d_epp_flow_control_request_queue_duration_seconds] time until admission ended",
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
            queue_duration: histogram(
                "llm_d_epp_flow_control_request_queue_duration_seconds",
                "time from asking for admission until the request was started or dropped, by how it ended",
            )?,
            objectives_not_found,
            pool: pool.to_owned(),
            legacy: legacy_names.then(legacy).transpose()?,
            models: LabelValues::at_most(MAX_MODELS),
            tenants: LabelValues::at_most(max_tenants),
        })
    }

    pub(crate) fn labels(&self, identity: &Identity) -> Labels {
        let fairness_id = self.tenants.admit(&identity.tenant);
        Labels { model: String::new(), fairness_id, priority: identity.priority.to_string() }
    }

    /// A request got its endpoint. It counts as running until the value returned is dropped; a request without a
    /// model does not.
    pub(crate) fn placed(&self, labels: &mut Labels) -> Running {
        labels.model = self.models.admit(&labels.model);
        let values = labels.values();
        let [model, target, _fairness, priority] = values;
        self.requests.with_label_values(&values).inc();
        if let Some(legacy) = &self.legacy {
            legacy.requests.with_label_values(&[model, target, priority]).inc();
        }
        if labels.model.is_empty() {
            return Running(Vec::new());
        }
        let mut gauges = vec![self.running.with_label_values(&values)];
        gauges.extend(self.legacy.as_ref().map(|legacy| legacy.running.with_label_values(&[model])));
        gauges.iter().for_each(IntGauge::inc);
        Running(gauges)
    }

    /// Admission ended with `outcome` after `waited`.
    pub(crate) fn queued(&self, labels: &Labels, outcome: Outcome, waited: Duration) {
        let [_, _, fairness, priority] = labels.values();
        let model = self.models.known(&labels.model);
        let values = [fairness, priority, outcome.as_str(), &self.pool, &model, &model];
        let twin = self.legacy.as_ref().map(|legacy| &legacy.queue_duration);
        for family in [&self.queue_duration].into_iter().chain(twin) {
            family.with_label_values(&values).observe(waited.as_secs_f64());
        }
    }

    pub(crate) fn objective_not_found(&self) {
        self.objectives_not_found.inc();
    }

    /// A request failed or was refused.
    pub(crate) fn failed(&self, labels: &Labels, error_code: &str) {
        let [_, _, fairness, priority] = labels.values();
        let model = &*self.models.known(&labels.model);
        self.errors.with_label_values(&[model, model, fairness, priority, error_code]).inc();
        if let Some(legacy) = &self.legacy {
            legacy.errors.with_label_values(&[model, model, error_code]).inc();
        }
    }
}

impl Labels {
    /// Adds what the body says.
    pub(crate) fn name_model(&mut self, request: &Request) {
        self.model = request.model.as_deref().unwrap_or_default().to_owned();
    }

    /// In the order of [`LABELS`].
    fn values(&self) -> [&str; 4] {
        [&self.model, &self.model, &self.fairness_id, &self.priority]
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.iter().for_each(IntGauge::dec);
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::Priority;

    use super::*;

    fn families(registry: &Registry) -> Vec<String> {
        registry.gather().iter().map(|family| family.name().to_owned()).collect()
    }

    #[test]
    fn running_falls_back_when_the_guard_goes() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry, "p", 10, true).unwrap();
        let identity = Identity { priority: Priority(-1), tenant: "alice".into() };
        let mut labels = Labels { model: "m".into(), ..metrics.labels(&identity) };
        let running = metrics.placed(&mut labels);
        let gauge = metrics.running.with_label_values(&["m", "m", "alice", "-1"]);
        assert_eq!(gauge.get(), 1);
        drop(running);
        assert_eq!(gauge.get(), 0);
        assert_eq!(metrics.requests.with_label_values(&["m", "m", "alice", "-1"]).get(), 1);
    }

    #[test]
    fn old_names_are_a_choice() {
        for (legacy, expected) in [(true, 3), (false, 2)] {
            let registry = Registry::new();
            let metrics = Metrics::register(&registry, "p", 10, legacy).unwrap();
            metrics.failed(&Labels::default(), "BadRequest");
            assert_eq!(families(&registry).len(), expected, "{:?}", families(&registry));
        }
    }

    #[test]
    fn what_fails_takes_no_place() {
        let values = LabelValues::at_most(10);
        assert_eq!(values.known("m"), "other");
        values.admit("m");
        assert_eq!(values.known("m"), "m");
        assert_eq!(values.known(""), "");
    }

    #[test]
    fn values_from_clients_are_bounded() {
        let values = LabelValues::at_most(10);
        for index in 0..10 {
            assert_eq!(values.admit(&index.to_string()), index.to_string());
        }
        assert_eq!(values.admit("one more"), "other");
        assert_eq!(values.admit("7"), "7");
        assert_eq!(LabelValues::at_most(10).admit(&"x".repeat(MAX_LENGTH + 1)), "other");
    }
}
