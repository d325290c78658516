//! A 4-ary heap that knows where each of its tickets stands, so that any of them can be taken out in
//! `log n`.
//!
//! Where a ticket stands is written to a [`Positions`] table beside the heap. Several heaps may share one
//! table as long as a ticket is in at most one of them: the table is dense, so that moving entries about
//! touches a few cache lines and never the tickets' own records.

use sluice_core::Time;

use crate::policy::Rank;
use crate::ticket::{Ticket, slot_of};

const ARITY: usize = 4;
const ABSENT: u32 = u32::MAX;

/// The place of each ticket in its heap, by the ticket's slot.
#[derive(Debug, Default)]
pub(crate) struct Positions(Vec<u32>);

impl Positions {
    fn place(&mut self, ticket: Ticket, index: usize) {
        let slot = slot_of(ticket);
        if self.0.len() <= slot {
            self.0.resize(slot + 1, ABSENT);
        }
        self.0[slot] = u32::try_from(index).unwrap_or(ABSENT);
    }

    fn take(&mut self, ticket: Ticket) -> Option<usize> {
        let place = self.0.get_mut(slot_of(ticket))?;
        let index = std::mem::replace(place, ABSENT);
        (index != ABSENT).then_some(index as usize)
    }
}

/// A key that is compared as one number: without a branch, which a heap could never predict.
pub(crate) trait HeapKey: Copy {
    fn packed(self) -> u128;
}

impl HeapKey for Rank {
    fn packed(self) -> u128 {
        pack(self.key.0, self.sequence)
    }
}

impl HeapKey for (Time, u64) {
    fn packed(self) -> u128 {
        pack(self.0.as_nanos(), self.1)
    }
}

fn pack(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Tickets by key, the smallest on top.
#[derive(Debug)]
pub(crate) struct Heap<K> {
    entries: Vec<(K, Ticket)>,
}

impl<K> Default for Heap<K> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<K: HeapKey> Heap<K> {
    pub(crate) fn peek(&self) -> Option<(K, Ticket)> {
        self.entries.first().copied()
    }

    pub(crate) fn push(&mut self, positions: &mut Positions, key: K, ticket: Ticket) {
        self.entries.push((key, ticket));
        self.sift_up(positions, self.entries.len() - 1);
    }

    /// Takes `ticket` out; false if it is not here.
    pub(crate) fn remove(&mut self, positions: &mut Positions, ticket: Ticket) -> bool {
        let Some(index) = positions.take(ticket) else { return false };
        debug_assert_eq!(self.entries[index].1, ticket, "the position belongs to another heap");
        self.entries.swap_remove(index);
        if index < self.entries.len() {
            let settled = self.sift_up(positions, index);
            self.sift_down(positions, settled);
        }
        true
    }

    /// Gives every entry the key that `key` says, in linear time.
    pub(crate) fn rekey(&mut self, positions: &mut Positions, mut key: impl FnMut(Ticket) -> K) {
        for (index, (old, ticket)) in self.entries.iter_mut().enumerate() {
            *old = key(*ticket);
            positions.place(*ticket, index);
        }
        for index in (0..self.entries.len().div_ceil(ARITY)).rev() {
            self.sift_down(positions, index);
        }
    }

    /// Moves the entry at `index` up to where it belongs and returns its place.
    fn sift_up(&mut self, positions: &mut Positions, mut index: usize) -> usize {
        let moving = self.entries[index];
        let key = moving.0.packed();
        while index > 0 {
            let parent = (index - 1) / ARITY;
            if self.entries[parent].0.packed() <= key {
                break;
            }
            self.entries[index] = self.entries[parent];
            positions.place(self.entries[index].1, index);
            index = parent;
        }
        self.entries[index] = moving;
        positions.place(moving.1, index);
        index
    }

    fn sift_down(&mut self, positions: &mut Positions, mut index: usize) {
        let moving = self.entries[index];
        let key = moving.0.packed();
        loop {
            let first = index * ARITY + 1;
            let Some(children) = self.entries.get(first..(first + ARITY).min(self.entries.len())) else { break };
            let mut least = index;
            let mut least_key = key;
            for (offset, child) in children.iter().enumerate() {
                let child_key = child.0.packed();
                if child_key < least_key {
                    (least, least_key) = (first + offset, child_key);
                }
            }
            if least == index {
                break;
            }
            self.entries[index] = self.entries[least];
            positions.place(self.entries[index].1, index);
            index = least;
        }
        self.entries[index] = moving;
        positions.place(moving.1, index);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slotmap::SlotMap;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u16),
        Remove(usize),
        Rekey(u16),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => any::<u16>().prop_map(Step::Push),
            3 => any::<usize>().prop_map(Step::Remove),
            1 => any::<u16>().prop_map(Step::Rekey),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_list(steps in steps()) {
            let mut tickets: SlotMap<Ticket, ()> = SlotMap::with_key();
            let mut positions = Positions::default();
            let mut heap = Heap::default();
            let mut list: Vec<((Time, u64), Ticket)> = Vec::new();
            for (step, number) in steps.into_iter().zip(0..) {
                match step {
                    Step::Push(key) => {
                        let ticket = tickets.insert(());
                        let key = (Time::from_nanos(key.into()), number);
                        heap.push(&mut positions, key, ticket);
                        list.push((key, ticket));
                    }
                    Step::Remove(index) if !list.is_empty() => {
                        let (_, ticket) = list.remove(index % list.len());
                        prop_assert!(heap.remove(&mut positions, ticket));
                        prop_assert!(!heap.remove(&mut positions, ticket));
                        tickets.remove(ticket);
                    }
                    Step::Remove(_) => {}
                    Step::Rekey(mask) => {
                        for ((key, _), _) in &mut list {
                            *key = Time::from_nanos(key.as_nanos() ^ u64::from(mask));
                        }
                        heap.rekey(&mut positions, |ticket| {
                            list.iter().find(|(_, other)| *other == ticket).map(|(key, _)| *key).unwrap()
                        });
                    }
                }
                prop_assert_eq!(heap.peek(), list.iter().min().copied());
                prop_assert_eq!(heap.entries.len(), list.len());
                for index in 1..heap.entries.len() {
                    prop_assert!(heap.entries[(index - 1) / ARITY] <= heap.entries[index]);
                }
            }
            while let Some((key, ticket)) = heap.peek() {
                list.sort_unstable();
                prop_assert_eq!(list.remove(0), (key, ticket));
                prop_assert!(heap.remove(&mut positions, ticket));
            }
            prop_assert!(list.is_empty());
        }
    }
}
