use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sluice_core::EndpointId;
use sluice_data::EndpointTable;
use sluice_flow::EndpointKey;
use sluice_router::admission::Admission;
use sluice_router::{FlowSnapshot, FlowState};

/// Flow control as metrics and the debug page see it.
#[derive(Clone, Debug)]
pub(crate) struct PoolView {
    admission: Admission,
    /// The endpoints of the pool, and those that have left it with requests in flight.
    names: Arc<Mutex<BTreeMap<EndpointKey, EndpointId>>>,
    producer: Arc<ArcSwap<String>>,
}

impl PoolView {
    /// To be made after the engine has begun to listen to `table`. `producer` as in [`FlowSnapshot`].
    pub(crate) fn new(admission: Admission, table: &EndpointTable, producer: &str) -> Self {
        let names: Arc<Mutex<BTreeMap<EndpointKey, EndpointId>>> = Arc::default();
        let listener = Arc::clone(&names);
        table.listen(move |snapshot| {
            let named = snapshot.endpoints().iter();
            let named = named.map(|endpoint| (EndpointKey(endpoint.serial()), endpoint.id.clone()));
            listener.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        });
        Self { admission, names, producer: Arc::new(ArcSwap::from_pointee(producer.to_owned())) }
    }

    pub(crate) fn set_producer(&self, producer: &str) {
        self.producer.store(Arc::new(producer.to_owned()));
    }
}

impl FlowState for PoolView {
    fn now(&self) -> FlowSnapshot {
        // Before the state is read: an endpoint that comes in between would be taken for one that is gone.
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = self.admission.stats();
        names.retain(|key, _| stats.endpoints.contains_key(key));
        FlowSnapshot { stats, names: names.clone(), producer: self.producer.load().to_string() }
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
        let view = PoolView::new(admission, &table, "l");
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
                let FlowSnapshot { stats, names, producer: _ } = view.now();
                stats.endpoints.keys().all(|key| names.contains_key(key))
            });
            done.store(true, Ordering::Relaxed);
            all_named
        });
        assert!(all_named);
    }
}
