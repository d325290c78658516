//! Which model endpoints are asked for in the place of the one that a request names.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use arc_swap::ArcSwap;

/// A rule as somebody has written it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteRule {
    /// What it is a part of, as metrics call it.
    pub origin: Arc<str>,
    /// The models that it is for; if there are none, every request that no other rule is for.
    pub models: Vec<String>,
    /// Without any the requests have no model, and are refused.
    pub targets: Vec<RewriteTarget>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteTarget {
    pub model: String,
    /// Its share of the requests. Where some targets of a rule have one those without get none; where none has, all get
    /// the same.
    pub weight: Option<NonZeroU32>,
}

/// Rules, made from them in the order in which they count: of two for the same model the first does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelRewrites {
    exact: BTreeMap<String, Arc<Rule>>,
    generic: Option<Arc<Rule>>,
    /// Everything that rules call a model.
    names: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    origin: Arc<str>,
    /// Each with the sum of the shares up to its own.
    targets: Vec<(u64, Arc<str>)>,
}

/// What a rule makes of the model of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// Empty if the rule has nothing to offer.
    pub target: Arc<str>,
    pub origin: Arc<str>,
}

impl FromIterator<RewriteRule> for ModelRewrites {
    fn from_iter<I: IntoIterator<Item = RewriteRule>>(rules: I) -> Self {
        let mut rewrites = Self::default();
        for RewriteRule { origin, models, targets } in rules {
            rewrites.names.extend(models.iter().cloned().chain(targets.iter().map(|target| target.model.clone())));
            let rule = Arc::new(Rule::new(origin, &targets));
            if models.is_empty() {
                rewrites.generic.get_or_insert_with(|| Arc::clone(&rule));
            }
            for model in models {
                rewrites.exact.entry(model).or_insert_with(|| Arc::clone(&rule));
            }
        }
        rewrites
    }
}

impl ModelRewrites {
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.generic.is_none()
    }

    /// A rule names this model, in a match or as a target.
    pub fn names(&self, model: &str) -> bool {
        self.names.contains(model)
    }

    /// What becomes of `model`: by the rule for it, else by the one for all, which is for requests without a model, too.
    /// None if there is neither. `random` is asked where there is a choice.
    pub fn apply(&self, model: Option<&str>, random: &mut dyn FnMut() -> u64) -> Option<Rewritten> {
        let exact = model.and_then(|model| self.exact.get(model));
        let rule = exact.or(self.generic.as_ref())?;
        Some(Rewritten { target: rule.choose(random), origin: Arc::clone(&rule.origin) })
    }
}

impl Rule {
    fn new(origin: Arc<str>, targets: &[RewriteTarget]) -> Self {
        let weighted = targets.iter().any(|target| target.weight.is_some());
        let mut sum = 0;
        let shares = targets.iter().filter_map(|RewriteTarget { model, weight }| {
            sum += if weighted { u64::from(weight.as_ref()?.get()) } else { 1 };
            Some((sum, Arc::from(model.as_str())))
        });
        Self { origin, targets: shares.collect() }
    }

    fn choose(&self, random: &mut dyn FnMut() -> u64) -> Arc<str> {
        let (sum, last) = match &self.targets[..] {
            [] => return "".into(),
            [(_, only)] => return Arc::clone(only),
            [.., (sum, last)] => (*sum, last),
        };
        // In 0..sum, all alike but for a part in 2^32 at most.
        let drawn = (u128::from(random()) * u128::from(sum)) >> u64::BITS;
        let chosen = self.targets.iter().find(|(up_to, _)| drawn < u128::from(*up_to));
        Arc::clone(chosen.map_or(last, |(_, target)| target))
    }
}

/// Rules that may change at any time; a request sees one state of them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct SharedModelRewrites(Arc<ArcSwap<ModelRewrites>>);

impl SharedModelRewrites {
    /// Puts other rules in force, for requests that come from now on.
    pub fn replace(&self, rewrites: ModelRewrites) {
        self.0.store(Arc::new(rewrites));
    }

