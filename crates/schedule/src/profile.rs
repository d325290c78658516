use std::sync::Arc;

use sluice_core::{Endpoint, Request};
use smallvec::SmallVec;

use crate::{Candidates, Filter, Picker, Rng, Scorer};

/// A scorer and what its verdict is worth.
#[derive(Clone, Debug)]
pub struct WeightedScorer {
    pub scorer: Arc<dyn Scorer>,
    pub weight: f32,
}

/// Filters, scorers and a picker under one name.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: Arc<str>,
    pub filters: Vec<Arc<dyn Filter>>,
    pub scorers: Vec<WeightedScorer>,
    pub picker: Arc<dyn Picker>,
}

impl Profile {
    /// The chosen endpoints, best first; empty if the filters left none.
    ///
    /// The score of an endpoint is the sum over the scorers of `clamp(score, 0, 1) * weight`.
    pub(crate) fn run(&self, request: &Request, mut candidates: Candidates<'_>, rng: &mut Rng) -> Vec<Arc<Endpoint>> {
        self.filter(request, &mut candidates, |_| true);
        let candidates = candidates.as_slice();
        if candidates.is_empty() {
            return Vec::new();
        }

        let mut totals: SmallVec<[f32; 32]> = SmallVec::from_elem(0.0, candidates.len());
        let mut scores: SmallVec<[f32; 32]> = SmallVec::from_elem(0.0, candidates.len());
        for WeightedScorer { scorer, weight } in &self.scorers {
            scores.fill(0.0);
            scorer.score(request, candidates, &mut scores);
            for (total, &score) in totals.iter_mut().zip(&scores) {
                *total += in_unit_range(score) * weight;
            }
        }

        let mut picked = SmallVec::new();
        self.picker.pick(request, candidates, &totals, rng, &mut picked);
        picked.iter().map(|&index| Arc::clone(candidates[index])).collect()
    }

    /// The endpoints that suit the request however full they are, in the order of `candidates`.
    pub(crate) fn suitable(&self, request: &Request, mut candidates: Candidates<'_>) -> Vec<Arc<Endpoint>> {
        self.filter(request, &mut candidates, |filter| !filter.is_by_load());
        candidates.as_slice().iter().map(|endpoint| Arc::clone(endpoint)).collect()
    }

    fn filter(&self, request: &Request, candidates: &mut Candidates<'_>, which: impl Fn(&dyn Filter) -> bool) {
        for filter in self.filters.iter().filter(|filter| which(&***filter)) {
            if candidates.is_empty() {
                return;
            }
            filter.filter(request, candidates);
        }
    }
}

/// `score` clamped to `0.0..=1.0`; NaN counts as 0.
const fn in_unit_range(score: f32) -> f32 {
    // `max` returns the other operand for NaN.
    score.max(0.0).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::in_unit_range;

    #[test]
    #[expect(clippy::float_cmp, reason = "exact values in, exact values out")]
    fn scores_are_clamped_and_nan_counts_nothing() {
        assert_eq!(in_unit_range(f32::NAN), 0.0);
        assert_eq!(in_unit_range(f32::INFINITY), 1.0);
        assert_eq!(in_unit_range(-3.0), 0.0);
        assert_eq!(in_unit_range(0.25), 0.25);
    }
}
