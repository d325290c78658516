use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

/// How long an item waits before it is sent again.
///
/// The wait lies in a window that begins at `first` and doubles with every attempt in a row that brought no token:
/// in its upper half, by chance, so that items that were refused together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    /// The longest window, and the most of a server's wish to be left alone that is heeded.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(500), longest: Duration::from_secs(30) }
    }
}

impl Backoff {
    /// The wait after the window has doubled `doublings` times. It is not shorter than `wish`, and never exactly
    /// that: the server gives the same one to many.
    pub(super) fn wait(self, doublings: u32, wish: Option<Duration>, random: &mut StdRng) -> Duration {
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let half = self.first.saturating_mul(factor).min(self.longest) / 2;
        let least = wish.map_or(half, |wish| wish.min(self.longest).max(half));
        least + random.random_range(Duration::ZERO..=half)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;

    use super::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };

    /// The shortest and the longest of many waits in milliseconds, and how many were different.
    fn waits(doublings: u32, wish: Option<Duration>) -> (u128, u128, usize) {
        let mut random = StdRng::seed_from_u64(1);
        let waits: BTreeSet<_> = (0..1_000).map(|_| BACKOFF.wait(doublings, wish, &mut random).as_millis()).collect();
        (*waits.first().unwrap(), *waits.last().unwrap(), waits.len())
    }

    #[test]
    fn the_window_doubles_up_to_the_longest() {
        for (doublings, window) in [(0, 100), (1, 200), (3, 800), (5, 2_000), (31, 2_000), (32, 2_000)] {
            let (shortest, longest, different) = waits(doublings, None);
            assert!(shortest >= window / 2 && shortest < window * 6 / 10, "{doublings}: {shortest}");
            assert!(longest <= window && longest > window * 9 / 10, "{doublings}: {longest}");
            assert!(different > 40, "{doublings}: {different}");
        }
    }

    #[test]
    fn a_wish_is_granted_and_spread() {
        let (shortest, longest, different) = waits(0, Some(Duration::from_secs(1)));
        assert!((1_000..1_005).contains(&shortest), "{shortest}");
        assert!((1_045..=1_050).contains(&longest), "{longest}");
        assert!(different > 40, "{different}");
    }

    #[test]
    fn a_wish_neither_shortens_the_wait_nor_makes_it_endless() {
        assert_eq!(waits(3, Some(Duration::ZERO)), waits(3, None));
        let (shortest, longest, _) = waits(0, Some(Duration::MAX));
        assert!(shortest >= 2_000 && longest <= 2_050, "{shortest} to {longest}");
    }
}
