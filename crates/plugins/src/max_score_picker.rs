use std::sync::Arc;

use rand::seq::SliceRandom;
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::{Picker, Rng};
use smallvec::SmallVec;

use crate::max_endpoints::PickerParams;

/// Picks the endpoints with the highest scores; among equals each has the same chance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxScorePicker {
    max_endpoints: usize,
}

impl Plugin for MaxScorePicker {
    const TYPE: &'static str = "max-score-picker";
    const STABILITY: Stability = Stability::Beta;
    type Params = PickerParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::picker(Self { max_endpoints: params.max_endpoints(cx) }))
    }
}

impl Picker for MaxScorePicker {
    fn pick(
        &self,
        _request: &Request,
        _candidates: &[&Arc<Endpoint>],
        scores: &[f32],
        rng: &mut Rng,
        picked: &mut SmallVec<[usize; 4]>,
    ) {
        let mut order: SmallVec<[usize; 32]> = (0..scores.len()).collect();
        // Shuffled first, a stable order leaves equals in random order.
        order.shuffle(rng);
        if self.max_endpoints == 1 {
            // `max_by` would take the last of equals: just as random.
            picked.extend(order.into_iter().max_by(|&a, &b| scores[a].total_cmp(&scores[b])));
        } else {
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            picked.extend(order.into_iter().take(self.max_endpoints));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{pick, spread};

    const ONE: MaxScorePicker = MaxScorePicker { max_endpoints: 1 };

    #[test]
    fn the_highest_score_is_picked() {
        for seed in 0..20 {
            assert_eq!(pick(&ONE, &[0.5, 3.0, -1.0, 2.9], seed), [1]);
        }
    }

    #[test]
    fn further_endpoints_follow_by_score() {
        let three = MaxScorePicker { max_endpoints: 3 };
        for seed in 0..20 {
            assert_eq!(pick(&three, &[0.5, 3.0, -1.0, 2.9], seed), [1, 3, 0]);
        }
        let many = MaxScorePicker { max_endpoints: 10 };
        assert_eq!(pick(&many, &[1.0, 2.0], 0), [1, 0]);
    }

    #[test]
    fn equals_are_picked_evenly() {
        // 80 picks, and so many that an uneven chance would show: the standard deviation is about 30.
        assert!(spread(&ONE, &[1.0; 8], 80).iter().all(|&picks| picks > 0));
        for picks in spread(&ONE, &[1.0; 8], 8_000) {
            assert!((850..=1150).contains(&picks), "{picks}");
        }
    }

    #[test]
    fn only_the_best_of_equals_take_part() {
        let picks = spread(&ONE, &[1.0, 0.0, 1.0, 0.5], 1_000);
        assert_eq!((picks[1], picks[3]), (0, 0));
        assert!(picks[0] > 400 && picks[2] > 400, "{picks:?}");
    }

    proptest! {
        #[test]
        fn each_pick_is_valid_and_best_first(
            scores in prop::collection::vec(-10.0_f32..10.0, 1..40),
            max_endpoints in 1_usize..50,
            seed: u64,
        ) {
            let picked = pick(&MaxScorePicker { max_endpoints }, &scores, seed);
            prop_assert_eq!(picked.len(), max_endpoints.min(scores.len()));
            prop_assert!(picked.windows(2).all(|pair| scores[pair[0]] >= scores[pair[1]]));
            let worst = scores[picked[picked.len() - 1]];
            let better = scores.iter().filter(|&&score| score > worst).count();
            prop_assert!(better < picked.len());
            let mut indices = picked.clone();
            indices.sort_unstable();
            indices.dedup();
            prop_assert_eq!(indices.len(), picked.len());
        }
    }
}
