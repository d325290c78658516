use sluice_core::Priority;

use super::*;
use crate::crd::{MatchType, ModelMatch, RewriteMatch, RewriteTarget};

fn pool_ref(kind: &str) -> PoolRef {
    PoolRef { group: "inference.networking.k8s.io".into(), kind: kind.into(), name: "chat".into() }
}

fn key(name: &str) -> Key {
    Key { name: name.into(), uid: name.into() }
}

fn objective(name: &str, priority: i32) -> Objective {
    let observed = Observed { generation: Some(2), ..Observed::default() };
    Objective { key: key(name), pool: pool_ref("InferencePool"), priority: Priority(priority), observed }
}

/// With a rule for each of `models`, and an empty name for all of them.
fn rewrite(name: &str, models: &[&str]) -> Rewrite {
    let rule = |model: &&str| {
        let matched = |value: &str| RewriteMatch { model: ModelMatch { kind: MatchType::Exact, value: value.into() } };
        let matches = if model.is_empty() { vec![] } else { vec![matched(model)] };
        RewriteRule { matches, targets: vec![RewriteTarget { model_rewrite: "t".into(), weight: None }] }
    };
    let rules = models.iter().map(rule).collect();
    Rewrite {
        key: key(name),
        created: 0,
        pool: pool_ref("InferencePool"),
        rules,
        left_out: 0,
        observed: Observed::default(),
    }
}

fn wanted(verdict: &Verdict) -> &Conditions {
    verdict.wanted.as_ref().expect("it is to be said, not taken back")
}

/// Where the configuration has no bands.
fn bands(most: usize) -> Bands<'static> {
    static NONE: BTreeSet<Priority> = BTreeSet::new();
    Bands { configured: &NONE, most }
}

/// Each as `group/name Accepted reason: message`.
fn accepted(verdicts: &[Verdict]) -> Vec<String> {
    let shown = |verdict: &Verdict| {
        let Stand { holds, reason, message } = &wanted(verdict).accepted;
        format!("{}/{} {holds} {reason}: {message}", verdict.subject.group, verdict.subject.key.name)
    };
    verdicts.iter().map(shown).collect()
}

fn of_all(rewrites: &[Rewrite]) -> Vec<Verdict> {
    let in_order: Vec<_> = rewrites.iter().map(|rewrite| ("new", rewrite)).collect();
    of_rewrites(&in_order, &[], true)
}

#[test]
fn objectives_are_accepted_unless_another_group_has_the_name() {
    let (both, alone) = (objective("both", 1), objective("alone", 2));
    let verdicts = of_objectives([("new", vec![&both]), ("old", vec![&alone, &both])], true, bands(64));
    assert_eq!(
        accepted(&verdicts),
        [
            "old/alone true Accepted: requests that name the objective have its priority",
            "old/both false Conflicted: the object of this name in new counts instead",
            "new/both true Accepted: requests that name the objective have its priority",
        ]
    );
    assert!(verdicts.iter().all(|verdict| wanted(verdict).generation == Some(2)));
}

#[test]
fn more_priorities_than_bands_are_named_and_each_counts_once() {
    let objectives: Vec<_> = (1..=4).map(|priority| objective(&priority.to_string(), priority)).collect();
    let reason = |objectives: &[Objective], bands: Bands<'_>| {
        let verdicts = of_objectives([("new", objectives.iter().collect()), ("old", vec![])], true, bands);
        let Stand { reason, message, .. } = &wanted(&verdicts[0]).accepted;
        (*reason, message.clone())
    };
    assert_eq!(reason(&objectives, bands(5)).0, "Accepted");
    let (name, message) = reason(&objectives, bands(4));
    let expected = "the objectives and the configuration have more than 4 priorities";
    assert_eq!((name, message.as_str()), ("TooManyBands", expected));
    let same = [objective("a", 7), objective("b", 7), objective("c", 0)];
    assert_eq!(reason(&same, bands(2)).0, "Accepted", "0 has a band in any case, and 7 has one");
    let configured = [1, 7, 8].map(Priority).into();
    assert_eq!(reason(&same, Bands { configured: &configured, most: 4 }).0, "Accepted", "0, 1, 7 and 8");
    assert_eq!(reason(&same, Bands { configured: &configured, most: 3 }).0, "TooManyBands");
}

#[test]
fn the_pool_that_is_referred_to_is_there_or_not() {
    let verdict = |kind: &str, pool_exists: bool| {
        let objective = Objective { pool: pool_ref(kind), ..objective("a", 1) };
        let verdicts = of_objectives([("new", vec![&objective]), ("old", vec![])], pool_exists, bands(64));
        let Stand { holds, reason, .. } = &wanted(&verdicts[0]).resolved_refs;
        (*holds, *reason)
    };
    assert_eq!(verdict("InferencePool", true), (true, "ResolvedRefs"));
    assert_eq!(verdict("InferencePool", false), (false, "BackendNotFound"));
    assert_eq!(verdict("Service", true), (false, "InvalidKind"));
}

