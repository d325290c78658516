/// A set of small numbers that finds the next one fast: one bit says for 64 of them that there is any.
#[derive(Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    /// For each word, whether it has any bit set.
    summary: Vec<u64>,
}

const WIDTH: usize = u64::BITS as usize;

impl Bits {
    pub(super) fn get(&self, at: usize) -> bool {
        self.words.get(at / WIDTH).is_some_and(|word| word & bit(at) != 0)
    }

    pub(super) fn set(&mut self, at: usize, value: bool) {
        let index = at / WIDTH;
        if index >= self.words.len() {
            if !value {
                return;
            }
            self.words.resize(index + 1, 0);
            self.summary.resize(index / WIDTH + 1, 0);
        }
        let word = &mut self.words[index];
        let summary = &mut self.summary[index / WIDTH];
        if value {
            *word |= bit(at);
            *summary |= bit(index);
        } else {
            *word &= !bit(at);
            if *word == 0 {
                *summary &= !bit(index);
            }
        }
    }

    /// The smallest member that is `from` or above.
    pub(super) fn first_from(&self, from: usize) -> Option<usize> {
        let index = from / WIDTH;
        if let Some(at) = first_in(&self.words, index, from % WIDTH) {
            return Some(at);
        }
        let after = index + 1;
        let word = first_in(&self.summary, after / WIDTH, after % WIDTH)
            .or_else(|| (after / WIDTH + 1..self.summary.len()).find_map(|at| first_in(&self.summary, at, 0)))?;
        first_in(&self.words, word, 0)
    }
}

const fn bit(at: usize) -> u64 {
    1 << (at % WIDTH)
}

/// The number of the first bit of `words[index]` that is `from` or above.
fn first_in(words: &[u64], index: usize, from: usize) -> Option<usize> {
    let rest = words.get(index)? & (u64::MAX << from);
    (rest != 0).then(|| index * WIDTH + rest.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0_usize..10_000, any::<bool>()), 0..200), from in 0_usize..10_100) {
            let (mut bits, mut set) = (Bits::default(), BTreeSet::new());
            for (at, value) in steps {
                bits.set(at, value);
                if value { set.insert(at) } else { set.remove(&at) };
                prop_assert_eq!(bits.get(at), value);
            }
            for from in set.iter().flat_map(|&at| [at, at + 1]).chain([0, from]) {
                prop_assert_eq!(bits.first_from(from), set.range(from..).next().copied());
            }
        }
    }
}
