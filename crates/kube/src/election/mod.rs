//! Which of several processes leads: the one whose name stands in a Lease that it renews.
//!
//! ```text
//!               free, or not renewed for its duration: write
//!   candidate ───────────────────────────────────────────────> leader ──┐ write again every `retry`
//!       ^                                                        │  ^───┘
//!       │ somebody else's name stands there                      │
//!       ├────────────────────────────────────────────────────────┤
//!       │ no write of its own confirmed for `renew_deadline`     │
//!       └────────────────────────────────────────────────────────┘
//! ```
//!
//! The rules are those of client-go's leader election, so that other programs may take part:
//!
//! * A lease counts as given up when it has not changed for its duration by the clock of whoever looks. The times that
//!   are written into it are for people: clocks of different machines need not agree.
//! * Every write names the version it replaces, and the server takes none that replaces another one. Whoever is told so
//!   looks again.
//! * A leader stops leading at its deadline by itself, before anybody else may think it gone. The deadline counts from
//!   the moment at which the last write was sent that is known to have been done: one whose answer was lost may have
//!   been done, but gives no more time.
//!
//! One rule is our own, since somebody may delete the lease while its leader does not know. Whoever leads makes it anew at
//! its next renewal. Whoever has ever heard of a lease, and does not lead, waits as if it had been renewed at the moment
//! in which it was found to be gone. Only a candidate that has never heard of one makes it at once. So a leader whose
//! lease is deleted shares the lead with nobody, but for the time between two renewals with a candidate that begins in it
//! or with another program; unless the lease is deleted again before it has been there for twice its duration.
//!
//! The same goes for a lease that somebody takes the name out of: its leader puts it back, and whoever sees it waits for
//! its duration. A leader that leaves takes its name out, too, and writes a duration of one second, as client-go does: such
//! a lease is free at once.
//!
//! [`Election`](machine::Election) decides, and knows no clock and no network; [`Candidate`] does what it says.

mod candidate;
mod machine;
#[cfg(test)]
mod simulation;

use std::time::Duration;

pub use self::candidate::Candidate;

/// How long everything takes in an election. Candidates may differ in everything but that none may lead longer without a
/// renewal than the others wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Others may take a lease that has not been renewed for so long.
    pub lease: Duration,
    /// Whoever could not renew for so long leads no more. Less than `lease`: the difference is for clocks that run at
    /// different speeds.
    pub renew_deadline: Duration,
    /// The leader renews this often.
    pub renew: Duration,
    /// Whoever waits looks this often, and whoever failed tries again after so long.
    pub look: Duration,
}

impl Timings {
    /// No answer is waited for for longer.
    fn patience(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// The first three are those of Kubernetes' own components and of llm-d-router's EPP. Looking every second is more than
/// they do (two to four), so that a lease that is given up is taken within a second.
impl Default for Timings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            renew: Duration::from_secs(2),
            look: Duration::from_secs(1),
        }
    }
}
