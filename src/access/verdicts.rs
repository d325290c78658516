//! What is remembered of the API server's answers: a pure function of them and of the time.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_core::Time;
use sluice_kube::Access;

/// For so long after it was asked for an answer counts, also one that says no.
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(10);
/// For so long it is known who was let in, which lets nobody in.
const KNOWN_FOR: Duration = Duration::from_secs(60 * 60);
/// So many answers are remembered.
const MOST: usize = 256;

/// A token and what its bearer wants, as a digest from which neither can be told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question(Box<[u8]>);

impl Question {
    pub(super) fn new(digest: &[u8]) -> Self {
        Self(digest.into())
    }
}

/// The answers of the last [`FRESH_FOR`], and the permissions of the last [`KNOWN_FOR`].
#[derive(Default)]
pub(super) struct Verdicts(BTreeMap<Question, Verdict>);

struct Verdict {
    access: Access,
    asked: Time,
}

impl Verdict {
    fn is_fresh(&self, now: Time) -> bool {
        now.saturating_since(self.asked) < FRESH_FOR
    }

    fn is_known(&self, now: Time) -> bool {
        self.access == Access::Allowed && now.saturating_since(self.asked) < KNOWN_FOR
    }
}

impl Verdicts {
    /// The answer to a question, if it still counts.
    pub(super) fn fresh(&self, question: &Question, now: Time) -> Option<&Access> {
        self.0.get(question).filter(|verdict| verdict.is_fresh(now)).map(|verdict| &verdict.access)
    }

    /// Whether the last answer, not long ago, was a permission.
    pub(super) fn was_allowed(&self, question: &Question, now: Time) -> bool {
        self.0.get(question).is_some_and(|verdict| verdict.is_known(now))
    }

    /// Remembers the answer to a question that was `asked` at that time. Where there is no room, the oldest goes, a refusal
    /// before a permission: whoever tries many tokens displaces nobody who has one.
    pub(super) fn learn(&mut self, question: Question, access: Access, asked: Time) {
        self.0.retain(|_, verdict| verdict.is_fresh(asked) || verdict.is_known(asked));
        self.0.insert(question, Verdict { access, asked });
        if self.0.len() > MOST {
            let rank = |verdict: &Verdict| (verdict.access == Access::Allowed, verdict.asked);
            let first = self.0.iter().min_by_key(|(_, verdict)| rank(verdict)).map(|(question, _)| question.clone());
            first.map(|question| self.0.remove(&question));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(number: usize) -> Question {
        Question::new(&number.to_be_bytes())
    }

    fn at(millis: u64) -> Time {
        Time::ZERO.saturating_add(Duration::from_millis(millis))
    }

    fn denied() -> Access {
        Access::Denied { user: "a".into() }
    }

    #[test]
    fn every_answer_counts_for_ten_seconds_from_when_it_was_asked_for() {
        let mut verdicts = Verdicts::default();
        for (number, access) in [Access::Allowed, Access::Unknown, denied()].into_iter().enumerate() {
            verdicts.learn(question(number), access.clone(), at(1_000));
            assert_eq!(verdicts.fresh(&question(number), at(10_999)), Some(&access));
            assert_eq!(verdicts.fresh(&question(number), at(11_000)), None);
        }
        assert_eq!(verdicts.fresh(&question(9), at(1_000)), None, "another question");
    }

    #[test]
    fn who_was_let_in_is_known_for_an_hour_unless_the_answer_is_another_one() {
        let mut verdicts = Verdicts::default();
        for (number, access) in [Access::Allowed, Access::Unknown, denied()].into_iter().enumerate() {
            verdicts.learn(question(number), access, at(0));
        }
        verdicts.learn(question(3), Access::Unknown, at(20_000));
        for (number, expected) in [(0, true), (1, false), (2, false), (3, false)] {
            assert_eq!(verdicts.was_allowed(&question(number), at(20_000)), expected, "{number}");
            assert_eq!(verdicts.fresh(&question(number), at(30_000)), None, "{number}");
        }
        assert!(!verdicts.was_allowed(&question(0), at(3_600_000)));
        verdicts.learn(question(0), Access::Unknown, at(30_000));
        assert!(!verdicts.was_allowed(&question(0), at(30_000)));
    }

    #[test]
    fn a_later_answer_replaces_an_earlier_one() {
        let mut verdicts = Verdicts::default();
        verdicts.learn(question(0), Access::Allowed, at(0));
        verdicts.learn(question(0), Access::Unknown, at(5_000));
        assert_eq!(verdicts.fresh(&question(0), at(14_999)), Some(&Access::Unknown));
    }

    #[test]
    fn many_wrong_tokens_take_no_room_for_ever_and_displace_no_right_one() {
        let mut verdicts = Verdicts::default();
        verdicts.learn(question(0), Access::Allowed, at(0));
        for number in 1..10 * MOST {
            verdicts.learn(question(number), if number % 2 == 0 { Access::Unknown } else { denied() }, at(1));
            assert!(verdicts.0.len() <= MOST);
        }
        assert_eq!(verdicts.fresh(&question(0), at(2)), Some(&Access::Allowed));
        verdicts.learn(question(0), Access::Unknown, at(20_000));
        assert_eq!(verdicts.0.len(), 1, "what does not count any more is forgotten");
    }

    #[test]
    fn of_right_tokens_the_oldest_goes_first() {
        let mut verdicts = Verdicts::default();
        for number in 0..=MOST {
            verdicts.learn(question(number), Access::Allowed, at(u64::try_from(number).unwrap()));
        }
        assert_eq!(verdicts.fresh(&question(0), at(1_000)), None);
        assert!((1..=MOST).all(|number| verdicts.fresh(&question(number), at(1_000)).is_some()));
    }
}
