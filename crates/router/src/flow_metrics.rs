//! What flow control looks like from outside: read from one copy of the engine's state when somebody asks, so that a
//! series can never drift away from what it counts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts};
use sluice_core::{Endpoint, EndpointId, Priority};
use sluice_flow::{
    BandStats, EndpointKey, FlowStats, InvariantId, Load, Outcome, Partition, RevocationStats, Stats, Waiting,
};

use crate::{OTHER, TenantLabels};

/// At most this many rows of a family tell tenants apart; what is left is summed up under `other`.
const MAX_ROWS: usize = 4_000;

/// Where the collector finds the present state.
pub trait FlowState: Send + Sync {
    fn now(&self) -> FlowSnapshot;
}

/// Flow control at one moment.
#[derive(Clone, Debug)]
pub struct FlowSnapshot {
    pub stats: Stats,
    /// The endpoints in [`Stats::endpoints`].
    pub endpoints: BTreeMap<EndpointKey, Arc<Endpoint>>,
    pub plugins: FlowPlugins,
}

/// The names of plugins that are values of labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPlugins {
    /// Of `producer_name`: who estimates what requests weigh.
    pub producer: String,
    /// Of `detector`: who tells how full the pool is.
    pub detector: String,
}

/// The series of flow control. `legacy_names` also emits them under their deprecated names.
pub struct FlowCollector {
    state: Arc<dyn FlowState>,
    tenants: TenantLabels,
    /// Value of the label `inference_pool`.
    pool: String,
    legacy_names: bool,
}

impl fmt::Debug for FlowCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowCollector").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl FlowCollector {
    /// `pool` is what the label `inference_pool` says.
    pub fn new(state: Arc<dyn FlowState>, tenants: TenantLabels, pool: &str, legacy_names: bool) -> Self {
        Self { state, tenants, pool: pool.to_owned(), legacy_names }
    }
}

impl Collector for FlowCollector {
    /// No fixed list: the names are in one place only, [`Collector::collect`].
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let FlowSnapshot { stats, endpoints, plugins: FlowPlugins { producer, detector } } = self.state.now();
        let Self { state: _, tenants, pool, legacy_names } = self;
        let mut page = Page { tenants, pool, legacy_names: *legacy_names, families: Vec::new() };
        page.flows(&stats.bands);
        page.bands(&stats);
        page.global(&stats);
        page.stale(&stats, &detector);
        page.outcomes(&stats);
        page.endpoints(&stats, &endpoints, &producer);
        page.families
    }
}

struct Page<'a> {
    tenants: &'a TenantLabels,
    pool: &'a str,
    legacy_names: bool,
    families: Vec<MetricFamily>,
}

/// Label values, without the pool, and what they count.
type Row = (Vec<String>, f64);

fn waiting_flows(bands: &[BandStats]) -> impl Iterator<Item = (&BandStats, &FlowStats)> {
    let flows = bands.iter().flat_map(|band| band.flows.iter().map(move |flow| (band, flow)));
    flows.filter(|(_, flow)| flow.waiting.requests > 0)
}

/// The sum for `tenant`, or for `other` if there is no row for it and there are enough.
fn row_of<'r, K: Ord, V: Default>(rows: &'r mut BTreeMap<K, V>, tenant: &str, key: impl Fn(String) -> K) -> &'r mut V {
    let own = key(tenant.to_owned());
    let has_row = rows.len() < MAX_ROWS || rows.contains_key(&own);
    rows.entry(if has_row { own } else { key(OTHER.to_owned()) }).or_default()
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only; counts stay far below 2^53")]
const fn float(count: u64) -> f64 {
    count as f64
}

