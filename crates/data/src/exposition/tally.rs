use super::families::Kind;
use super::sample::{Labels, Sample};

/// How the series of one reading make one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    /// Each counts a part.
    Sum,
    /// The largest stands for all.
    Largest,
    /// The one with the latest explicit time, the first one among equals and where there are no times.
    Newest,
}

/// Why the series of a reading are not all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A line cannot be read, or has a value that makes no sense.
    Unreadable,
    TooMany,
}

/// What was found for one reading so far.
#[derive(Clone, Debug)]
pub(super) struct Tally<'p> {
    combine: Combine,
    pub(super) kind: Kind,
    /// A series was there, whatever its value.
    pub(super) matched: bool,
    /// Not all of what there is can be told.
    pub(super) flaw: Option<Flaw>,
    /// How many series were added.
    pub(super) series: usize,
    /// The series before the last one, combined.
    earlier: Option<Sample<'p>>,
    last: Option<Sample<'p>>,
}

impl<'p> Tally<'p> {
    pub(super) const fn new(combine: Combine) -> Self {
        Self { combine, kind: Kind::Level, matched: false, flaw: None, series: 0, earlier: None, last: None }
    }

    /// Adds one sample. The samples of one series stand side by side, and the latest of them counts.
    pub(super) fn add(&mut self, sample: Sample<'p>) {
        match self.last {
            Some(last) if last.labels == sample.labels => {
                if sample.timestamp >= last.timestamp {
                    self.last = Some(sample);
                }
            }
            Some(last) => {
                self.earlier = Some(self.combine.apply(self.earlier, last));
                self.begin(sample);
            }
            None => self.begin(sample),
        }
    }

    fn begin(&mut self, sample: Sample<'p>) {
        self.last = Some(sample);
        self.series += 1;
    }

    fn result(&self) -> Option<Sample<'p>> {
        self.last.map(|last| self.combine.apply(self.earlier, last))
    }

    pub(super) fn value(&self) -> Option<f64> {
        self.result().map(|sample| sample.value)
    }

    /// The labels of the series that stands for all.
    pub(super) fn labels(&self) -> Option<Labels<'p>> {
        self.result().map(|sample| sample.labels)
    }
}

impl Combine {
    fn apply<'p>(self, earlier: Option<Sample<'p>>, last: Sample<'p>) -> Sample<'p> {
        let Some(earlier) = earlier else { return last };
        let last_wins = match self {
            Self::Sum => return Sample { value: earlier.value + last.value, ..earlier },
            Self::Largest => last.value > earlier.value,
            Self::Newest => last.timestamp > earlier.timestamp,
        };
        if last_wins { last } else { earlier }
    }
}
