use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Seconds.
const BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0];

/// Value of the label `source_type`.
const SOURCE: &str = "metrics-data-source";
/// Value of the label `extractor_type`.
const EXTRACTOR: &str = "core-metrics-extractor";

/// What scraping counts. There to be zero from the start.
#[derive(Clone, Debug)]
pub struct ScrapeMetrics {
    /// The same under each of its names.
    poll_errors: Vec<IntCounterVec>,
    extract_errors: Vec<IntCounterVec>,
    ignored_values: IntCounter,
    duration: Histogram,
    certificate_failing: IntGauge,
}

impl ScrapeMetrics {
    /// `legacy_names` also emits the series under their deprecated names.
    pub fn register(registry: &Registry, legacy_names: bool) -> Result<Self, prometheus::Error> {
        let twins = |[current, deprecated]: [&str; 2], help: &str, labels: &[&str]| {
            let deprecated = Opts::new(deprecated, format!("[Deprecated: Use {current}] {help}"));
            let named = [Opts::new(current, help)].into_iter().chain(legacy_names.then_some(deprecated));
            let counters = named.map(|opts| IntCounterVec::new(opts, labels)).collect::<Result<Vec<_>, _>>()?;
            for counter in &counters {
                registry.register(Box::new(counter.clone()))?;
            }
            Ok::<_, prometheus::Error>(counters)
        };
        let help = "scrapes of an endpoint that brought no page";
        let names = ["llm_d_epp_datalayer_poll_errors_total", "llm_d_inference_scheduler_datalayer_poll_errors_total"];
        let poll_errors = twins(names, help, &["source_type"])?;
        let help = "pages of an endpoint that lack metrics of its engine, or have lines that cannot be read";
        let names =
            ["llm_d_epp_datalayer_extract_errors_total", "llm_d_inference_scheduler_datalayer_extract_errors_total"];
        let extract_errors = twins(names, help, &["source_type", "extractor_type"])?;
        let help = "values of an endpoint's page that make no sense and were ignored";
        let ignored_values = IntCounter::new("llm_d_epp_datalayer_ignored_values_total", help)?;
        let help = "time until an endpoint's page was there, or known not to come";
        let opts = HistogramOpts::new("llm_d_epp_datalayer_scrape_duration_seconds", help).buckets(BUCKETS.to_vec());
        let duration = Histogram::with_opts(opts)?;
        let help = "1 while the certificates for scraping are no good and the last good ones are in use";
        let certificate_failing = IntGauge::new("llm_d_epp_scrape_certificate_reload_failing", help)?;
        registry.register(Box::new(ignored_values.clone()))?;
        registry.register(Box::new(duration.clone()))?;
        registry.register(Box::new(certificate_failing.clone()))?;
        for counter in &poll_errors {
            counter.with_label_values(&[SOURCE]);
        }
        for counter in &extract_errors {
            counter.with_label_values(&[SOURCE, EXTRACTOR]);
        }
        Ok(Self { poll_errors, extract_errors, ignored_values, duration, certificate_failing })
    }

    pub(super) fn took(&self, duration: Duration) {
        self.duration.observe(duration.as_secs_f64());
    }

    pub(super) fn no_page(&self) {
        for counter in &self.poll_errors {
            counter.with_label_values(&[SOURCE]).inc();
        }
    }

    pub(super) fn incomplete_page(&self) {
        for counter in &self.extract_errors {
            counter.with_label_values(&[SOURCE, EXTRACTOR]).inc();
        }
    }

    pub(super) fn ignored(&self, values: u64) {
        self.ignored_values.inc_by(values);
    }

    pub(super) fn certificate_failing(&self) -> IntGauge {
        self.certificate_failing.clone()
    }
}
