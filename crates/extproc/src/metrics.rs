use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use sluice_core::Request;

/// At most this many different model names become label values; later ones are counted as `other`. Names come from
/// clients, who could otherwise fill the memory with them.
const MAX_MODELS: usize = 1_000;

/// Labels of series that tell requests apart.
const LABELS: [&str; 4] = ["model_name", "target_model_name", "fairness_id", "priority"];

/// What the request path counts.
#[derive(Debug)]
pub struct Metrics {
    requests: IntCounterVec,
    errors: IntCounterVec,
    running: IntGaugeVec,
    legacy: Option<Legacy>,
    models: Mutex<BTreeSet<String>>,
}

/// The same under the names of earlier releases.
#[derive(Debug)]
struct Legacy {
    requests: IntCounterVec,
    errors: IntCounterVec,
    running: IntGaugeVec,
}

/// Label values of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    model: String,
}

/// Counts a request as running until it is dropped.
#[derive(Debug)]
pub(crate) struct Running(Vec<IntGauge>);

impl Metrics {
    /// `legacy_names` also emits the series under their deprecated names.
    pub fn register(registry: &Registry, legacy_names: bool) -> Result<Self, prometheus::Error> {
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
            legacy: legacy_names.then(legacy).transpose()?,
            models: Mutex::default(),
        })
    }

    pub(crate) fn labels(&self, request: &Request) -> Labels {
        let Some(model) = request.model.as_deref() else { return Labels::default() };
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if !models.contains(model) {
            if models.len() >= MAX_MODELS {
                return Labels { model: "other".to_owned() };
            }
            models.insert(model.to_owned());
        }
        Labels { model: model.to_owned() }
    }

    /// A request got its endpoint. It counts as running until the value returned is dropped; a request without a
    /// model does not.
    pub(crate) fn placed(&self, labels: &Labels) -> Running {
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

    /// A request failed or was refused.
    pub(crate) fn failed(&self, labels: &Labels, error_code: &str) {
        let [model, target, fairness, priority] = labels.values();
        self.errors.with_label_values(&[model, target, fairness, priority, error_code]).inc();
        if let Some(legacy) = &self.legacy {
            legacy.errors.with_label_values(&[model, target, error_code]).inc();
        }
    }
}

impl Labels {
    /// In the order of [`LABELS`]. Every request belongs to the default flow at priority 0.
    fn values(&self) -> [&str; 4] {
        [&self.model, &self.model, "default-flow", "0"]
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.iter().for_each(IntGauge::dec);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_core::{Api, Headers, RequestId, Time};

    use super::*;

    fn request(model: Option<&str>) -> Request {
        Request {
            id: RequestId("r".into()),
            received: Time::ZERO,
            api: Api::OpenAiChat,
            headers: Headers::new(),
            model: model.map(Arc::from),
            stream: false,
            max_output_tokens: None,
            body_bytes: 0,
        }
    }

    fn families(registry: &Registry) -> Vec<String> {
        registry.gather().iter().map(|family| family.name().to_owned()).collect()
    }

    #[test]
    fn running_falls_back_when_the_guard_goes() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry, true).unwrap();
        let labels = metrics.labels(&request(Some("m")));
        let running = metrics.placed(&labels);
        let gauge = metrics.running.with_label_values(&["m", "m", "default-flow", "0"]);
        assert_eq!(gauge.get(), 1);
        drop(running);
        assert_eq!(gauge.get(), 0);
        assert_eq!(metrics.requests.with_label_values(&["m", "m", "default-flow", "0"]).get(), 1);
    }

    #[test]
    fn old_names_are_a_choice() {
        for (legacy, expected) in [(true, 2), (false, 1)] {
            let registry = Registry::new();
            let metrics = Metrics::register(&registry, legacy).unwrap();
            metrics.failed(&Labels::default(), "BadRequest");
            assert_eq!(families(&registry).len(), expected, "{:?}", families(&registry));
        }
    }

    #[test]
    fn model_names_are_bounded() {
        let metrics = Metrics::register(&Registry::new(), false).unwrap();
        for index in 0..MAX_MODELS {
            assert_eq!(metrics.labels(&request(Some(&index.to_string()))).model, index.to_string());
        }
        assert_eq!(metrics.labels(&request(Some("one more"))).model, "other");
        assert_eq!(metrics.labels(&request(Some("7"))).model, "7");
    }
}
