use std::time::Duration;

use super::chat::Answer;

/// What became of the requests of a [`Class`](super::Class).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The stream came to its end.
    pub served: usize,
    /// Another status than 200.
    pub refused: usize,
    /// No answer, or a stream that was cut.
    pub broken: usize,
    /// Times to first token of those that were served, in no particular order.
    pub ttft: Vec<Duration>,
}

impl Tally {
    pub const fn sent(&self) -> usize {
        let Self { served, refused, broken, ttft: _ } = self;
        *served + *refused + *broken
    }

    /// The time to first token within which `percent` of the served requests got theirs, by nearest rank; `None` if
    /// nothing was served.
    pub fn ttft_percentile(&self, percent: usize) -> Option<Duration> {
        let mut sorted = self.ttft.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied()
    }

    pub(super) fn count(&mut self, answer: Answer) {
        match answer {
            Answer::Served { ttft } => {
                self.served += 1;
                self.ttft.push(ttft);
            }
            Answer::Refused => self.refused += 1,
            Answer::Broken => self.broken += 1,
        }
    }

    pub(super) fn add(&mut self, part: Self) {
        let Self { served, refused, broken, ttft } = part;
        self.served += served;
        self.refused += refused;
        self.broken += broken;
        self.ttft.extend(ttft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(millis: impl IntoIterator<Item = u64>) -> Tally {
        let mut tally = Tally::default();
        for millis in millis {
            tally.count(Answer::Served { ttft: Duration::from_millis(millis) });
        }
        tally
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let tally = served((1..=40).rev());
        let millis = |percent| tally.ttft_percentile(percent).unwrap().as_millis();
        assert_eq!([0, 50, 95, 100].map(millis), [1, 20, 38, 40]);
        assert_eq!(served([7]).ttft_percentile(95), Some(Duration::from_millis(7)));
    }

    #[test]
    fn nothing_served_has_no_percentiles() {
        let mut tally = Tally::default();
        tally.count(Answer::Refused);
        assert_eq!(tally.ttft_percentile(50), None);
    }

    #[test]
    fn parts_add_up() {
        let mut all = served([1, 2]);
        all.count(Answer::Refused);
        let mut part = served([3]);
        part.count(Answer::Broken);
        all.add(part);
        assert_eq!((all.sent(), all.served, all.refused, all.broken), (5, 3, 1, 1));
        assert_eq!(all.ttft_percentile(100), Some(Duration::from_millis(3)));
    }
}
