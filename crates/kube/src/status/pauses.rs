use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluice_core::Time;

use super::verdict::{Subject, SubjectKind, Verdict};

/// The waits after failures of one object double from the one to the other.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// After which a kind that nobody took anything of is tried again: what is allowed may change.
const REFUSED_WAIT: Duration = Duration::from_secs(300);

/// Until when what is not written. One object that fails holds up no other.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    objects: BTreeMap<Subject, Pause>,
    kinds: BTreeMap<(SubjectKind, &'static str), Time>,
    /// The kinds that have been refused since the beginning.
    refused: BTreeSet<(SubjectKind, &'static str)>,
}

#[derive(Debug)]
struct Pause {
    until: Time,
    wait: Duration,
}

impl Pauses {
    pub(super) fn allow(&self, subject: &Subject, now: Time) -> bool {
        let kind = self.kinds.get(&(subject.kind, subject.group)).copied();
        kind.into_iter().chain(self.objects.get(subject).map(|pause| pause.until)).all(|until| until <= now)
    }

    /// The next time at which one of them ends.
    pub(super) fn next_end(&self, now: Time) -> Option<Time> {
        let ends = self.kinds.values().copied().chain(self.objects.values().map(|pause| pause.until));
        ends.filter(|until| *until > now).min()
    }

    /// A write has failed; tells how long the object waits.
    pub(super) fn fail(&mut self, subject: &Subject, now: Time) -> Duration {
        let before = self.objects.get(subject);
        let wait = before.map_or(FIRST_WAIT, |pause| (2 * pause.wait).min(LONGEST_WAIT));
        self.objects.insert(subject.clone(), Pause { until: now.saturating_add(wait), wait });
        wait
    }

    /// Nobody takes anything of the kind; tells whether that is new.
    pub(super) fn refuse(&mut self, subject: &Subject, now: Time) -> bool {
        let kind = (subject.kind, subject.group);
        self.kinds.insert(kind, now.saturating_add(REFUSED_WAIT));
        self.refused.insert(kind)
    }

    pub(super) fn succeed(&mut self, subject: &Subject) {
        self.objects.remove(subject);
    }

    /// Forgets objects that nothing is to be said of any more.
    pub(super) fn retain(&mut self, verdicts: &[Verdict]) {
        if !self.objects.is_empty() {
            let subjects: BTreeSet<&Subject> = verdicts.iter().map(|verdict| &verdict.subject).collect();
            self.objects.retain(|subject, _| subjects.contains(subject));
        }
    }

    /// Everything may be tried at once.
    pub(super) fn end(&mut self) {
        self.objects.clear();
        self.kinds.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::Key;

    fn subject(name: &str) -> Subject {
        let key = Key { name: name.to_owned(), uid: "1".to_owned() };
        Subject { kind: SubjectKind::Objective, group: "llm-d.ai", key }
    }

    #[test]
    fn an_object_waits_longer_after_each_failure_and_no_other_waits() {
        let (mut pauses, mut now) = (Pauses::default(), Time::from_secs(7));
        let [bad, good] = ["bad", "good"].map(subject);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(pauses.allow(&bad, now));
            assert_eq!(pauses.fail(&bad, now), Duration::from_secs(seconds));
            assert!(!pauses.allow(&bad, now) && pauses.allow(&good, now));
            now = pauses.next_end(now).unwrap();
        }
        pauses.succeed(&bad);
        assert_eq!(pauses.fail(&bad, now), FIRST_WAIT, "a success ends the row");
        pauses.retain(&[]);
        assert!(pauses.allow(&bad, now) && pauses.next_end(now).is_none(), "it is gone");
    }

    #[test]
    fn a_kind_that_is_refused_is_tried_again_later_or_by_a_new_leader_and_is_news_once() {
        let (mut pauses, now) = (Pauses::default(), Time::from_secs(7));
        let [one, two] = ["one", "two"].map(subject);
        let rewrite = Subject { kind: SubjectKind::Rewrite, ..subject("one") };
        assert!(pauses.refuse(&one, now));
        assert!(!pauses.allow(&two, now) && pauses.allow(&rewrite, now));
        let later = pauses.next_end(now).unwrap();
        assert_eq!(later.saturating_since(now), Duration::from_secs(300));
        assert!(pauses.allow(&two, later));
        assert!(!pauses.refuse(&two, later));
        pauses.end();
        assert!(pauses.allow(&one, later));
    }
}
