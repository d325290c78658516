//! What the pool looks like from what its endpoints say of themselves, put together when somebody asks.

use std::sync::{Arc, LazyLock};
use std::time::Duration;
use std::{fmt, iter};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};
use sluice_core::{Clock, Endpoint, Scraped};

use super::ScrapeNow;
use crate::EndpointTable;

/// The series of the pool. There are none while nothing is scraped, and none of what no endpoint has said lately: a value
/// that is out of date would look like one that is not.
pub struct PoolGauges {
    pub table: Arc<EndpointTable>,
    pub clock: Arc<dyn Clock>,
    pub scrape_now: ScrapeNow,
    /// What is older than this does not count.
    pub staleness: Duration,
    /// Value of the label `name`.
    pub pool: String,
    /// Also emits the series under their deprecated names.
    pub legacy_names: bool,
}

impl fmt::Debug for PoolGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolGauges").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Registries tell collectors apart by what they describe, and take two that describe nothing for the same.
static IDENTITY: LazyLock<Option<Desc>> = LazyLock::new(|| {
    let labels = vec!["name".to_owned()];
    Desc::new("pool_gauges".to_owned(), "the gauges of the pool".to_owned(), labels, iter::empty().collect()).ok()
});

impl Collector for PoolGauges {
    /// No list of the series: their names are in one place only, [`Collector::collect`].
    fn desc(&self) -> Vec<&Desc> {
        IDENTITY.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if !self.scrape_now.is_scraping() {
            return Vec::new();
        }
        let snapshot = self.table.snapshot();
        let now = self.clock.now();
        let is_fresh = |scraped: &Scraped| scraped.is_fresh(now, self.staleness);
        let fresh: Vec<(&Arc<Endpoint>, Arc<Scraped>)> = snapshot
            .endpoints()
            .iter()
            .filter_map(|endpoint| Some((endpoint, endpoint.scraped().filter(|scraped| is_fresh(scraped))?)))
            .collect();
        let mut page = Page { pool: &self.pool, legacy_names: self.legacy_names, families: Vec::new() };
        page.counts(fresh.len(), snapshot.endpoints().len() - fresh.len());
        let said = |of: &dyn Fn(&Scraped) -> Option<f64>| -> Vec<f64> {
            fresh.iter().filter_map(|(_, scraped)| of(scraped)).collect()
        };
        page.distribution(&KV_USAGE, &said(&|scraped| scraped.kv_usage));
        page.distribution(&WAITING, &said(&|scraped| scraped.waiting.map(float)));
        page.distribution(&RUNNING, &said(&|scraped| scraped.running.map(float)));
        let queues = fresh.iter();
        let queues = queues.filter_map(|(endpoint, scraped)| Some((&*endpoint.id.name, float(scraped.waiting?))));
        page.queues(&queues.collect::<Vec<_>>());
        page.families
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only; counts stay far below 2^53")]
const fn float(count: u64) -> f64 {
    count as f64
}

/// The families about one value of each endpoint.
struct Names {
    average: &'static str,
    deprecated_average: &'static str,
    deviation: &'static str,
    what: &'static str,
}

const KV_USAGE: Names = Names {
    average: "llm_d_epp_average_kv_cache_utilization",
    deprecated_average: "inference_pool_average_kv_cache_utilization",
    deviation: "llm_d_epp_std_dev_kv_cache_utilization",
    what: "used part of the KV cache",
};
const WAITING: Names = Names {
    average: "llm_d_epp_average_queue_size",
    deprecated_average: "inference_pool_average_queue_size",
    deviation: "llm_d_epp_std_dev_queue_size",
    what: "requests waiting in the model server",
};
const RUNNING: Names = Names {
    average: "llm_d_epp_average_running_requests",
    deprecated_average: "inference_pool_average_running_requests",
    deviation: "llm_d_epp_std_dev_running_requests",
    what: "requests the model server works on",
};

struct Page<'a> {
    pool: &'a str,
    legacy_names: bool,
    families: Vec<MetricFamily>,
}

impl Page<'_> {
    fn counts(&mut self, fresh: usize, stale: usize) {
        let count = |endpoints: usize| float(u64::try_from(endpoints).unwrap_or(u64::MAX));
        let help = "endpoints with fresh metrics";
        self.pool_gauge("llm_d_epp_ready_endpoints", Some("inference_pool_ready_pods"), help, count(fresh));
        let help = "endpoints without fresh metrics";
        self.pool_gauge("llm_d_epp_stale_endpoints", None, help, count(stale));
    }

    /// Mean and spread over the endpoints that have a value.
    fn distribution(&mut self, names: &Names, values: &[f64]) {
        let Some(Distribution { mean, std_dev }) = Distribution::of(values) else { return };
        let Names { average, deprecated_average, deviation, what } = names;
        self.pool_gauge(average, Some(deprecated_average), &format!("{what}: mean of the endpoints"), mean);
        self.pool_gauge(deviation, None, &format!("{what}: standard deviation between the endpoints"), std_dev);
    }

    fn queues(&mut self, rows: &[(&str, f64)]) {
        if rows.is_empty() {
            return;
        }
        let help = "requests waiting in each model server";
        let current = "llm_d_epp_per_endpoint_queue_size";
        self.gauge(current, help, &["name", "model_server_endpoint"], rows);
        if self.legacy_names {
            let help = format!("[Deprecated: Use {current}] {help}");
            self.gauge("inference_pool_per_pod_queue_size", &help, &["name", "model_server_pod"], rows);
        }
    }

    fn pool_gauge(&mut self, name: &str, deprecated: Option<&str>, help: &str, value: f64) {
        self.gauge(name, help, &["name"], &[("", value)]);
        if let Some(deprecated) = deprecated.filter(|_| self.legacy_names) {
            self.gauge(deprecated, &format!("[Deprecated: Use {name}] {help}"), &["name"], &[("", value)]);
        }
    }

    /// `labels` are the pool's and, if there is a second one, what the rows begin with.
    fn gauge(&mut self, name: &str, help: &str, labels: &[&str], rows: &[(&str, f64)]) {
        let Ok(gauge) = GaugeVec::new(Opts::new(name, help), labels) else {
            debug_assert!(false, "{name} is not a family");
            return;
        };
        for (row, value) in rows {
            gauge.with_label_values(&[self.pool, row][..labels.len()]).set(*value);
        }
        self.families.extend(gauge.collect());
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Distribution {
    mean: f64,
    /// That of a sample; 0 for a single value.
    std_dev: f64,
}

impl Distribution {
    /// None without values.
    fn of(values: &[f64]) -> Option<Self> {
        let count = float(u64::try_from(values.len()).ok().filter(|&count| count > 0)?);
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let std_dev = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Some(Self { mean, std_dev })
    }
}
