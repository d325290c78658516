//! `GET /debug/flow`: the state of flow control, for a person who wants to know why a request waits.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use sluice_core::Endpoint;
use sluice_flow::policy::{BookingLimit, Seen};
use sluice_flow::{BandStats, EndpointKey, EndpointStats, FlowStats, Partition, Stats};

/// The whole page.
pub(crate) fn flow_page(stats: &Stats, endpoints: &BTreeMap<EndpointKey, Arc<Endpoint>>) -> Value {
    let entry = |(key, stats)| endpoint_entry(endpoints.get(key).map(|endpoint| &**endpoint), stats);
    let endpoints: Vec<Value> = stats.endpoints.iter().map(entry).collect();
    json!({
        "waiting": {"requests": stats.waiting.requests, "bytes": stats.waiting.bytes},
        "leases": {
            "granted": stats.leases.granted,
            "started": stats.leases.started,
            "revoked": stats.leases.revoked,
        },
        "revocations": {
            "outstanding": stats.revocations.outstanding,
            "confirmed": stats.revocations.confirmed,
            "timedOut": stats.revocations.timed_out,
        },
        "saturation": saturation(stats),
        "closed": stats.closed,
        "dryRun": stats.dry_run_ceilings,
        "bands": stats.bands.iter().map(|band| band_entry(band, stats)).collect::<Vec<_>>(),
        "endpoints": endpoints,
    })
}

/// What the saturation detector makes of the pool.
pub(crate) fn saturation(stats: &Stats) -> Value {
    let by_stage: BTreeMap<&str, f64> =
        stats.saturation.iter().map(|(partition, value)| (partition_name(*partition), *value)).collect();
    json!({"effective": stats.effective_saturation, "byStage": by_stage})
}

fn band_entry(band: &BandStats, stats: &Stats) -> Value {
    json!({
        "priority": band.priority.0,
        "ceiling": band.ceiling,
        "gated": why_gated(band, stats.dry_run_ceilings, &stats.saturation),
        "waiting": {"requests": band.waiting.requests, "bytes": band.waiting.bytes},
        "parked": band.parked,
        "oldestWaitSeconds": band.oldest_wait.as_secs_f64(),
        "maxRequests": band.max_requests,
        "maxBytes": band.max_bytes,
        "flows": band.flows.iter().map(flow_entry).collect::<Vec<_>>(),
    })
}

/// Null for a band that the gate lets pass.
fn why_gated(band: &BandStats, dry_run: bool, saturation: &[(Partition, f64)]) -> Value {
    if !band.gated {
        return Value::Null;
    }
    if saturation.is_empty() {
        return json!("the pool has no endpoints");
    }
    let ceiling = if dry_run { 1.0 } else { band.ceiling };
    if ceiling <= 0.0 {
        return json!("its ceiling is 0: nothing of it is let in");
    }
    let over = saturation.iter().filter(|(_, saturation)| *saturation >= ceiling);
    let over: Vec<String> = over
        .map(|(partition, saturation)| format!("saturation of {} is {saturation:.3}", partition_name(*partition)))
        .collect();
    if over.is_empty() {
        return json!("a band above it is held back");
    }
    let name = if dry_run { "the ceiling of a dry run" } else { "its ceiling" };
    json!(format!("{}, {name} {ceiling:.3}", over.join(" and ")))
}

fn flow_entry(flow: &FlowStats) -> Value {
    json!({
        "tenant": excerpt(&flow.tenant),
        "waiting": {"requests": flow.waiting.requests, "bytes": flow.waiting.bytes},
        "oldestWaitSeconds": flow.oldest_wait.as_secs_f64(),
        "inFlight": flow.in_flight,
        "held": why_held(flow),
    })
}

/// No more of an id than is needed to recognise it: clients choose theirs, a thousand of them in a band.
fn excerpt(id: &str) -> Cow<'_, str> {
    const LONGEST: usize = 100;
    match id.char_indices().nth(LONGEST) {
        Some((end, _)) => Cow::Owned(format!("{}… ({} bytes)", id.get(..end).unwrap_or_default(), id.len())),
        None => Cow::Borrowed(id),
    }
}

/// Null for a queue that takes its turns.
fn why_held(flow: &FlowStats) -> Value {
    if flow.capped { json!("its tenant has as many in flight as maxInFlightPerFlow allows") } else { Value::Null }
}

fn endpoint_entry(endpoint: Option<&Endpoint>, stats: &EndpointStats) -> Value {
    let EndpointStats { in_pool, load, inherited, reserved, limit, seen } = stats;
    let BookingLimit { requests, tokens } = limit;
    json!({
        "name": endpoint.map(|endpoint| endpoint.id.to_string()),
        "inPool": in_pool,
        "inFlight": {"requests": load.requests, "tokens": load.tokens},
        "inherited": inherited,
        "reserved": {"requests": reserved.requests, "tokens": reserved.tokens},
        "limit": {"requests": finite(*requests), "tokens": finite(*tokens)},
        "scraped": seen.as_ref().map(scraped_entry),
        "scrapeFault": endpoint.and_then(Endpoint::scrape_fault).map(|fault| Value::from(fault.as_str())),
    })
}

