use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sluice_core::Endpoint;
use sluice_data::EndpointTable;
use sluice_flow::EndpointKey;
use sluice_router::admission::Admission;
use sluice_router::{FlowPlugins, FlowSnapshot, FlowState};

/// Flow control as metrics and the debug page see it.
#[derive(Clone, Debug)]
pub(crate) struct PoolView {
    admission: Admission,
    /// The endpoints of the pool, and those that have left it with requests in flight.
    endpoints: Arc<Mutex<BTreeMap<EndpointKey, Arc<Endpoint>>>>,
    plugins: Arc<ArcSwap<FlowPlugins>>,
}

impl PoolView {
    /// To be made after the engine has begun to listen to `table`.
    pub(crate) fn new(admission: Admission, table: &EndpointTable, plugins: FlowPlugins) -> Self {
        let endpoints: Arc<Mutex<BTreeMap<EndpointKey, Arc<Endpoint>>>> = Arc::default();
        let listener = Arc::clone(&endpoints);
        table.listen(move |snapshot| {
            let present = snapshot.endpoints().iter();
            let present = present.map(|endpoint| (EndpointKey(endpoint.serial()), Arc::clone(endpoint)));
            listener.lock().unwrap_or_else(PoisonError::into_inner).extend(present);
        });
        Self { admission, endpoints, plugins: Arc::new(ArcSwap::from_pointee(plugins)) }
    }

    pub(crate) fn set_plugins(&self, plugins: FlowPlugins) {
        self.plugins.store(Arc::new(plugins));
    }
}

impl FlowState for PoolView {
    fn now(&self) -> FlowSnapshot {
        // Before the state is read: an endpoint that comes in between would be taken for one that is gone.
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = self.admission.stats();
        endpoints.retain(|key, _| stats.endpoints.contains_key(key));
        FlowSnapshot { stats, endpoints: endpoints.clone(), plugins: FlowPlugins::clone(&self.plugins.load()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use sluice_core::{SystemClock, Tasks};
    use sluice_data::parse_endpoint_file;
    use sluice_flow::{BandConfig, Config};
    use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};
    use tokio::runtime::Handle;

    use super::*;
    use crate::tasks::RuntimeTasks;

    #[tokio::test]
    async fn an_endpoint_that_comes_while_somebody_looks_keeps_its_name() {
        let (tasks, _reports) = RuntimeTasks::new(Handle::current());
        let template = BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin));
        let config =
            Config::new(template, Arc::new(StaticUsageLimit::default()), Arc::new(ConcurrencyDetector::default()));
        let admission = Admission::start(config, Arc::new(SystemClock::start()), &Tasks::new(tasks));
        let table = EndpointTable::default();
        let listener = admission.clone();
        table.listen(move |snapshot| listener.set_pool(snapshot.endpoints()));
        let plugins = FlowPlugins { producer: "l".to_owned(), detector: "d".to_owned() };
        let view = PoolView::new(admission, &table, plugins);
        let specs = parse_endpoint_file("endpoints: [{name: a, address: 127.0.0.1, port: 1}]").unwrap().endpoints;

        let done = AtomicBool::new(false);
        let all_named = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    view.now();
                }
            });
            let all_named = (0..1_000).all(|_| {
                // Each time a new life.
                table.replace([]);
                table.replace(specs.clone());
                let FlowSnapshot { stats, endpoints, plugins: _ } = view.now();
                stats.endpoints.keys().all(|key| endpoints.contains_key(key))
            });
            done.store(true, Ordering::Relaxed);
            all_named
        });
        assert!(all_named);
    }
}