impl Page<'_> {
    fn flows(&mut self, bands: &[BandStats]) {
        // Tenants without a label value of their own share a row.
        let mut waiting: BTreeMap<(String, Priority), Waiting> = BTreeMap::new();
        for (band, flow) in waiting_flows(bands) {
            let tenant = self.tenants.admit(&flow.tenant);
            let sum = row_of(&mut waiting, tenant.as_str(), |tenant| (tenant, band.priority));
            sum.requests += flow.waiting.requests;
            sum.bytes += flow.waiting.bytes;
        }
        let rows = |value: fn(&Waiting) -> u64| -> Vec<Row> {
            let rows = waiting.iter();
            rows.map(|((tenant, priority), waiting)| {
                (vec![tenant.clone(), priority.to_string()], float(value(waiting)))
            })
            .collect()
        };
        let labels = ["fairness_id", "priority"];
        self.gauge_and_twin("queue_size", "requests waiting", &labels, &rows(|waiting| waiting.requests));
        self.gauge_and_twin("queue_bytes", "bytes of the bodies of waiting requests", &labels, &rows(|w| w.bytes));
    }

    fn bands(&mut self, stats: &Stats) {
        let by_band = |value: &dyn Fn(&BandStats) -> f64| -> Vec<Row> {
            stats.bands.iter().map(|band| (vec![band.priority.to_string()], value(band))).collect()
        };
        let share = |used: u64, limit: u64| if limit == 0 { 0.0 } else { float(used) / float(limit) };
        let gauges: [(&str, &str, Vec<Row>); 6] = [
            ("ceiling", "saturation at and above which the band is held back", by_band(&|band| band.ceiling)),
            ("gated", "1 while the gate lets nothing of the band pass", by_band(&|b| f64::from(u8::from(b.gated)))),
            ("parked", "requests that wait for room on certain endpoints", by_band(&|b| float(b.parked))),
            (
                "oldest_wait_seconds",
                "wait of the request that came first of those waiting",
                by_band(&|band| band.oldest_wait.as_secs_f64()),
            ),
            (
                "capacity_utilization_requests",
                "waiting requests per request that may wait in the band",
                by_band(&|band| share(band.waiting.requests, band.max_requests)),
            ),
            (
                "capacity_utilization_bytes",
                "waiting bytes per byte that may wait in the band",
                by_band(&|band| share(band.waiting.bytes, band.max_bytes)),
            ),
        ];
        for (name, help, rows) in gauges {
            self.gauge(&format!("llm_d_epp_flow_control_{name}"), help, &["priority"], &rows);
        }

        let stage = |partition: &Partition| match partition {
            Partition::Prefill => "prefill",
            Partition::Decode => "decode",
            Partition::Pool => "pool",
        };
        let mut saturation: Vec<Row> =
            stats.saturation.iter().map(|(partition, value)| (vec![stage(partition).to_owned()], *value)).collect();
        saturation.push((vec!["effective".to_owned()], stats.effective_saturation));
        self.gauge_and_twin("pool_saturation", "load per capacity, 1 for an empty pool", &["stage"], &saturation);
    }

    /// Only where there are such limits.
    fn global(&mut self, stats: &Stats) {
        let Stats { waiting, global, .. } = stats;
        for (unit, used, limit) in
            [("requests", waiting.requests, global.requests), ("bytes", waiting.bytes, global.bytes)]
        {
            let Some(limit) = limit.filter(|&limit| limit > 0) else { continue };
            let name = format!("llm_d_epp_flow_control_global_capacity_utilization_{unit}");
            let help = format!("waiting {unit} of all bands per the limit over all of them");
            self.gauge(&name, &help, &[], &[(Vec::new(), float(used) / float(limit))]);
        }
    }

    fn outcomes(&mut self, stats: &Stats) {
        let totals = || stats.totals.iter();
        let outcomes: Vec<Row> = totals()
            .flat_map(|(priority, totals)| {
                let seen = Outcome::ALL.into_iter().filter(|&outcome| totals.outcome(outcome) > 0);
                seen.map(|outcome| {
                    (vec![outcome.as_str().to_owned(), priority.to_string()], float(totals.outcome(outcome)))
                })
            })
            .collect();
        let help = "requests whose admission ended, by how";
        self.counter("llm_d_epp_flow_control_requests_total", help, &["outcome", "priority"], &outcomes);
        let by_priority = |value: fn(&sluice_flow::BandTotals) -> u64| -> Vec<Row> {
            totals().map(|(priority, totals)| (vec![priority.to_string()], float(value(totals)))).collect()
        };
        let counters: [(&str, &str, Vec<Row>); 4] = [
            ("displaced_total", "requests dropped for more urgent ones", by_priority(|totals| totals.displaced)),
            ("would_gate_total", "grants that a ceiling would have held back", by_priority(|totals| totals.would_gate)),
            (
                "revocations_issued_total",
                "requests in flight that were told to make room, by the priority that needs it",
                by_priority(|totals| totals.revocations),
            ),
            (
                "would_revoke_total",
                "requests in flight that would have been told to make room, by the priority that needs it",
                by_priority(|totals| totals.would_revoke),
            ),
        ];
        for (name, help, rows) in counters {
            self.counter(&format!("llm_d_epp_flow_control_{name}"), help, &["priority"], &rows);
        }
        let RevocationStats { confirmed, timed_out, outstanding } = stats.revocations;
        let ends = [("confirmed", confirmed), ("timed_out", timed_out)];
        let ends = ends.map(|(outcome, count)| (vec![outcome.to_owned()], float(count)));
        let help = "requests that were told to make room: those that ended in time, and those that did not";
        self.counter("llm_d_epp_flow_control_revocations_total", help, &["outcome"], &ends);
        let help = "what the last eviction plan wanted back, in what the saturation counts";
        self.gauge("llm_d_epp_flow_control_reclaim_target", help, &[], &[(Vec::new(), stats.reclaim_target)]);
        let pending = [(Vec::new(), float(outstanding))];
        let help = "requests that were told to make room, and are counted upon to end";
        self.gauge("llm_d_epp_flow_control_pending_reclaim", help, &[], &pending);
        let invalid = [(Vec::new(), float(stats.invalid_ttls))];
        let help = "x-llm-d-inference-ttl values that could not be used";
        self.counter("llm_d_epp_flow_control_invalid_ttl_total", help, &[], &invalid);
        let flattened = [(Vec::new(), float(stats.flattened_ceilings))];
        let help = "ceilings that rose toward lower priority and were lowered";
        self.counter("llm_d_epp_flow_control_flattened_ceilings_total", help, &[], &flattened);
        let broken = |invariant: InvariantId| (vec![invariant.to_string()], float(stats.violations.of(invariant)));
        let help = "invariants of the engine that were found broken: a bug";
        let broken = InvariantId::COUNTED.map(broken);
        self.counter("llm_d_epp_flow_control_invariant_violations_total", help, &["invariant"], &broken);
    }

    fn stale(&mut self, stats: &Stats, detector: &str) {
        let stale = [(vec![detector.to_owned()], float(stats.stale_endpoints.unwrap_or_default()))];
        let help = "endpoints whose metrics are too old for the saturation detector to go by";
        self.gauge("llm_d_epp_flow_control_stale_endpoints", help, &["detector"], &stale);
    }

    fn endpoints(&mut self, stats: &Stats, endpoints: &BTreeMap<EndpointKey, Arc<Endpoint>>, producer: &str) {
        // An endpoint that was replaced under its name may still be finishing beside its successor.
        let mut in_flight: BTreeMap<(&EndpointId, String, Priority), Load> = BTreeMap::new();
        for band in &stats.bands {
            for flow in band.flows.iter().filter(|flow| !flow.started.is_empty()) {
                let tenant = self.tenants.admit(&flow.tenant);
                for (key, load) in &flow.started {
                    let Some(id) = endpoints.get(key).map(|endpoint| &endpoint.id) else { continue };
                    let sum = row_of(&mut in_flight, tenant.as_str(), |tenant| (id, tenant, band.priority));
                    *sum = sum.plus(*load);
                }
            }
        }
        let rows = |value: fn(&Load) -> u64| -> Vec<Row> {
            let row = |((id, tenant, priority), load): (&(&EndpointId, String, Priority), &Load)| {
                let names = [id.name.to_string(), id.namespace.to_string(), producer.to_owned()];
                ([&names[..], &[tenant.clone(), priority.to_string()]].concat(), float(value(load)))
            };
            in_flight.iter().map(row).collect()
        };
        let labels = ["endpoint_name", "namespace", "producer_name", "fairness_id", "priority"];
        let requests = rows(|load| load.requests);
        self.gauge("llm_d_epp_inflight_requests", "requests started on the endpoint and not ended", &labels, &requests);
        let tokens = rows(|load| load.tokens);
        self.gauge("llm_d_epp_inflight_tokens", "tokens that those requests are charged", &labels, &tokens);
    }

    fn gauge_and_twin(&mut self, name: &str, help: &str, labels: &[&str], rows: &[Row]) {
        let current = format!("llm_d_epp_flow_control_{name}");
        self.gauge(&current, help, labels, rows);
        if self.legacy_names {
            let help = format!("[Deprecated: Use {current}] {help}");
            self.gauge(&format!("inference_extension_flow_control_{name}"), &help, labels, rows);
        }
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &[&str], rows: &[Row]) {
        let labels = [labels, &["inference_pool"]].concat();
        let Ok(family) = GaugeVec::new(Opts::new(name, help), &labels) else { return };
        for (values, value) in rows {
            family.with_label_values(&self.values(values)).set(*value);
        }
        self.families.extend(family.collect());
    }

    fn counter(&mut self, name: &str, help: &str, labels: &[&str], rows: &[Row]) {
        let labels = [labels, &["inference_pool"]].concat();
        let Ok(family) = CounterVec::new(Opts::new(name, help), &labels) else { return };
        for (values, value) in rows {
            family.with_label_values(&self.values(values)).inc_by(*value);
        }
        self.families.extend(family.collect());
    }

    fn values<'b>(&'b self, values: &'b [String]) -> Vec<&'b str> {
        values.iter().map(String::as_str).chain([self.pool]).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sluice_core::{Clock, Time};
    use sluice_flow::{BandConfig, Config, Engine};
    use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};

    use super::*;

    #[derive(Debug)]
    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Time {
            Time::ZERO
        }
    }

    impl FlowState for FlowSnapshot {
        fn now(&self) -> FlowSnapshot {
            self.clone()
        }
    }

    /// The rows of one family: label values and value.
    fn rows(stats: Stats, family: &str) -> Vec<(Vec<String>, f64)> {
        let plugins = FlowPlugins { producer: "l".to_owned(), detector: "d".to_owned() };
        let state = FlowSnapshot { stats, endpoints: BTreeMap::new(), plugins };
        let tenants = TenantLabels::new(10, Arc::new(Stopped));
        let families = FlowCollector::new(Arc::new(state), tenants, "p", false).collect();
        let family = families.into_iter().find(|found| found.name() == family).unwrap();
        let values = |metric: &prometheus::proto::Metric| {
            let labels = metric.get_label().iter().map(|label| label.value().to_owned()).collect();
            (labels, metric.get_gauge().get_value() + metric.get_counter().get_value())
        };
        family.get_metric().iter().map(values).collect()
    }

    fn idle() -> Stats {
        let template = BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin));
        let (limit, detector) = (StaticUsageLimit::default(), ConcurrencyDetector::default());
        Engine::new(Config::new(template, Arc::new(limit), Arc::new(detector))).stats(Time::ZERO)
    }

    #[test]
    fn what_a_plan_wants_back_stands_beside_what_it_is_about_to_get() {
        let mut stats = Stats { reclaim_target: 5.0, ..idle() };
        stats.revocations.outstanding = 3;
        let pool = || vec!["p".to_owned()];
        assert_eq!(rows(stats.clone(), "llm_d_epp_flow_control_reclaim_target"), [(pool(), 5.0)]);
        assert_eq!(rows(stats, "llm_d_epp_flow_control_pending_reclaim"), [(pool(), 3.0)]);
    }

    #[test]
    fn endpoints_that_the_detector_cannot_go_by_are_counted() {
        let stale =
            |stale_endpoints| rows(Stats { stale_endpoints, ..idle() }, "llm_d_epp_flow_control_stale_endpoints");
        let labels = || vec!["d".to_owned(), "p".to_owned()];
        assert_eq!(stale(Some(3)), [(labels(), 3.0)]);
        assert_eq!(stale(None), [(labels(), 0.0)], "it does not ask them");
    }

    #[test]
    fn only_invariants_that_are_checked_have_a_row() {
        let rows = rows(idle(), "llm_d_epp_flow_control_invariant_violations_total");
        let labels = rows.iter().flat_map(|(labels, _)| labels).map(String::as_str);
        let shown: BTreeSet<&str> = labels.filter(|label| *label != "p").collect();
        assert_eq!(shown, ["F1", "F2", "F5", "F7", "F9", "F10", "F11", "F12"].into());
    }

    #[test]
    fn rows_are_bounded_and_their_sum_is_not_cut() {
        let mut rows: BTreeMap<(String, Priority), u64> = BTreeMap::new();
        for tenant in 0..3_000 {
            for priority in [Priority(0), Priority(1)] {
                *row_of(&mut rows, &tenant.to_string(), |tenant| (tenant, priority)) += 1;
            }
        }
        assert_eq!(rows.len(), MAX_ROWS + 2, "one of each priority for the rest");
        assert_eq!(rows.values().sum::<u64>(), 6_000);
        assert_eq!(rows[&(OTHER.to_owned(), Priority(1))], 1_000);
        *row_of(&mut rows, "7", |tenant| (tenant, Priority(0))) += 1;
        assert_eq!(rows[&("7".to_owned(), Priority(0))], 2);
    }
}