/// What the endpoint said of itself, and what is made of it.
fn scraped_entry(seen: &Seen) -> Value {
    let Seen { waiting, running, kv_usage, age, expected_waiting, room, stale } = seen;
    json!({
        "waiting": waiting,
        "running": running,
        "kvUsage": kv_usage,
        "ageSeconds": age.map(|age| age.as_secs_f64()),
        "expectedWaiting": expected_waiting,
        "room": room,
        "stale": stale,
    })
}

/// Null stands for no limit.
fn finite(limit: u64) -> Option<u64> {
    Some(limit).filter(|&limit| limit < u64::MAX)
}

const fn partition_name(partition: Partition) -> &'static str {
    match partition {
        Partition::Prefill => "prefill",
        Partition::Decode => "decode",
        Partition::Pool => "pool",
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::{EndpointId, EndpointUid, Priority};
    use sluice_flow::{Load, Waiting};

    use super::*;

    fn band(priority: i32, ceiling: f64, gated: bool) -> BandStats {
        BandStats {
            priority: Priority(priority),
            waiting: Waiting { requests: 3, bytes: 30 },
            parked: 1,
            oldest_wait: std::time::Duration::from_millis(1_500),
            max_requests: 10,
            max_bytes: 100,
            ceiling,
            gated,
            flows: vec![],
        }
    }

    fn flow(tenant: &str) -> FlowStats {
        FlowStats {
            tenant: tenant.into(),
            waiting: Waiting { requests: 1, bytes: 10 },
            oldest_wait: std::time::Duration::ZERO,
            in_flight: 2,
            capped: false,
            started: BTreeMap::new(),
        }
    }

    #[test]
    fn a_gated_band_says_why() {
        let decode = [(Partition::Prefill, 0.1), (Partition::Decode, 0.85)];
        let why_gated = |band: &BandStats, saturation: &[_]| why_gated(band, false, saturation);
        assert_eq!(why_gated(&band(0, 0.8, true), &decode), "saturation of decode is 0.850, its ceiling 0.800");
        assert_eq!(why_gated(&band(0, 0.8, false), &decode), Value::Null);
        assert_eq!(why_gated(&band(0, 0.0, true), &decode), "its ceiling is 0: nothing of it is let in");
        assert_eq!(why_gated(&band(0, 0.9, true), &decode), "a band above it is held back");
        assert_eq!(why_gated(&band(0, 1.0, true), &[]), "the pool has no endpoints");
    }

    #[test]
    fn in_a_dry_run_the_ceiling_that_holds_back_is_quoted() {
        let full = [(Partition::Decode, 1.0)];
        let why = why_gated(&band(0, 0.8, true), true, &full);
        assert_eq!(why, "saturation of decode is 1.000, the ceiling of a dry run 1.000");
        assert_eq!(why_gated(&band(0, 0.0, true), true, &full), why, "a ceiling of 0 closes nothing");
    }

    #[test]
    fn an_endpoint_says_what_is_wrong_with_its_metrics() {
        let stats = EndpointStats {
            in_pool: true,
            load: Load::default(),
            inherited: 0,
            reserved: Load::default(),
            limit: BookingLimit::UNLIMITED,
            seen: None,
        };
        let (id, uid) = (EndpointId::new("default", "a"), EndpointUid("1".into()));
        let endpoint = Endpoint::new(id, uid, ([127, 0, 0, 1], 1).into(), BTreeMap::new());
        let fault = || endpoint_entry(Some(&endpoint), &stats)["scrapeFault"].clone();
        assert_eq!(fault(), Value::Null);
        endpoint.set_scrape_fault(Some("status 500".to_owned()));
        assert_eq!(fault(), "status 500");
    }

    #[test]
    fn of_a_long_id_there_is_no_more_than_its_beginning() {
        assert_eq!(excerpt("tenant"), "tenant");
        let longest = "ä".repeat(100);
        assert_eq!(excerpt(&longest), longest);
        assert_eq!(excerpt(&format!("{longest}xy")), format!("{longest}… (202 bytes)"));
        assert!(flow_entry(&flow(&"x".repeat(60_000))).to_string().len() < 500);
    }

    #[test]
    fn a_queue_at_the_limit_of_its_tenant_says_so() {
        assert_eq!(flow_entry(&flow("a"))["held"], Value::Null);
        let held = flow_entry(&FlowStats { capped: true, ..flow("a") })["held"].clone();
        assert_eq!(held, "its tenant has as many in flight as maxInFlightPerFlow allows");
    }
}
