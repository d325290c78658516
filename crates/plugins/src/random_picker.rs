use std::sync::Arc;

use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::{Endpoint, Request};
use sluice_schedule::{Picker, Rng};
use smallvec::SmallVec;

use crate::max_endpoints::PickerParams;

/// Picks endpoints at random, whatever their scores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RandomPicker {
    max_endpoints: usize,
}

impl Plugin for RandomPicker {
    const TYPE: &'static str = "random-picker";
    const STABILITY: Stability = Stability::Beta;
    type Params = PickerParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::picker(Self { max_endpoints: params.max_endpoints(cx) }))
    }
}

impl Picker for RandomPicker {
    fn pick(
        &self,
        _request: &Request,
        candidates: &[&Arc<Endpoint>],
        _scores: &[f32],
        rng: &mut Rng,
        picked: &mut SmallVec<[usize; 4]>,
    ) {
        let number = self.max_endpoints.min(candidates.len());
        picked.extend(rand::seq::index::sample(rng, candidates.len(), number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{pick, spread};

    #[test]
    fn all_are_picked_evenly_whatever_their_scores() {
        for picks in spread(&RandomPicker { max_endpoints: 1 }, &[0.0, 1.0, 2.0, 3.0], 4_000) {
            assert!((850..=1150).contains(&picks), "{picks}");
        }
    }

    #[test]
    fn no_endpoint_is_picked_twice() {
        for seed in 0..50 {
            let mut picked = pick(&RandomPicker { max_endpoints: 3 }, &[1.0; 5], seed);
            picked.sort_unstable();
            picked.dedup();
            assert_eq!(picked.len(), 3);
        }
        assert_eq!(pick(&RandomPicker { max_endpoints: 9 }, &[1.0; 2], 0).len(), 2);
    }
}
