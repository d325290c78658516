use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

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
}

impl PoolView {
    /// To be made after the engine has begun to listen to `table`.
    pub(crate) fn new(admission: Admission, table: &EndpointTable) -> Self {
        let names: Arc<Mutex<BTreeMap<EndpointKey, EndpointId>>> = Arc::default();
        let listener = Arc::clone(&names);
        table.listen(move |snapshot| {
            let named = snapshot.endpoints().iter();
            let named = named.map(|endpoint| (EndpointKey(endpoint.serial()), endpoint.id.clone()));
            listener.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        });
        Self { admission, names }
    }
}

impl FlowState for PoolView {
    fn now(&self) -> FlowSnapshot {
        let stats = self.admission.stats();
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|key, _| stats.endpoints.contains_key(key));
        FlowSnapshot { stats, names: names.clone() }
    }
}
