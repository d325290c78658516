use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use sluice_core::{Priority, TokenUsage};

use crate::action::Delivery;

/// Seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// What is counted of requests that were to make room for more urgent work.
#[derive(Debug)]
pub(crate) struct EvictionMetrics {
    evictions: IntCounterVec,
    tokens: IntCounterVec,
    confirmation: HistogramVec,
    /// Value of the label `inference_pool`.
    pool: String,
}

/// A request that was to make room, and has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evicted {
    pub(crate) priority: Priority,
    pub(crate) delivery: Delivery,
    /// From the word until the request had ended.
    pub(crate) took: Duration,
    /// What the prompt is taken for where the model server does not say.
    pub(crate) prompt_estimate: u64,
    /// Events that the client got: each about a token, where the model server does not say.
    pub(crate) events: u64,
    pub(crate) usage: TokenUsage,
}

impl EvictionMetrics {
    pub(crate) fn register(registry: &Registry, pool: &str) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<_, prometheus::Error> {
            let family = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        };
        let evictions = counter(
            "llm_d_epp_flow_control_evictions_total",
            "requests in flight that were to make room, by how their clients learned of it",
            &["priority", "delivery", "inference_pool"],
        )?;
        let tokens = counter(
            "sluice_evicted_tokens_total",
            "tokens of prompts and responses whose work was lost by evictions",
            &["priority", "kind", "inference_pool"],
        )?;
        let confirmation = HistogramOpts::new(
            "llm_d_epp_flow_control_revocation_confirmation_seconds",
            "time from the word that a request has to make room until its stream had ended",
        );
        let confirmation = HistogramVec::new(confirmation.buckets(BUCKETS.to_vec()), &["inference_pool"])?;
        registry.register(Box::new(confirmation.clone()))?;
        Ok(Self { evictions, tokens, confirmation, pool: pool.to_owned() })
    }

    pub(crate) fn count(&self, evicted: Evicted) {
        let Evicted { priority, delivery, took, prompt_estimate, events, usage } = evicted;
        let priority = priority.to_string();
        self.evictions.with_label_values(&[&*priority, delivery.as_str(), &self.pool]).inc();
        self.confirmation.with_label_values(&[&self.pool]).observe(took.as_secs_f64());
        let (prompt, output) = match delivery {
            // It was not sent, or nothing was lost.
            Delivery::Refused | Delivery::Completed => return,
            Delivery::Status | Delivery::Event | Delivery::Reset | Delivery::Left => {
                (usage.prompt.unwrap_or(prompt_estimate), usage.completion.unwrap_or(events))
            }
        };
        for (kind, tokens) in [("prompt", prompt), ("output", output)] {
            self.tokens.with_label_values(&[&*priority, kind, &self.pool]).inc_by(tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_reported_or_else_estimated_and_none_where_nothing_was_lost() {
        let metrics = EvictionMetrics::register(&Registry::new(), "p").unwrap();
        let evicted = |delivery, usage| Evicted {
            priority: Priority(-10),
            delivery,
            took: Duration::from_millis(3),
            prompt_estimate: 100,
            events: 7,
            usage,
        };
        let none = TokenUsage::default();
        let reported = TokenUsage { prompt: Some(40), completion: Some(2), cached: None };
        let tokens = |kind| metrics.tokens.with_label_values(&["-10", kind, "p"]).get();
        for (delivery, usage, prompt, output) in [
            (Delivery::Event, none, 100, 7),
            (Delivery::Reset, reported, 140, 9),
            (Delivery::Refused, none, 140, 9),
            (Delivery::Completed, reported, 140, 9),
        ] {
            metrics.count(evicted(delivery, usage));
            assert_eq!((tokens("prompt"), tokens("output")), (prompt, output), "{delivery:?}");
            assert_eq!(metrics.evictions.with_label_values(&["-10", delivery.as_str(), "p"]).get(), 1);
        }
        assert_eq!(metrics.confirmation.with_label_values(&["p"]).get_sample_count(), 4);
    }
}
