//! Tickets that came in the order of their keys, any of which can be taken out at once.

use crate::ticket::{Ticket, slot_of};

/// The neighbours of each ticket in its line, by the ticket's slot. Several lines may share one table as long as a ticket
/// is in one of them at most. Keys are kept here, so that no ticket's own record is touched for its neighbour's sake.
#[derive(Debug)]
pub(crate) struct Links<K>(Vec<Link<K>>);

impl<K> Default for Links<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Link<K> {
    before: Option<Ticket>,
    behind: Option<Ticket>,
    key: K,
}

impl<K: Copy + Default> Links<K> {
    fn of(&mut self, ticket: Ticket) -> &mut Link<K> {
        let slot = slot_of(ticket);
        if self.0.len() <= slot {
            self.0.resize(slot + 1, Link::default());
        }
        &mut self.0[slot]
    }
}

#[derive(Debug)]
pub(crate) struct Line<K> {
    first: Option<(K, Ticket)>,
    last: Option<(K, Ticket)>,
}

impl<K> Default for Line<K> {
    fn default() -> Self {
        Self { first: None, last: None }
    }
}

impl<K: Copy + Default + Ord> Line<K> {
    pub(crate) const fn peek(&self) -> Option<(K, Ticket)> {
        self.first
    }

    /// Puts the ticket behind all others; false, and nothing is done, if one of them has a larger key.
    pub(crate) fn push(&mut self, links: &mut Links<K>, key: K, ticket: Ticket) -> bool {
        if self.last.is_some_and(|(last, _)| last > key) {
            return false;
        }
        let before = self.last.map(|(_, last)| last);
        *links.of(ticket) = Link { before, behind: None, key };
        match before {
            Some(before) => links.of(before).behind = Some(ticket),
            None => self.first = Some((key, ticket)),
        }
        self.last = Some((key, ticket));
        true
    }

    /// Takes `ticket` out; false if it is not here.
    pub(crate) fn remove(&mut self, links: &mut Links<K>, ticket: Ticket) -> bool {
        let Link { before, behind, .. } = std::mem::take(links.of(ticket));
        let is_first = self.first.is_some_and(|(_, first)| first == ticket);
        if before.is_none() && !is_first {
            return false;
        }
        match before {
            Some(before) => links.of(before).behind = behind,
            None => self.first = behind.map(|behind| (links.of(behind).key, behind)),
        }
        match behind {
            Some(behind) => links.of(behind).before = before,
            None => self.last = before.map(|before| (links.of(before).key, before)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slotmap::SlotMap;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec((any::<bool>(), any::<usize>()), 0..200)) {
            let mut tickets: SlotMap<Ticket, ()> = SlotMap::with_key();
            let (mut line, mut links) = (Line::default(), Links::default());
            let mut list: Vec<(u64, Ticket)> = Vec::new();
            for ((comes, which), number) in steps.into_iter().zip(0_u64..) {
                if comes || list.is_empty() {
                    let ticket = tickets.insert(());
                    prop_assert!(!line.remove(&mut links, ticket));
                    prop_assert!(line.push(&mut links, number / 3, ticket));
                    list.push((number / 3, ticket));
                } else {
                    let (_, ticket) = list.remove(which % list.len());
                    prop_assert!(line.remove(&mut links, ticket));
                    prop_assert!(!line.remove(&mut links, ticket));
                    tickets.remove(ticket);
                }
                prop_assert_eq!(line.peek(), list.first().copied());
                prop_assert_eq!(line.last, list.last().copied());
            }
            while let Some((key, first)) = line.peek() {
                prop_assert_eq!(list.remove(0), (key, first));
                prop_assert!(line.remove(&mut links, first));
            }
            prop_assert!(list.is_empty());
        }
    }

    #[test]
    fn nobody_is_put_behind_a_larger_key() {
        let mut tickets: SlotMap<Ticket, ()> = SlotMap::with_key();
        let (mut line, mut links) = (Line::default(), Links::default());
        assert!(line.push(&mut links, 2, tickets.insert(())));
        assert!(!line.push(&mut links, 1, tickets.insert(())));
        assert!(line.push(&mut links, 2, tickets.insert(())));
        assert_eq!(line.peek().map(|(key, _)| key), Some(2));
    }
}