    pub(crate) fn load(&self) -> Arc<ModelRewrites> {
        self.0.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(origin: &str, models: &[&str], targets: &[(&str, u32)]) -> RewriteRule {
        let target =
            |&(model, weight): &(&str, u32)| RewriteTarget { model: model.into(), weight: NonZeroU32::new(weight) };
        RewriteRule {
            origin: origin.into(),
            models: models.iter().map(|&model| model.to_owned()).collect(),
            targets: targets.iter().map(target).collect(),
        }
    }

    /// Origin and target, where the first of several targets is chosen.
    fn first(rules: &[RewriteRule], model: Option<&str>) -> Option<(String, String)> {
        let rewrites: ModelRewrites = rules.iter().cloned().collect();
        let Rewritten { target, origin } = rewrites.apply(model, &mut || 0)?;
        Some((origin.to_string(), target.to_string()))
    }

    fn some(origin: &str, target: &str) -> Option<(String, String)> {
        Some((origin.to_owned(), target.to_owned()))
    }

    #[test]
    fn a_rule_for_the_model_counts_before_one_for_all_and_the_earlier_of_each_kind() {
        let rules = [
            rule("all", &[], &[("any", 0)]),
            rule("old", &["a", "b"], &[("x", 0)]),
            rule("new", &["b", "c"], &[("y", 0)]),
            rule("late", &[], &[("never", 0)]),
        ];
        for (model, expected) in [
            (Some("a"), some("old", "x")),
            (Some("b"), some("old", "x")),
            (Some("c"), some("new", "y")),
            (Some("d"), some("all", "any")),
            (Some("A"), some("all", "any")),
            (None, some("all", "any")),
        ] {
            assert_eq!(first(&rules, model), expected, "{model:?}");
        }
        assert_eq!(first(&rules[1..3], Some("d")), None);
        assert_eq!(first(&rules[1..3], None), None);
    }

    #[test]
    fn the_shares_of_targets_are_as_their_weights() {
        let counts = |targets: &[(&str, u32)]| {
            let rewrites: ModelRewrites = [rule("r", &["m"], targets)].into_iter().collect();
            let mut counts = BTreeMap::<String, u32>::new();
            for step in 0..1_000_u64 {
                let mut random = || step * (u64::MAX / 1_000) + u64::MAX / 2_000;
                *counts.entry(rewrites.apply(Some("m"), &mut random).unwrap().target.to_string()).or_default() += 1;
            }
            counts.into_iter().collect::<Vec<_>>()
        };
        let shares = |shares: &[(&str, u32)]| shares.iter().map(|&(name, n)| (name.to_owned(), n)).collect::<Vec<_>>();
        assert_eq!(counts(&[("a", 1), ("b", 3)]), shares(&[("a", 250), ("b", 750)]));
        assert_eq!(counts(&[("a", 0), ("b", 0)]), shares(&[("a", 500), ("b", 500)]));
        assert_eq!(counts(&[("a", 7), ("b", 0)]), shares(&[("a", 1_000)]), "without a weight, where others have one");
        assert_eq!(counts(&[("a", u32::MAX), ("b", u32::MAX)]), shares(&[("a", 500), ("b", 500)]));
        let last: ModelRewrites = [rule("r", &[], &[("a", 1), ("b", 1)])].into_iter().collect();
        assert_eq!(&*last.apply(None, &mut || u64::MAX).unwrap().target, "b");
    }

    #[test]
    fn a_rule_without_targets_leaves_no_model() {
        assert_eq!(first(&[rule("r", &["m"], &[])], Some("m")), some("r", ""));
    }

    #[test]
    fn every_name_in_a_rule_is_known() {
        let rewrites: ModelRewrites = [rule("r", &["m"], &[("a", 1), ("b", 0)])].into_iter().collect();
        assert_eq!(["m", "a", "b", "r"].map(|name| rewrites.names(name)), [true, true, true, false]);
    }
}
