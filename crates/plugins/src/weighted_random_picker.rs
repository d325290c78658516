use std::sync::Arc;

use rand::RngExt;
use rand::seq::SliceRandom;
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::{Picker, Rng};
use smallvec::SmallVec;

use crate::max_endpoints::PickerParams;

/// Picks at random, each endpoint with a chance in proportion to its score. One without a positive score comes after all
/// others; if none has one, each has the same chance.
///
/// Further endpoints are drawn from what is left in the same way. All come from one sample: the largest of u^(1/score),
/// with u uniform in `0.0..1.0` (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightedRandomPicker {
    max_endpoints: usize,
}

impl Plugin for WeightedRandomPicker {
    const TYPE: &'static str = "weighted-random-picker";
    const STABILITY: Stability = Stability::Beta;
    type Params = PickerParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::picker(Self { max_endpoints: params.max_endpoints(cx) }))
    }
}

impl Picker for WeightedRandomPicker {
    fn pick(
        &self,
        _request: &Request,
        _candidates: &[&Arc<Endpoint>],
        scores: &[f32],
        rng: &mut Rng,
        picked: &mut SmallVec<[usize; 4]>,
    ) {
        let mut keyed: SmallVec<[(f64, usize); 32]> =
            scores.iter().enumerate().map(|(index, &score)| (key(score, rng), index)).collect();
        // Shuffled first, a stable order leaves those without a score in random order.
        keyed.shuffle(rng);
        keyed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        picked.extend(keyed.into_iter().take(self.max_endpoints).map(|(_, index)| index));
    }
}

/// The logarithm of u^(1/score), which small scores do not bring down to 0.
fn key(score: f32, rng: &mut Rng) -> f64 {
    if score > 0.0 {
        // In `(0.0, 1.0]`.
        let uniform = 1.0 - rng.random::<f64>();
        uniform.ln() / f64::from(score)
    } else {
        f64::NEG_INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{pick, spread};

    const ONE: WeightedRandomPicker = WeightedRandomPicker { max_endpoints: 1 };

    #[test]
    fn the_chance_is_in_proportion_to_the_score() {
        // The standard deviation of 10,000 draws is at most 50.
        for scale in [1.0, 1e-6, 1e6] {
            let picks = spread(&ONE, &[1.0 * scale, 2.0 * scale, 0.0, 5.0 * scale, 2.0 * scale], 10_000);
            for (picks, expected) in picks.into_iter().zip([1_000_usize, 2_000, 0, 5_000, 2_000]) {
                assert!(picks.abs_diff(expected) <= 200 && (expected > 0 || picks == 0), "{picks} of {expected}");
            }
        }
    }

    #[test]
    fn without_any_score_all_have_the_same_chance() {
        for scores in [[0.0; 4], [-1.0, 0.0, -2.0, -0.5]] {
            for picks in spread(&ONE, &scores, 4_000) {
                assert!((850..=1150).contains(&picks), "{picks}");
            }
        }
    }

    #[test]
    fn endpoints_without_a_score_come_last() {
        let all = WeightedRandomPicker { max_endpoints: 9 };
        for seed in 0..50 {
            let picked = pick(&all, &[0.0, 3.0, -1.0, 1e-30], seed);
            let (mut first, mut last) = (picked[..2].to_vec(), picked[2..].to_vec());
            first.sort_unstable();
            last.sort_unstable();
            assert_eq!((first, last), (vec![1, 3], vec![0, 2]));
        }
    }

    #[test]
    fn the_second_is_drawn_from_what_is_left() {
        let two = WeightedRandomPicker { max_endpoints: 2 };
        let second_is_last = (0..10_000).filter(|&seed| pick(&two, &[1000.0, 3.0, 1.0], seed) == [0, 2]).count();
        assert!((2_300..=2_700).contains(&second_is_last), "{second_is_last}");
    }
}
