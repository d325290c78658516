//! Whether anything is left behind when all is over.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::{Simulator, Stack, eventually};

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits until every part says that nothing is in flight.
pub(crate) async fn wait_until_idle(stack: &Stack, servers: &[Simulator]) -> Result<()> {
    let mut counts = Vec::new();
    let idle = eventually(LIMIT, "nothing is in flight", async || {
        counts = in_flight(stack, servers).await?;
        Ok(counts.iter().all(|(_, count)| *count == 0).then_some(()))
    })
    .await;
    idle.with_context(|| format!("{counts:?}"))
}

async fn in_flight(stack: &Stack, servers: &[Simulator]) -> Result<Vec<(String, i64)>> {
    let flow = stack.picker.flow().await?;
    let mut counts: Vec<(String, i64)> = ["granted", "started", "revoked"]
        .map(|kind| (kind.to_owned(), flow["leases"][kind].as_i64().unwrap_or(i64::MAX)))
        .into();
    counts.push(("waiting".to_owned(), flow["waiting"]["requests"].as_i64().unwrap_or(i64::MAX)));
    for endpoint in flow["endpoints"].as_array().context("no list of endpoints")? {
        for part in ["inFlight", "reserved"] {
            let count = endpoint[part]["requests"].as_i64().unwrap_or(i64::MAX);
            counts.push((format!("{part} on {}", endpoint["name"]), count));
        }
    }
    let page = stack.picker.metrics().await?;
    for gauge in ["llm_d_epp_request_running", "llm_d_epp_inflight_requests", "llm_d_epp_inflight_tokens"] {
        counts.push((gauge.to_owned(), page.count(gauge, &[]).unwrap_or_default()));
    }
    for server in servers {
        let page = server.metrics().await?;
        for gauge in ["vllm:num_requests_running", "vllm:num_requests_waiting"] {
            counts.push((gauge.to_owned(), page.count(gauge, &[]).context(gauge)?));
        }
    }
    let envoy = stack.envoy.stats().await?;
    for cluster in ["model_servers", "picker"] {
        let active = envoy.count("envoy_cluster_upstream_rq_active", &[("envoy_cluster_name", cluster)]);
        counts.push((cluster.to_owned(), active.context("Envoy's active requests")?));
    }
    Ok(counts)
}

/// How often the admission engine has found one of its invariants broken.
pub(crate) async fn invariant_violations(stack: &Stack) -> Result<i64> {
    let page = stack.picker.metrics().await?;
    page.count("llm_d_epp_flow_control_invariant_violations_total", &[]).context("no count of violations")
}
