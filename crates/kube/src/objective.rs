use sluice_core::Priority;

use crate::collection::{Key, Named};
use crate::crd::{InferenceObjectiveSpec, PoolRef};
use crate::status::Observed;

/// An InferenceObjective, of either group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    pub key: Key,
    pub pool: PoolRef,
    pub priority: Priority,
    pub observed: Observed,
}

impl Named for Objective {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Objective {
    pub(crate) fn new(key: Key, spec: InferenceObjectiveSpec, observed: Observed) -> Self {
        let InferenceObjectiveSpec { priority, pool_ref } = spec;
        Self { key, pool: pool_ref, priority: Priority(priority.unwrap_or_default()), observed }
    }
}
