//! What `/metrics` says, under vLLM's names.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
    core::Collector,
};

use crate::engine::{FinishReason, Stats};
use crate::settings::Settings;

pub(crate) const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
pub(crate) const NEXT_TOKEN_SECONDS: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
pub(crate) const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// How a request ended, as the label `finished_reason` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished(FinishReason),
    Aborted,
}

/// The handles of all series. Every series carries `model_name` and `engine`.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    kv_cache_usage: Gauge,
    preemptions: IntCounter,
    stopped: IntCounter,
    reached_length: IntCounter,
    aborted: IntCounter,
    pub(crate) prompt_tokens: IntCounter,
    pub(crate) generation_tokens: IntCounter,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) request_latency: Histogram,
}

impl Metrics {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self::try_new(settings).expect("the series have valid and different names")
    }

    fn try_new(settings: &Settings) -> prometheus::Result<Self> {
        let series = Series::new(settings);
        let endings = series.add(IntCounterVec::new(
            series.named("vllm:request_success_total", "Requests that ended, by reason."),
            &["finished_reason"],
        ))?;
        let cache_config = series.add(IntGauge::with_opts(
            series
                .named("vllm:cache_config_info", "How the KV cache is divided.")
                .const_label("block_size", settings.block_size.to_string())
                .const_label("num_gpu_blocks", settings.kv_cache_blocks.to_string()),
        ))?;
        cache_config.set(1);
        Ok(Self {
            running: series.gauge("vllm:num_requests_running", "Sequences in the batch.")?,
            waiting: series.gauge("vllm:num_requests_waiting", "Sequences that wait to run.")?,
            kv_cache_usage: series.add(Gauge::with_opts(
                series.named("vllm:kv_cache_usage_perc", "The part of the KV cache's blocks in use. 1 means all."),
            ))?,
            preemptions: series
                .counter("vllm:num_preemptions_total", "Sequences put back to wait for lack of blocks.")?,
            stopped: endings.get_metric_with_label_values(&["stop"])?,
            reached_length: endings.get_metric_with_label_values(&["length"])?,
            aborted: endings.get_metric_with_label_values(&["abort"])?,
            prompt_tokens: series.counter("vllm:prompt_tokens_total", "Tokens of prompts computed.")?,
            generation_tokens: series.counter("vllm:generation_tokens_total", "Tokens produced.")?,
            time_to_first_token: series.histogram(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to its first token.",
                FIRST_TOKEN_SECONDS,
            )?,
            inter_token_latency: series.histogram(
                "vllm:inter_token_latency_seconds",
                "Between two tokens of a request.",
                NEXT_TOKEN_SECONDS,
            )?,
            request_latency: series.histogram(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to its last token.",
                REQUEST_SECONDS,
            )?,
            registry: series.registry,
        })
    }

    pub(crate) fn count_ending(&self, ending: Ending) {
        match ending {
            Ending::Finished(FinishReason::Stop) => self.stopped.inc(),
            Ending::Finished(FinishReason::Length) => self.reached_length.inc(),
            Ending::Aborted => self.aborted.inc(),
        }
    }

    /// The page, with the sizes of `stats`.
    pub(crate) fn render(&self, stats: Stats) -> prometheus::Result<Vec<u8>> {
        let Stats { running, waiting, used_blocks, total_blocks, preemptions } = stats;
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        self.kv_cache_usage.set(f64::from(used_blocks) / f64::from(total_blocks));
        self.preemptions.inc_by(preemptions.saturating_sub(self.preemptions.get()));
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page)?;
        Ok(page)
    }
}

/// Registers series, all with the same first labels.
struct Series {
    registry: Registry,
    model_name: String,
}

impl Series {
    fn new(settings: &Settings) -> Self {
        Self { registry: Registry::new(), model_name: settings.models.first().cloned().unwrap_or_default() }
    }

    fn named(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).const_label("model_name", &self.model_name).const_label("engine", "0")
    }

    fn add<C: Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> prometheus::Result<C> {
        let collector = collector?;
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::with_opts(self.named(name, help)))
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::with_opts(self.named(name, help)))
    }

    fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> prometheus::Result<Histogram> {
        let opts = HistogramOpts::from(self.named(name, help)).buckets(bounds.to_vec());
        self.add(Histogram::with_opts(opts))
    }
}
