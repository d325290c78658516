use crate::collection::{Key, Named};
use crate::crd::{InferenceModelRewriteSpec, PoolRef, RewriteRule};
use crate::status::Observed;

/// An InferenceModelRewrite, of either group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    pub key: Key,
    /// Seconds since 1970. Of two objects with a rule for the same model the earlier one counts.
    pub created: i64,
    pub pool: PoolRef,
    pub rules: Vec<RewriteRule>,
    pub observed: Observed,
}

impl Named for Rewrite {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Rewrite {
    pub(crate) fn new(key: Key, created: i64, spec: InferenceModelRewriteSpec, observed: Observed) -> Self {
        let InferenceModelRewriteSpec { pool_ref, rules } = spec;
        Self { key, created, pool: pool_ref, rules, observed }
    }
}
