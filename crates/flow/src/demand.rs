//! What waits, as facts: the eviction plan turns it into the detector's unit when it needs to.

use crate::load::{Load, Partition, Partitions, PerPartition};

/// Waiting requests and their tokens, by the partitions they would weigh on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand(PerPartition<Load>);

impl Demand {
    /// One request of `load` begins (or ceases) to wait.
    pub(crate) fn count(&mut self, partitions: Partitions, load: Load, waits: bool) {
        for partition in partitions.iter() {
            let sum = &mut self.0[partition as usize];
            if waits { sum.add(load) } else { sum.sub(load) }
        }
    }

    pub(crate) const fn of(&self, partition: Partition) -> Load {
        self.0[partition as usize]
    }

    /// How many requests it is: each of them weighs on the whole pool, whatever its stages.
    pub(crate) const fn requests(&self) -> u64 {
        self.of(Partition::Pool).requests
    }

    /// The part of `room` of the requests, taken to be of a middling size if that is not all of them.
    pub(crate) fn of_at_most(&self, room: u64) -> Self {
        Self(self.0.map(|Load { requests, tokens }| {
            if requests <= room {
                return Load { requests, tokens };
            }
            let share = (u128::from(tokens) * u128::from(room)).div_ceil(u128::from(requests));
            Load { requests: room, tokens: u64::try_from(share).unwrap_or(u64::MAX) }
        }))
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, part)| sum.add(part));
    }

    pub(crate) fn sub(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, part)| sum.sub(part));
    }
}
