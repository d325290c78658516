use std::collections::{BTreeMap, BTreeSet};

use sluice_core::Priority;

use crate::collection::Key;
use crate::crd::{Condition, PoolRef, RewriteRule};
use crate::objective::Objective;
use crate::rewrite::Rewrite;

/// In a message no more names are listed.
const MOST_NAMES: usize = 10;

/// Bytes of a model's name that is still quoted: the server bounds messages.
const LONGEST_NAME: usize = 250;

/// Why a rule is left out.
const BAD_TARGET: &str = "a target has no name, or a longer one than a model may have";

/// Which object it is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    pub kind: SubjectKind,
    /// The API group that it was read from.
    pub group: &'static str,
    pub key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubjectKind {
    Objective,
    Rewrite,
}

/// What is to be said of an object, and what its status says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub subject: Subject,
    /// None: it refers to this pool no more, and what its pickers have said is to be taken back.
    pub wanted: Option<Conditions>,
    pub present: Vec<Condition>,
}

/// The conditions that a picker gives an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The generation of the object that was looked at.
    pub generation: Option<i64>,
    pub accepted: Stand,
    pub resolved_refs: Stand,
}

/// The state of one condition, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    pub holds: bool,
    /// One of the Gateway API's, where it has one.
    pub reason: &'static str,
    pub message: String,
}

impl Stand {
    fn accepted(message: impl Into<String>) -> Self {
        Self { holds: true, reason: "Accepted", message: message.into() }
    }

    fn conflicted(message: String) -> Self {
        Self { holds: false, reason: "Conflicted", message }
    }
}

/// What an object says of itself beside its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    pub generation: Option<i64>,
    pub conditions: Vec<Condition>,
    /// The [field managers](field_manager) of pickers that have a part in the status.
    pub reporters: BTreeSet<String>,
}

/// How the field managers of all pickers begin.
const FIELD_MANAGERS: &str = "sluice-epp";

/// The server takes no longer ones.
const LONGEST_MANAGER: usize = 128;

/// Whose the conditions are that pickers of `pool` write, as `kubectl get --show-managed-fields` has it. Each pool has its
/// own, so that taking back what was said for one leaves what is said for another.
pub(crate) fn field_manager(pool: &str) -> String {
    format!("{FIELD_MANAGERS}-{pool}").chars().take(LONGEST_MANAGER).collect()
}

/// Of the `managers` of a status those that are pickers.
pub(crate) fn reporters<'a>(managers: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    managers.filter(|manager| manager.starts_with(FIELD_MANAGERS)).map(str::to_owned).collect()
}

/// Which priorities have bands, beside those of objectives.
#[derive(Clone, Copy, Debug)]
pub struct Bands<'a> {
    /// Those of the configuration.
    pub configured: &'a BTreeSet<Priority>,
    /// More are too many.
    pub most: usize,
}

