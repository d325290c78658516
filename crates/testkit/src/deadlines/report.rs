use std::time::Duration;

use sluice_core::Time;

use super::DEADLINES;
use crate::Tally;
use crate::batch::Final;

/// What became of a [`DeadlineCampaign`](super::DeadlineCampaign).
#[derive(Clone, Debug)]
pub struct DeadlineReport {
    /// Requests that the picker chose to evict.
    pub evictions: u64,
    pub interactive: Tally,
    /// In the order of their deadlines.
    pub jobs: Vec<JobReport>,
}

/// One job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobReport {
    pub name: &'static str,
    pub items: usize,
    /// Items that ended before the deadline.
    pub in_time: usize,
    /// From the begin.
    pub deadline: Duration,
    /// When the last item ended.
    pub took: Duration,
    /// Interruptions that items have heard of.
    pub interruptions: u64,
    /// Tokens that the model server has read a second time.
    pub wasted_tokens: u64,
}

impl DeadlineReport {
    /// When the last item of all ended.
    pub fn batch_took(&self) -> Duration {
        self.jobs.iter().map(|job| job.took).max().unwrap_or_default()
    }

    /// Tokens that were read a second time for each interruption, rounded.
    pub fn wasted_tokens_per_eviction(&self) -> u64 {
        let tokens: u64 = self.jobs.iter().map(|job| job.wasted_tokens).sum();
        let interruptions: u64 = self.jobs.iter().map(|job| job.interruptions).sum();
        (tokens + interruptions / 2).checked_div(interruptions).unwrap_or_default()
    }

    pub fn all_in_time(&self) -> bool {
        self.jobs.iter().all(JobReport::is_in_time)
    }
}

impl JobReport {
    pub fn is_in_time(&self) -> bool {
        self.in_time == self.items
    }

    /// In whole percent, and 100 only if none was late.
    pub fn percent_in_time(&self) -> usize {
        self.in_time * 100 / self.items.max(1)
    }

    pub(super) fn of_each(begin: Time, finals: &[Final]) -> Vec<Self> {
        DEADLINES.iter().map(|(name, _)| Self::of(name, begin, finals)).collect()
    }

    fn of(name: &'static str, begin: Time, finals: &[Final]) -> Self {
        let mut report = Self {
            name,
            items: 0,
            in_time: 0,
            deadline: Duration::ZERO,
            took: Duration::ZERO,
            interruptions: 0,
            wasted_tokens: 0,
        };
        for done in finals.iter().filter(|done| done.item.id.split('-').next() == Some(name)) {
            report.items += 1;
            report.in_time += usize::from(done.met_deadline());
            report.deadline = done.item.deadline.saturating_since(begin);
            report.took = report.took.max(done.finished_at.saturating_since(begin));
            report.interruptions += u64::from(done.cost.evictions + done.cost.cuts);
            report.wasted_tokens += done.cost.wasted_tokens;
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::batch::{Cost, Item};

    fn done(id: &str, deadline: u64, finished_at: u64, evictions: u32, wasted_tokens: u64) -> Final {
        let item = Item {
            id: id.to_owned(),
            prompt: String::new(),
            max_tokens: NonZeroU32::MIN,
            deadline: Time::from_secs(deadline),
        };
        let cost = Cost { evictions, wasted_tokens, ..Cost::default() };
        Final { item, text: String::new(), tokens: 1, cost, finished_at: Time::from_secs(finished_at) }
    }

    #[test]
    fn each_job_is_judged_by_its_own_items() {
        let finals = [
            done("a-0", 15, 15, 1, 30),
            done("a-1", 15, 16, 0, 0),
            done("b-0", 25, 20, 2, 45),
            done("c-0", 35, 30, 0, 0),
        ];
        let jobs = JobReport::of_each(Time::from_secs(5), &finals);
        let seconds = Duration::from_secs;
        let expected = |name, items, in_time, deadline, took, interruptions, wasted_tokens| JobReport {
            name,
            items,
            in_time,
            deadline: seconds(deadline),
            took: seconds(took),
            interruptions,
            wasted_tokens,
        };
        let expected =
            [expected("a", 2, 1, 10, 11, 1, 30), expected("b", 1, 1, 20, 15, 2, 45), expected("c", 1, 1, 30, 25, 0, 0)];
        assert_eq!(jobs, expected);
        assert_eq!(jobs[0].percent_in_time(), 50);
        let report = DeadlineReport { evictions: 4, interactive: Tally::default(), jobs };
        assert_eq!((report.batch_took(), report.wasted_tokens_per_eviction()), (seconds(25), 25));
        assert!(!report.all_in_time());
    }
}
