use std::fmt;

/// What always holds, by the names that tests, simulation and production share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InvariantId {
    /// Every ticket ends exactly once.
    F1,
    /// Totals equal what is stored.
    F2,
    /// Nothing leaves a band while a higher open band has dispatchable work.
    F3,
    /// After any call nothing dispatchable is left behind an open gate.
    F4,
    /// Nothing outlives its deadline past `on_time`.
    F5,
    /// Under round robin no flow gets a turn while another has waited longer, since its last turn or since it began to
    /// have something queued: continuously backlogged flows differ by at most one turn.
    F6,
    /// `next_wakeup` lies after `now` once `on_time(now)` returned.
    F7,
    /// The order of first grants holds inside a flow.
    F8,
    /// Leases outstanding equal permits and requests in flight.
    F9,
    /// A victim is strictly below the band it serves.
    F10,
    /// No grant is made at or above the ceiling.
    F11,
    /// A parked ticket is granted only after room appeared on one of its endpoints.
    F12,
    /// Continuously backlogged flows under weighted fairness: what they were charged per weight differs by no more
    /// than one largest request of each.
    F13,
}

impl InvariantId {
    pub const ALL: [Self; 13] = [
        Self::F1,
        Self::F2,
        Self::F3,
        Self::F4,
        Self::F5,
        Self::F6,
        Self::F7,
        Self::F8,
        Self::F9,
        Self::F10,
        Self::F11,
        Self::F12,
        Self::F13,
    ];
}

impl InvariantId {
    /// Those that the engine checks while it serves. The others need a look at more than one moment.
    pub const COUNTED: [Self; 8] = [Self::F1, Self::F2, Self::F5, Self::F7, Self::F9, Self::F10, Self::F11, Self::F12];

    pub(crate) const fn is_counted(self) -> bool {
        match self {
            Self::F1 | Self::F2 | Self::F5 | Self::F7 | Self::F9 | Self::F10 | Self::F11 | Self::F12 => true,
            Self::F3 | Self::F4 | Self::F6 | Self::F8 | Self::F13 => false,
        }
    }
}

impl fmt::Display for InvariantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How often each invariant was found broken while serving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations([u64; InvariantId::ALL.len()]);

impl Violations {
    pub const fn of(&self, invariant: InvariantId) -> u64 {
        self.0[invariant as usize]
    }

    pub(crate) const fn count(&mut self, invariant: InvariantId) {
        self.0[invariant as usize] += 1;
    }
}

/// Panics in debug builds if `$holds` is false; counts in release builds, where serving on is better.
macro_rules! check {
    ($violations:expr, $invariant:ident, $holds:expr) => {
        const { assert!($crate::InvariantId::$invariant.is_counted(), "it is not among those that are shown") };
        if !$holds {
            $violations.count($crate::InvariantId::$invariant);
            debug_assert!(false, "invariant {} is broken: {}", $crate::InvariantId::$invariant, stringify!($holds));
        }
    };
}

pub(crate) use check;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_invariant_is_counted_by_itself() {
        let mut violations = Violations::default();
        violations.count(InvariantId::F3);
        violations.count(InvariantId::F3);
        violations.count(InvariantId::F13);
        let counts: Vec<u64> = InvariantId::ALL.iter().map(|&invariant| violations.of(invariant)).collect();
        assert_eq!(counts, [0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(InvariantId::F13.to_string(), "F13");
        let shown = InvariantId::ALL.into_iter().filter(|invariant| invariant.is_counted());
        assert!(shown.eq(InvariantId::COUNTED));
    }
}