/// Of the objectives of the pool in the two groups. `pool_exists` says whether what they refer to is there.
pub(crate) fn of_objectives(
    [(group, present), (older_group, older)]: [(&'static str, Vec<&Objective>); 2],
    pool_exists: bool,
    bands: Bands<'_>,
) -> Vec<Verdict> {
    let Bands { configured, most } = bands;
    let names: BTreeSet<&str> = present.iter().map(|objective| objective.key.name.as_str()).collect();
    let overruled = |objective: &&&Objective| names.contains(objective.key.name.as_str());
    let counting = older.iter().filter(|objective| !overruled(objective)).chain(&present);
    // Priority 0 has a band in any case.
    let named = counting.map(|objective| objective.priority).chain([Priority(0)]);
    let bands: BTreeSet<Priority> = named.chain(configured.iter().copied()).collect();
    let accepted = if bands.len() > most {
        // Without their number: each objective more would be a reason to write into all of them.
        let message = format!("the objectives and the configuration have more than {most} priorities");
        Stand { holds: true, reason: "TooManyBands", message }
    } else {
        Stand::accepted("requests that name the objective have its priority")
    };
    let verdict = |group, objective: &Objective, accepted: Stand| {
        let Objective { key, pool, priority: _, observed } = objective;
        let subject = Subject { kind: SubjectKind::Objective, group, key: key.clone() };
        make(subject, observed, accepted, pool, pool_exists)
    };
    let older = older.iter().map(|objective| {
        let is_overruled = overruled(&objective);
        let accepted = if is_overruled { overruled_by(group) } else { accepted.clone() };
        verdict(older_group, objective, accepted)
    });
    older.chain(present.iter().map(|objective| verdict(group, objective, accepted.clone()))).collect()
}

/// Of the rewrites of the pool that count, in their order, and of those that another of the same name overrules, each
/// with its group.
pub(crate) fn of_rewrites(
    in_order: &[(&'static str, &Rewrite)],
    overruled: &[(&'static str, &Rewrite)],
    pool_exists: bool,
) -> Vec<Verdict> {
    let verdict = |group, rewrite: &Rewrite, accepted: Stand| {
        let Rewrite { key, created: _, pool, rules: _, left_out: _, observed } = rewrite;
        let subject = Subject { kind: SubjectKind::Rewrite, group, key: key.clone() };
        make(subject, observed, accepted, pool, pool_exists)
    };
    let mut taken = Taken::default();
    let mut verdicts: Vec<Verdict> =
        in_order.iter().map(|(group, rewrite)| verdict(*group, rewrite, taken.add(rewrite))).collect();
    let winner = |rewrite: &Rewrite| in_order.iter().find(|(_, other)| other.key.name == rewrite.key.name);
    verdicts.extend(overruled.iter().map(|(group, rewrite)| {
        let accepted = overruled_by(winner(rewrite).map_or("the other group", |(group, _)| group));
        verdict(*group, rewrite, accepted)
    }));
    verdicts
}

fn overruled_by(group: &str) -> Stand {
    Stand::conflicted(format!("the object of this name in {group} counts instead"))
}

fn make(subject: Subject, observed: &Observed, accepted: Stand, pool: &PoolRef, pool_exists: bool) -> Verdict {
    let resolved_refs = if pool.kind != "InferencePool" {
        let message =
            format!("poolRef names a {}: the pool of this name is taken, which is an InferencePool", pool.kind);
        Stand { holds: false, reason: "InvalidKind", message }
    } else if pool_exists {
        Stand { holds: true, reason: "ResolvedRefs", message: "the pool is there".to_owned() }
    } else {
        Stand { holds: false, reason: "BackendNotFound", message: "there is no such pool".to_owned() }
    };
    let wanted = Some(Conditions { generation: observed.generation, accepted, resolved_refs });
    Verdict { subject, wanted, present: observed.conditions.clone() }
}

/// Of an object of another pool: none if pickers of `pool` have no part in its status.
pub(crate) fn released(
    kind: SubjectKind,
    group: &'static str,
    key: &Key,
    observed: &Observed,
    pool: &str,
) -> Option<Verdict> {
    let subject = Subject { kind, group, key: key.clone() };
    let is_told = observed.reporters.contains(&field_manager(pool));
    is_told.then(|| Verdict { subject, wanted: None, present: observed.conditions.clone() })
}

/// Which object has the rule for which model; none: for all.
#[derive(Default)]
struct Taken<'a>(BTreeMap<Option<&'a str>, &'a str>);

impl<'a> Taken<'a> {
    /// Adds an object that comes behind all others, and says what it has become of it.
    fn add(&mut self, rewrite: &'a Rewrite) -> Stand {
        let Rewrite { rules, left_out, .. } = rewrite;
        if rules.is_empty() && *left_out > 0 {
            let message = format!("all its rules are left out: {BAD_TARGET}");
            return Stand { holds: false, reason: "Invalid", message };
        }
        let name = rewrite.key.name.as_str();
        let (mut own, mut lost) = (0_usize, BTreeSet::new());
        for model in rules.iter().flat_map(models) {
            match *self.0.entry(model).or_insert(name) {
                owner if owner == name => own += 1,
                owner => drop(lost.insert((model, owner))),
            }
        }
        if lost.is_empty() {
            let remark = remarks(rules).unwrap_or_else(|| "its rules are in force".to_owned());
            return Stand::accepted(with_left_out(remark, *left_out));
        }
        let mut texts: Vec<String> =
            lost.iter().take(MOST_NAMES).map(|(model, owner)| taken_by(*model, owner)).collect();
        if lost.len() > MOST_NAMES {
            texts.push(format!("{} more", lost.len() - MOST_NAMES));
        }
        let message = with_left_out(texts.join(", "), *left_out);
        if own == 0 {
            return Stand::conflicted(format!("none of its rules counts: {message}"));
        }
        Stand {
            holds: true,
            reason: "PartiallyConflicted",
            message: format!("some of its rules do not count: {message}"),
        }
    }
}

/// A message, and that so many rules are left out.
fn with_left_out(message: String, rules: usize) -> String {
    match rules {
        0 => message,
        _ => format!("{message}; {rules} of its rules are left out: {BAD_TARGET}"),
    }
}

fn models(rule: &RewriteRule) -> impl Iterator<Item = Option<&str>> {
    let generic = rule.matches.is_empty().then_some(None);
    generic.into_iter().chain(rule.matches.iter().map(|matched| Some(matched.model.value.as_str())))
}

fn taken_by(model: Option<&str>, owner: &str) -> String {
    match model {
        Some(model) if model.len() > LONGEST_NAME => {
            format!("a model with a long name belongs to {owner}, which is older")
        }
        Some(model) => format!("model {model:?} belongs to {owner}, which is older"),
        None => format!("the rule for all models belongs to {owner}, which is older"),
    }
}

/// What is odd about rules that are in force.
fn remarks(rules: &[RewriteRule]) -> Option<String> {
    let some =
        |wanted: bool| move |rule: &&RewriteRule| rule.targets.iter().any(|target| target.weight.is_some() == wanted);
    let without_targets = rules.iter().filter(|rule| rule.targets.is_empty()).count();
    let mixed = rules.iter().filter(some(true)).filter(some(false)).count();
    match (without_targets, mixed) {
        (0, 0) => None,
        (0, _) => {
            Some("its rules are in force; targets without a weight, beside some that have one, get nothing".to_owned())
        }
        _ => Some("its rules are in force; requests for which a rule has no targets are refused".to_owned()),
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
