use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get};
use prometheus::{Registry, TextEncoder};
use sluice_router::{FlowSnapshot, FlowState as _};

use crate::access::Gate;
use crate::in_force::{InForce, written};
use crate::pool_view::PoolView;
use crate::rendering::{Rendered, Rendering, Writer};
use crate::{debug, plugin_states};

/// `GET /metrics`, in the Prometheus text format; `GET /debug/config`, the configuration in force; `GET
/// /debug/plugins/state`, its plugins; `GET /debug/flow`, where there is flow control. All of them for those only whom
/// `gate` lets through, if there is one.
pub(crate) fn router(registry: Registry, view: Option<PoolView>, in_force: InForce, gate: Option<Gate>) -> Router {
    let writer = Writer::default();
    let metrics = Rendering::new(Writer::clone(&writer), move || metrics_page(&registry));
    let (plugins_in_force, plugins_view) = (in_force.clone(), view.clone());
    let plugins = Rendering::new(Writer::clone(&writer), move || {
        Ok(plugin_states_page(&plugins_in_force, plugins_view.as_ref()))
    });
    let config = get(async move || ([(header::CONTENT_TYPE, "application/json")], in_force.page()));
    let router = Router::new().route("/metrics", serve(metrics, prometheus::TEXT_FORMAT));
    let router = router.route("/debug/config", config);
    let router = router.route("/debug/plugins/state", serve(plugins, "application/json"));
    let router = match view {
        None => router,
        Some(view) => {
            let flow = Rendering::new(writer, move || Ok(flow_page(&view)));
            router.route("/debug/flow", serve(flow, "application/json"))
        }
    };
    match gate {
        None => router,
        Some(gate) => router.route_layer(from_fn_with_state(gate, Gate::check)),
    }
}

fn serve(rendering: Rendering, content_type: &'static str) -> MethodRouter {
    get(move || async move { respond(rendering.page().await, content_type) })
}

fn respond(page: Rendered, content_type: &'static str) -> Response {
    match page {
        Ok(page) => ([(header::CONTENT_TYPE, content_type)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

fn metrics_page(registry: &Registry) -> Result<String, String> {
    TextEncoder::new().encode_to_string(&registry.gather()).map_err(|error| error.to_string())
}

fn flow_page(view: &PoolView) -> String {
    let FlowSnapshot { stats, endpoints, plugins: _ } = view.now();
    debug::flow_page(&stats, &endpoints).to_string()
}

fn plugin_states_page(in_force: &InForce, view: Option<&PoolView>) -> String {
    let stats = view.map(|view| view.now().stats);
    plugin_states::page(&written(), &in_force.effective(), stats.as_ref()).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use sluice_core::{FlowKey, Priority, SystemClock, Tasks, Time};
    use sluice_data::{EndpointTable, parse_endpoint_file};
    use sluice_flow::{Ask, BandConfig, Config, GlobalLimits, Stage};
    use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};
    use sluice_router::admission::{Admission, Target};
    use sluice_router::{FlowCollector, FlowPlugins, TenantLabels};
    use tokio::runtime::Handle;

    use super::*;
    use crate::tasks::RuntimeTasks;

    /// Words of `text` that look like the name of a series.
    fn names(text: &str) -> BTreeSet<String> {
        let is_own = |word: &str| word.starts_with("sluice_") && word.ends_with("_total");
        let words = text.split(|letter: char| !(letter.is_ascii_lowercase() || letter == '_'));
        let families = ["llm_d_epp_", "llm_d_inference_", "inference_"];
        let is_name = |word: &&str| families.iter().any(|family| word.starts_with(family)) || is_own(word);
        words.filter(is_name).filter(|word| *word != "inference_pool").map(str::to_owned).collect()
    }

    /// The series of flow control, of an engine in which something of everything has happened.
    async fn flow_control_page() -> String {
        let (tasks, _reports) = RuntimeTasks::new(Handle::current());
        let template = BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin));
        let mut config =
            Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(ConcurrencyDetector::default()));
        config.global = GlobalLimits { requests: Some(10), bytes: Some(1_000) };
        let clock = Arc::new(SystemClock::start());
        let admission = Admission::start(config, clock.clone(), &Tasks::new(tasks));
        let table = Arc::new(EndpointTable::default());
        let ask = || Ask::new(FlowKey { tenant: "a".into(), priority: Priority(0) }, Time::ZERO);
        // Nobody is there yet: the first one waits while the page is read, the second one leaves.
        let waiting = admission.admit(ask());
        drop(admission.admit(ask()));
        let listener = admission.clone();
        table.listen(move |snapshot| listener.set_pool(snapshot.endpoints()));
        let registry = Registry::new();
        let plugins = FlowPlugins { producer: "l".to_owned(), detector: "d".to_owned() };
        let view = PoolView::new(admission, &table, plugins);
        let tenants = TenantLabels::new(10, clock);
        registry.register(Box::new(FlowCollector::new(Arc::new(view), tenants, "p", true))).unwrap();
        let empty_pool = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let file = "endpoints: [{name: a, address: 127.0.0.1, port: 1}]";
        table.replace(parse_endpoint_file(file).unwrap().endpoints);
        let endpoint = Arc::clone(&table.snapshot().endpoints()[0]);
        let target = Target { endpoint, stage: Stage::Decode, tokens: 1 };
        let _running = waiting.await.unwrap().start(&[target], None).unwrap();
        empty_pool + &TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[tokio::test]
    async fn the_page_of_metrics_names_every_series_and_no_other() {
        let documented = names(include_str!("../docs/metrics.md"));
        let flow_control = flow_control_page().await;
        let help_and_type = flow_control.lines().filter(|line| line.starts_with("# TYPE"));
        let mut emitted: BTreeSet<String> = help_and_type.flat_map(names).collect();
        emitted.extend(names(include_str!("../crates/extproc/src/metrics.rs")));
        emitted.extend(names(include_str!("../crates/extproc/src/ended.rs")));
        emitted.extend(names(include_str!("../crates/extproc/src/eviction_metrics.rs")));
        emitted.extend(names(include_str!("../crates/router/src/flow_durations.rs")));
        emitted.extend(names(include_str!("../crates/data/src/scrape/metrics.rs")));
        emitted.extend(names(include_str!("../crates/data/src/scrape/pool_gauges.rs")));
        emitted.extend(names(include_str!("tls.rs")));
        emitted.extend(names(include_str!("in_force.rs")));
        emitted.extend(names(include_str!("leadership.rs")));
        assert_eq!(documented, emitted);
    }
}
