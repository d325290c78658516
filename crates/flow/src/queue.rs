//! The queue of one flow. Most orderings put newcomers last: these stand in a line, and only those that have to go
//! before others stand in a heap.

use crate::heap::{Heap, Positions};
use crate::line::{Line, Links};
use crate::policy::Rank;
use crate::ticket::Ticket;

/// Where the tickets of all queues stand.
#[derive(Debug, Default)]
pub(crate) struct Places {
    links: Links<Rank>,
    positions: Positions,
}

/// Tickets by rank, the smallest first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    line: Line<Rank>,
    heap: Heap<Rank>,
}

impl Queue {
    pub(crate) fn peek(&self) -> Option<(Rank, Ticket)> {
        self.line.peek().into_iter().chain(self.heap.peek()).min()
    }

    pub(crate) fn push(&mut self, places: &mut Places, rank: Rank, ticket: Ticket) {
        if !self.line.push(&mut places.links, rank, ticket) {
            self.heap.push(&mut places.positions, rank, ticket);
        }
    }

    /// Takes `ticket` out; false if it is not here.
    pub(crate) fn remove(&mut self, places: &mut Places, ticket: Ticket) -> bool {
        self.heap.remove(&mut places.positions, ticket) || self.line.remove(&mut places.links, ticket)
    }

    /// Gives every ticket the rank that `rank` says, in linear time.
    pub(crate) fn rekey(&mut self, places: &mut Places, rank: impl FnMut(Ticket) -> Rank) {
        while let Some((old, ticket)) = self.line.peek() {
            self.line.remove(&mut places.links, ticket);
            self.heap.push(&mut places.positions, old, ticket);
        }
        self.heap.rekey(&mut places.positions, rank);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slotmap::SlotMap;

    use super::*;
    use crate::policy::OrderKey;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8),
        Remove(usize),
        Rekey(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => any::<u8>().prop_map(Step::Push),
            4 => any::<usize>().prop_map(Step::Remove),
            1 => any::<u8>().prop_map(Step::Rekey),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn two_queues_agree_with_sorted_lists(steps in steps()) {
            let mut tickets: SlotMap<Ticket, ()> = SlotMap::with_key();
            let mut places = Places::default();
            let mut queues = [Queue::default(), Queue::default()];
            let mut lists: [Vec<(Rank, Ticket)>; 2] = [Vec::new(), Vec::new()];
            for (step, sequence) in steps.into_iter().zip(0_u64..) {
                let at = usize::from(sequence % 3 == 0);
                let (queue, list) = (&mut queues[at], &mut lists[at]);
                match step {
                    Step::Push(key) => {
                        let rank = Rank { key: OrderKey(key.into()), sequence };
                        let ticket = tickets.insert(());
                        queue.push(&mut places, rank, ticket);
                        list.push((rank, ticket));
                    }
                    Step::Remove(which) if !list.is_empty() => {
                        let (_, ticket) = list.remove(which % list.len());
                        prop_assert!(queue.remove(&mut places, ticket));
                        prop_assert!(!queue.remove(&mut places, ticket));
                        tickets.remove(ticket);
                    }
                    Step::Remove(_) => {}
                    Step::Rekey(mask) => {
                        for (rank, _) in list.iter_mut() {
                            rank.key.0 ^= u64::from(mask);
                        }
                        let rank = |ticket| list.iter().find(|(_, other)| *other == ticket).map(|(rank, _)| *rank);
                        queue.rekey(&mut places, |ticket| rank(ticket).unwrap());
                    }
                }
                prop_assert_eq!(queue.peek(), list.iter().min().copied());
            }
        }
    }
}