#[test]
fn of_rewrites_with_a_rule_for_the_same_model_the_later_one_is_told_who_has_it() {
    let verdicts = of_all(&[
        rewrite("a", &["m", "n", "m"]),
        rewrite("b", &["m"]),
        rewrite("c", &["n", "o", ""]),
        rewrite("d", &[""]),
    ]);
    assert_eq!(
        accepted(&verdicts),
        [
            "new/a true Accepted: its rules are in force",
            "new/b false Conflicted: none of its rules counts: model \"m\" belongs to a, which is older",
            "new/c true PartiallyConflicted: some of its rules do not count: model \"n\" belongs to a, which is older",
            "new/d false Conflicted: none of its rules counts: the rule for all models belongs to c, which is older",
        ]
    );
}

#[test]
fn a_rewrite_of_a_name_that_another_group_has_does_not_count() {
    let (new, old) = (rewrite("a", &["m"]), rewrite("a", &["n"]));
    let verdicts = of_rewrites(&[("new", &new)], &[("old", &old)], true);
    assert_eq!(accepted(&verdicts)[1], "old/a false Conflicted: the object of this name in new counts instead");
}

#[test]
fn a_message_does_not_grow_without_end() {
    let models: Vec<String> = (0..1_000).map(|number| format!("model-{number}")).collect();
    let models: Vec<&str> = models.iter().map(String::as_str).collect();
    let verdicts = of_all(&[rewrite("a", &models), rewrite("b", &models)]);
    let message = &wanted(&verdicts[1]).accepted.message;
    assert!(message.len() < 1_000 && message.ends_with(", 990 more"), "{message}");
    let long = "x".repeat(100_000);
    let verdicts = of_all(&[rewrite("a", &[&long]), rewrite("b", &[&long])]);
    assert!(wanted(&verdicts[1]).accepted.message.len() < 1_000);
}

#[test]
fn odd_rules_are_remarked_upon() {
    let with = |targets: &[(&str, Option<i32>)]| {
        let mut rewrite = rewrite("a", &["m"]);
        let target = |&(name, weight): &(&str, _)| RewriteTarget { model_rewrite: name.into(), weight };
        rewrite.rules[0].targets = targets.iter().map(target).collect();
        accepted(&of_all(&[rewrite])).remove(0)
    };
    assert!(with(&[]).contains("no targets"));
    assert!(with(&[("a", Some(1)), ("b", None)]).contains("without a weight"));
    assert!(with(&[("a", Some(1)), ("b", Some(2))]).ends_with("its rules are in force"));
}

#[test]
fn each_pool_has_a_field_manager_that_the_server_takes() {
    assert_eq!(field_manager("chat"), "sluice-epp-chat");
    assert_ne!(field_manager("chat"), field_manager("images"));
    assert_eq!(field_manager(&"x".repeat(253)).len(), 128);
    let managers = ["kubectl-edit", "sluice-epp-chat", "sluice-epp-images", "another-epp"];
    assert_eq!(reporters(managers.into_iter()), ["sluice-epp-chat", "sluice-epp-images"].map(str::to_owned).into());
}

#[test]
fn only_what_pickers_of_this_pool_have_said_is_taken_back() {
    let said_by = |pool: &str| Observed { reporters: [field_manager(pool)].into(), ..Observed::default() };
    let of = |observed: &Observed| released(SubjectKind::Rewrite, "new", &key("a"), observed, "chat");
    assert!(of(&Observed::default()).is_none() && of(&said_by("images")).is_none());
    let verdict = of(&said_by("chat")).unwrap();
    assert_eq!((verdict.wanted, verdict.subject.kind), (None, SubjectKind::Rewrite));
}

#[test]
fn a_rewrite_says_that_rules_of_it_are_left_out() {
    let some = Rewrite { left_out: 2, ..rewrite("a", &["m"]) };
    let none = Rewrite { left_out: 1, rules: vec![], ..rewrite("b", &[]) };
    let verdicts = of_all(&[some, none]);
    let [some, none] = [0, 1].map(|at| &verdicts[at].wanted.as_ref().unwrap().accepted);
    assert!(
        some.holds && some.reason == "Accepted" && some.message.contains("2 of its rules are left out"),
        "{some:?}"
    );
    assert!(!none.holds && none.reason == "Invalid" && none.message.contains("all its rules are left out"), "{none:?}");
}
