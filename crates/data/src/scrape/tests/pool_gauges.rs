//! The series of the pool.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Registry, TextEncoder};
use sluice_core::{Clock, Scraped, Time};

use super::super::{PoolGauges, ScrapeNow, Shared};
use super::server::spec;
use crate::EndpointTable;

#[derive(Debug)]
struct Noon;

impl Clock for Noon {
    fn now(&self) -> Time {
        Time::from_secs(100)
    }
}

/// The lines of a page about endpoints, of which each gives the second of its scrape, waiting and KV usage.
fn page(scraping: bool, endpoints: &[Option<(u64, u64, f64)>]) -> Vec<String> {
    let table = Arc::new(EndpointTable::default());
    table.replace((0..endpoints.len()).map(|index| spec(&format!("pod-{index}"), ([127, 0, 0, 1], 1).into())));
    for (endpoint, scraped) in table.snapshot().endpoints().iter().zip(endpoints) {
        if let Some((second, waiting, kv_usage)) = *scraped {
            let began = Time::from_secs(second);
            endpoint.set_scraped(Scraped { waiting: Some(waiting), kv_usage: Some(kv_usage), ..Scraped::at(began) });
        }
    }
    let shared = Shared::default();
    shared.scraping.store(scraping, std::sync::atomic::Ordering::Relaxed);
    let gauges = PoolGauges {
        table,
        clock: Arc::new(Noon),
        scrape_now: ScrapeNow(Arc::new(shared)),
        staleness: Duration::from_secs(2),
        pool: "p".to_owned(),
        legacy_names: true,
    };
    let registry = Registry::new();
    registry.register(Box::new(gauges)).unwrap();
    let page = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn only_what_is_fresh_counts() {
    let lines = page(true, &[Some((100, 4, 0.25)), Some((98, 8, 0.75)), Some((97, 1_000, 1.0)), None]);
    for line in [
        "llm_d_epp_ready_endpoints{name=\"p\"} 2",
        "inference_pool_ready_pods{name=\"p\"} 2",
        "llm_d_epp_stale_endpoints{name=\"p\"} 2",
        "llm_d_epp_average_queue_size{name=\"p\"} 6",
        "inference_pool_average_queue_size{name=\"p\"} 6",
        "llm_d_epp_std_dev_queue_size{name=\"p\"} 2.8284271247461903",
        "llm_d_epp_average_kv_cache_utilization{name=\"p\"} 0.5",
        "llm_d_epp_per_endpoint_queue_size{model_server_endpoint=\"pod-0\",name=\"p\"} 4",
        "llm_d_epp_per_endpoint_queue_size{model_server_endpoint=\"pod-1\",name=\"p\"} 8",
        "inference_pool_per_pod_queue_size{model_server_pod=\"pod-1\",name=\"p\"} 8",
    ] {
        assert!(lines.iter().any(|there| there == line), "{line} is not in {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains("pod-2") || line.contains("running")), "{lines:#?}");
}

#[test]
fn with_nothing_fresh_there_is_no_average() {
    let lines = page(true, &[Some((97, 1, 0.5))]);
    let expected = [
        "inference_pool_ready_pods{name=\"p\"} 0",
        "llm_d_epp_ready_endpoints{name=\"p\"} 0",
        "llm_d_epp_stale_endpoints{name=\"p\"} 1",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_single_endpoint_has_no_spread() {
    let lines = page(true, &[Some((100, 4, 0.25))]);
    assert!(lines.contains(&"llm_d_epp_std_dev_queue_size{name=\"p\"} 0".to_owned()), "{lines:#?}");
}

#[test]
fn nothing_is_said_while_nothing_is_scraped() {
    assert_eq!(page(false, &[Some((100, 4, 0.25))]), [""; 0]);
}
