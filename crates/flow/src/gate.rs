//! Ceilings turned into whole numbers, so that the gate compares integers.

use crate::load::{Partition, Partitions, PerPartition};
use crate::policy::Reading;

/// The smallest `k` with `k / capacity >= ceiling`: how much load a band may find and still be granted one
/// more is anything below it. Zero capacity has no slots.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "capacities stay below 2^53, and the estimate is corrected by comparing the quotients themselves"
)]
pub(crate) fn slots(ceiling: f64, capacity: u64) -> u64 {
    if capacity == 0 || ceiling <= 0.0 || ceiling.is_nan() {
        return 0;
    }
    let reaches = |k: u64| k as f64 / capacity as f64 >= ceiling;
    let mut k = (ceiling * capacity as f64).ceil() as u64;
    // Ends at zero, which never reaches a ceiling above zero.
    while reaches(k) {
        k -= 1;
    }
    while !reaches(k) {
        k += 1;
    }
    k
}

/// Lowers each ceiling to the one before it and tells how many had to be.
pub(crate) fn flatten(ceilings: &mut [f64]) -> u64 {
    let mut flattened = 0;
    let mut highest = 1.0;
    for ceiling in ceilings {
        if ceiling.is_nan() || *ceiling > highest {
            flattened += 1;
            *ceiling = if ceiling.is_nan() { 0.0 } else { highest };
        }
        highest = ceiling.max(0.0);
    }
    flattened
}

/// A band's ceiling in slots of each partition, computed anew when ceiling or capacity changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    ceiling: f64,
    capacity: PerPartition<u64>,
    slots: PerPartition<u64>,
}

impl Gate {
    pub(crate) fn set_ceiling(&mut self, ceiling: f64) {
        self.ceiling = ceiling;
        self.slots = self.capacity.map(|capacity| slots(ceiling, capacity));
    }

    pub(crate) fn slots(&mut self, partition: Partition, capacity: u64) -> u64 {
        let index = partition as usize;
        if self.capacity[index] != capacity {
            self.capacity[index] = capacity;
            self.slots[index] = slots(self.ceiling, capacity);
        }
        self.slots[index]
    }

    /// No partition the gate looks at is at or above the ceiling. Without such partitions, that is with an
    /// empty pool, it is closed.
    pub(crate) fn is_open(&mut self, effective: Partitions, readings: &PerPartition<Reading>) -> bool {
        !effective.is_empty()
            && effective.iter().all(|partition| {
                let Reading { load, capacity } = readings[partition as usize];
                load < self.slots(partition, capacity)
            })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_ceiling_in_slots() {
        let cases = [
            (32, 1.0, 32),
            (32, 0.9, 29),
            (32, 0.8, 26),
            (32, 0.6, 20),
            (48, 0.75, 36),
            (10, 0.7, 7),
            (3, 1.0, 3),
            // Products that are rounded up, and down, across a whole number.
            (100, 0.07, 7),
            (3, (1.0_f64 / 3.0).next_up(), 2),
            (1, 0.01, 1),
            (32, 0.0, 0),
            (0, 1.0, 0),
            (32, f64::NAN, 0),
        ];
        for (capacity, ceiling, expected) in cases {
            assert_eq!(slots(ceiling, capacity), expected, "{ceiling} of {capacity}");
        }
    }

    proptest! {
        #[test]
        #[expect(clippy::cast_precision_loss, reason = "the rule itself, on small numbers")]
        fn slots_are_the_smallest_load_at_the_ceiling(capacity in 1_u64..(1 << 50), ceiling in 0.000_001_f64..=1.0) {
            let k = slots(ceiling, capacity);
            prop_assert!(k as f64 / capacity as f64 >= ceiling);
            prop_assert!(((k - 1) as f64 / (capacity as f64)) < ceiling);
        }
    }

    #[test]
    fn a_rising_ceiling_is_flattened() {
        let mut ceilings = [1.0, 0.8, 0.8, 1.0, 0.5, f64::NAN, 0.3];
        assert_eq!(flatten(&mut ceilings), 3);
        assert_eq!(ceilings.map(f64::to_bits), [1.0_f64, 0.8, 0.8, 0.8, 0.5, 0.0, 0.0].map(f64::to_bits));
    }

    #[test]
    fn the_worse_partition_decides() {
        let mut gate = Gate::default();
        gate.set_ceiling(0.5);
        let both = Partitions::NONE.with(Partition::Prefill).with(Partition::Decode);
        let at = |prefill, decode| [prefill, decode, 0].map(|load| Reading { load, capacity: 10 });
        assert!(gate.is_open(both, &at(4, 4)));
        assert!(!gate.is_open(both, &at(5, 4)));
        assert!(!gate.is_open(both, &at(4, 5)));
        assert!(gate.is_open(Partitions::NONE.with(Partition::Decode), &at(5, 4)));
        assert!(!gate.is_open(Partitions::NONE, &at(0, 0)));
    }
}
