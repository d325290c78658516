use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use sluice_core::Time;

use super::verdict::{Conditions, Stand, Subject, Verdict};
use crate::crd::Condition;

/// For how long nobody is contradicted who makes something else of what was said. The waits double while what is said
/// does not stay.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// What has been said of which object.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    told: BTreeMap<Subject, Told>,
    /// When something may be said again that did not stay.
    due: Option<Time>,
}

#[derive(Debug)]
struct Told {
    wanted: Option<Conditions>,
    at: Time,
    /// Before which it is not repeated.
    wait: Duration,
}

impl Ledger {
    /// The first of `verdicts` that is to be told, with the conditions to write; objects that are not among them are
    /// forgotten. What a status says already need not be told.
    pub(super) fn next<'a>(
        &mut self,
        verdicts: &'a [Verdict],
        now: Time,
        date: Timestamp,
    ) -> Option<(&'a Verdict, Vec<Condition>)> {
        let subjects: BTreeSet<&Subject> = verdicts.iter().map(|verdict| &verdict.subject).collect();
        self.told.retain(|subject, _| subjects.contains(subject));
        self.due = None;
        for verdict in verdicts {
            let conditions = conditions(verdict, date);
            let stands = verdict.wanted.is_some() && conditions.iter().all(|one| verdict.present.contains(one));
            if stands {
                continue;
            }
            let told = self.told.get(&verdict.subject).filter(|told| told.wanted == verdict.wanted);
            match told.map(|told| told.at.saturating_add(told.wait)).filter(|until| now < *until) {
                Some(until) => self.due = Some(self.due.map_or(until, |due| due.min(until))),
                None => return Some((verdict, conditions)),
            }
        }
        None
    }

    /// When the [next](Self::next) one may be told, if everybody is left alone until then.
    pub(super) const fn due(&self) -> Option<Time> {
        self.due
    }

    /// It has been said, or there is nobody to take it. Tells whether it is not what was said the last time, in vain.
    pub(super) fn tell(&mut self, verdict: &Verdict, now: Time) -> bool {
        let before = self.told.get(&verdict.subject).filter(|told| told.wanted == verdict.wanted);
        let in_vain = before.filter(|told| now.saturating_since(told.at) <= 2 * told.wait);
        let wait = in_vain.map_or(FIRST_WAIT, |told| (2 * told.wait).min(LONGEST_WAIT));
        let is_new = in_vain.is_none();
        self.told.insert(verdict.subject.clone(), Told { wanted: verdict.wanted.clone(), at: now, wait });
        is_new
    }

    /// Somebody else may say other things from now on.
    pub(super) fn forget(&mut self) {
        self.told.clear();
    }
}

/// What is wanted, with the time at which each condition came to stand as it does.
fn conditions(verdict: &Verdict, now: Timestamp) -> Vec<Condition> {
    let Some(Conditions { generation, accepted, resolved_refs }) = &verdict.wanted else { return Vec::new() };
    let condition = |kind: &str, stand: &Stand| {
        let Stand { holds, reason, message } = stand;
        let status = if *holds { "True" } else { "False" };
        let before = verdict.present.iter().find(|condition| condition.kind == kind && condition.status == status);
        Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            observed_generation: *generation,
            last_transition_time: before
                .map_or_else(|| format!("{now:.0}"), |condition| condition.last_transition_time.clone()),
            reason: (*reason).to_owned(),
            message: message.clone(),
        }
    };
    vec![condition("Accepted", accepted), condition("ResolvedRefs", resolved_refs)]
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
