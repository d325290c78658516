//! What the log is told of an endpoint's pages: what has changed, and not too often. Pure.

use std::time::Duration;

use sluice_core::Time;

/// So many changes are told at once, and one more for each [`REFILL`].
const BURST: u32 = 4;

const REFILL: Duration = Duration::from_secs(10);

/// What a page was like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Whole,
    /// It lacks these metrics of its engine, and tells how full the endpoint is all the same.
    Incomplete(String),
    /// It does not tell how full the endpoint is, for lack of these metrics.
    Silent(String),
    /// Nothing is looked for that would, for this reason.
    Unasked(String),
    /// There is none, or it says nothing at all, for this reason.
    Unreadable(String),
}

impl Verdict {
    /// What is wrong with the page, if anything is.
    pub(super) fn fault(&self) -> Option<String> {
        match self {
            Self::Whole => None,
            Self::Incomplete(missing) => Some(format!("not in the page: {missing}")),
            Self::Silent(missing) => Some(format!("the page does not tell how full it is, without {missing}")),
            Self::Unasked(reason) | Self::Unreadable(reason) => Some(reason.clone()),
        }
    }

    /// Whether there is nothing new in it; reasons may differ each time.
    fn is_like(&self, other: &Self) -> bool {
        self == other || matches!((self, other), (Self::Unreadable(_), Self::Unreadable(_)))
    }
}

/// Of one endpoint.
#[derive(Clone, Debug)]
pub(super) struct Verdicts {
    told: Verdict,
    latest: Verdict,
    /// How often it changed since something was told.
    changes: u64,
    /// Unreadable pages since something was told.
    failures: u64,
    credit: u32,
    refilled: Time,
}

/// What there is to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct News {
    pub(super) before: Verdict,
    pub(super) now: Verdict,
    /// How often it changed, if that was more than once.
    pub(super) changes: Option<u64>,
    /// How many pages could not be read in the meantime.
    pub(super) failures: u64,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self {
            told: Verdict::Whole,
            latest: Verdict::Whole,
            changes: 0,
            failures: 0,
            credit: BURST,
            refilled: Time::ZERO,
        }
    }
}

impl Verdicts {
    /// Takes note of a page; returns what is to be told now.
    pub(super) fn note(&mut self, now: Time, verdict: Verdict) -> Option<News> {
        self.changes += u64::from(!verdict.is_like(&self.latest));
        self.failures += u64::from(matches!(verdict, Verdict::Unreadable(_)));
        self.latest = verdict;
        if self.latest.is_like(&self.told) || !self.has_credit(now) {
            return None;
        }
        let before = std::mem::replace(&mut self.told, self.latest.clone());
        let changes = std::mem::take(&mut self.changes);
        // The one that is told of is the first of the next ones.
        let counts_on = u64::from(matches!(self.told, Verdict::Unreadable(_)));
        let failures = std::mem::replace(&mut self.failures, counts_on);
        Some(News { before, now: self.told.clone(), changes: (changes > 1).then_some(changes), failures })
    }

    fn has_credit(&mut self, now: Time) -> bool {
        while self.credit < BURST && now.saturating_since(self.refilled) >= REFILL {
            self.credit += 1;
            self.refilled = self.refilled.saturating_add(REFILL);
        }
        if self.credit == BURST {
            self.refilled = now;
        }
        let has = self.credit > 0;
        self.credit = self.credit.saturating_sub(1);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreadable(reason: &str) -> Verdict {
        Verdict::Unreadable(reason.to_owned())
    }

    #[test]
    fn what_changes_is_told_once() {
        let mut verdicts = Verdicts::default();
        let mut at = |millis, verdict| verdicts.note(Time::from_millis(millis), verdict);
        assert_eq!(at(0, Verdict::Whole), None);
        let failed = at(50, unreadable("a")).unwrap();
        assert_eq!((failed.before, failed.now, failed.changes), (Verdict::Whole, unreadable("a"), None));
        assert_eq!((at(100, unreadable("b")), at(150, unreadable("c"))), (None, None));
        let back = at(200, Verdict::Whole).unwrap();
        assert_eq!((back.now, back.changes, back.failures), (Verdict::Whole, None, 3));
        assert_eq!(at(250, Verdict::Incomplete("x".to_owned())).unwrap().failures, 0);
        assert_eq!(at(300, Verdict::Incomplete("x".to_owned())), None);
        assert!(at(350, Verdict::Incomplete("y".to_owned())).is_some());
    }

    #[test]
    fn what_a_page_lacks_matters_more_if_it_tells_no_load() {
        let mut verdicts = Verdicts::default();
        let mut at = |millis, verdict| verdicts.note(Time::from_millis(millis), verdict).is_some();
        assert!(at(0, Verdict::Incomplete("x".to_owned())));
        assert!(at(50, Verdict::Silent("x".to_owned())), "though it lacks the same");
        assert!(!at(100, Verdict::Silent("x".to_owned())));
        assert!(at(150, Verdict::Incomplete("x".to_owned())));
    }

    #[test]
    fn an_endpoint_that_goes_on_changing_is_told_of_now_and_then() {
        let mut verdicts = Verdicts::default();
        let mut told = Vec::new();
        for page in 0..1_200 {
            let verdict = if page % 2 == 0 { unreadable("status 500") } else { Verdict::Whole };
            let now = Time::from_millis(page * 50);
            told.extend(verdicts.note(now, verdict).map(|news| (page * 50, news.changes)));
        }
        let times: Vec<_> = told.iter().map(|(at, _)| *at).collect();
        assert_eq!(times[..4], [0, 50, 100, 150]);
        assert_eq!(times.len(), 9, "{times:?}");
        assert!(times[4..].iter().zip(&times[3..]).all(|(at, before)| at - before >= 9_000), "{times:?}");
        assert!(told[5].1.is_some_and(|changes| changes.abs_diff(200) <= 2), "{told:?}");
    }

    #[test]
    fn the_last_state_is_told_in_the_end() {
        let mut verdicts = Verdicts::default();
        for page in 0..9 {
            let verdict = if page % 2 == 0 { unreadable("status 500") } else { Verdict::Whole };
            verdicts.note(Time::from_millis(page * 50), verdict);
        }
        assert_eq!(verdicts.note(Time::from_secs(9), unreadable("status 500")), None);
        let news = verdicts.note(Time::from_secs(10), unreadable("status 500")).unwrap();
        assert_eq!((news.before, news.changes), (Verdict::Whole, Some(5)));
    }
}
