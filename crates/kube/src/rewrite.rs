use sluice_core::MAX_MODEL_NAME;

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
    /// Those that can be gone by.
    pub rules: Vec<RewriteRule>,
    /// Rules beside them of which a target has no name, or one that no model may have. Not every definition of the kind
    /// that a cluster may have keeps them out.
    pub left_out: usize,
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
        let all = rules.len();
        let rules: Vec<RewriteRule> = rules.into_iter().filter(has_good_targets).collect();
        let left_out = all - rules.len();
        Self { key, created, pool: pool_ref, rules, left_out, observed }
    }
}

fn has_good_targets(rule: &RewriteRule) -> bool {
    rule.targets.iter().all(|target| (1..=MAX_MODEL_NAME).contains(&target.model_rewrite.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_with_a_target_that_is_no_name_of_a_model_is_left_out() {
        let (longest, longer) = ("x".repeat(MAX_MODEL_NAME), "x".repeat(MAX_MODEL_NAME + 1));
        let targets = |targets: &[&str]| {
            let targets: Vec<_> = targets.iter().map(|model| serde_json::json!({"modelRewrite": model})).collect();
            serde_json::json!({"targets": targets})
        };
        let rules =
            [targets(&["a", &longest]), targets(&[""]), targets(&["a", &longer]), targets(&["a", ""]), targets(&[])];
        let spec = serde_json::from_value(serde_json::json!({"poolRef": {"name": "pool"}, "rules": rules})).unwrap();
        let key = Key { name: "r".to_owned(), uid: "1".to_owned() };
        let rewrite = Rewrite::new(key, 0, spec, Observed::default());
        let kept: Vec<usize> = rewrite.rules.iter().map(|rule| rule.targets.len()).collect();
        assert_eq!((kept, rewrite.left_out), (vec![2, 0], 3));
    }
}
