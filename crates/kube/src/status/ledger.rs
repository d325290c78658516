use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use super::verdict::{Conditions, Stand, Subject, Verdict};
use crate::crd::Condition;

/// What has been said of which object.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    told: BTreeMap<Subject, Conditions>,
}

impl Ledger {
    /// The first of `verdicts` that is still to be told, with the conditions to write; objects that are not among them
    /// are forgotten. What a status says already counts as told.
    pub(super) fn next<'a>(
        &mut self,
        verdicts: &'a [Verdict],
        now: Timestamp,
    ) -> Option<(&'a Verdict, Vec<Condition>)> {
        let subjects: BTreeSet<&Subject> = verdicts.iter().map(|verdict| &verdict.subject).collect();
        self.told.retain(|subject, _| subjects.contains(subject));
        for verdict in verdicts {
            if self.told.get(&verdict.subject) == Some(&verdict.wanted) {
                continue;
            }
            let conditions = conditions(verdict, now);
            if conditions.iter().all(|condition| verdict.present.contains(condition)) {
                self.tell(verdict);
                continue;
            }
            return Some((verdict, conditions));
        }
        None
    }

    /// It has been said, or there is nobody to take it.
    pub(super) fn tell(&mut self, verdict: &Verdict) {
        self.told.insert(verdict.subject.clone(), verdict.wanted.clone());
    }

    /// Somebody else may say other things from now on.
    pub(super) fn forget(&mut self) {
        self.told.clear();
    }
}

/// What is wanted, with the time at which each condition came to stand as it does.
fn conditions(verdict: &Verdict, now: Timestamp) -> Vec<Condition> {
    let Conditions { generation, accepted, resolved_refs } = &verdict.wanted;
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
mod tests {
    use super::*;
    use crate::collection::Key;
    use crate::status::SubjectKind;

    fn stand(holds: bool, message: &str) -> Stand {
        Stand { holds, reason: "Reason", message: message.to_owned() }
    }

    fn verdict(name: &str, accepted: Stand, present: &[Condition]) -> Verdict {
        let key = Key { name: name.to_owned(), uid: "1".to_owned() };
        Verdict {
            subject: Subject { kind: SubjectKind::Objective, group: "llm-d.ai", key },
            wanted: Conditions { generation: Some(3), accepted, resolved_refs: stand(true, "there") },
            present: present.to_vec(),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_stands_otherwise() {
        let mut ledger = Ledger::default();
        let first = ledger.next(&[verdict("a", stand(true, "fine"), &[])], at(5)).unwrap().1;
        let times = |conditions: &[Condition]| {
            conditions.iter().map(|condition| condition.last_transition_time.clone()).collect::<Vec<_>>()
        };
        assert_eq!(times(&first), ["1970-01-01T00:00:05Z", "1970-01-01T00:00:05Z"]);
        assert_eq!(first[0].observed_generation, Some(3));
        let reworded = ledger.next(&[verdict("a", stand(true, "still fine"), &first)], at(9)).unwrap().1;
        assert_eq!(times(&reworded), times(&first), "another message is no transition");
        let turned = ledger.next(&[verdict("a", stand(false, "bad"), &reworded)], at(9)).unwrap().1;
        assert_eq!(times(&turned), ["1970-01-01T00:00:09Z", "1970-01-01T00:00:05Z"]);
    }

    #[test]
    fn what_the_status_says_already_is_not_said_again() {
        let mut ledger = Ledger::default();
        let written = ledger.next(&[verdict("a", stand(true, "fine"), &[])], at(5)).unwrap().1;
        let mut foreign = written[0].clone();
        foreign.kind = "Programmed".to_owned();
        let present = [written, vec![foreign]].concat();
        assert!(ledger.next(&[verdict("a", stand(true, "fine"), &present)], at(9)).is_none());
    }

    #[test]
    fn a_server_that_keeps_less_than_it_is_told_is_told_once() {
        let mut ledger = Ledger::default();
        let verdict_of = |present: &[Condition]| [verdict("a", stand(true, "fine"), present)];
        let verdicts = verdict_of(&[]);
        let (told, mut kept) = ledger.next(&verdicts, at(5)).unwrap();
        ledger.tell(told);
        kept.iter_mut().for_each(|condition| condition.observed_generation = None);
        assert!(ledger.next(&verdict_of(&kept), at(9)).is_none());
        assert!(ledger.next(&verdict_of(&[]), at(9)).is_none(), "it keeps nothing");
        assert!(ledger.next(&[verdict("a", stand(false, "bad"), &[])], at(9)).is_some(), "other things are news");
        ledger.forget();
        assert!(ledger.next(&verdicts, at(9)).is_some());
    }

    #[test]
    fn an_object_that_is_made_anew_is_told_anew() {
        let mut ledger = Ledger::default();
        let verdicts = [verdict("a", stand(true, "fine"), &[])];
        ledger.tell(&verdicts[0]);
        let mut anew = verdicts.clone();
        anew[0].subject.key.uid = "2".to_owned();
        assert!(ledger.next(&verdicts, at(5)).is_none());
        assert!(ledger.next(&anew, at(5)).is_some());
        assert!(ledger.next(&[], at(5)).is_none());
        assert!(ledger.next(&verdicts, at(5)).is_some(), "it was forgotten when it was gone");
    }
}
