use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::EndpointId;
use sluice_data::EndpointTable;
use sluice_flow::{EndpointKey, Stats};
use sluice_router::FlowState;
use sluice_router::admission::Admission;

/// Flow control as metrics and the debug page see it.
#[derive(Clone, Debug)]
pub(crate) struct PoolView {
    admission: Admission,
    table: Arc<EndpointTable>,
}

impl PoolView {
    pub(crate) const fn new(admission: Admission, table: Arc<EndpointTable>) -> Self {
        Self { admission, table }
    }
}

impl FlowState for PoolView {
    fn stats(&self) -> Stats {
        self.admission.stats()
    }

    /// An endpoint that has left the pool has no name any more.
    fn endpoint_names(&self) -> BTreeMap<EndpointKey, EndpointId> {
        let snapshot = self.table.snapshot();
        let named = snapshot.endpoints().iter();
        named.map(|endpoint| (EndpointKey(endpoint.serial()), endpoint.id.clone())).collect()
    }
}
