//! What a candidate does next: a decision for each answer and each moment, without a clock and without a server.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use sluice_core::Time;

use super::Timings;

/// What is to be done now. Nothing else is done before the outcome is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing until then.
    Wait(Time),
    /// Ask for the lease, and tell [`Election::read`] or [`Election::failed`].
    Read,
    /// Replace the lease, or make it if this one names no version, and tell [`Election::written`],
    /// [`Election::outdated`] or [`Election::failed`].
    Write(Box<Lease>),
    /// This candidate has left the election.
    Leave,
}

/// One candidate's view of the lease.
///
/// Times are the candidate's own; a candidate that sleeps through them finds out when it is next asked.
#[derive(Debug)]
pub(crate) struct Election {
    /// Of the lease.
    name: String,
    identity: String,
    timings: Timings,
    seen: Option<Seen>,
    /// When a lease that had been there was first found to be gone, while it is.
    gone: Option<Gone>,
    /// There has been a lease, as far as is known, or a write of ours may have made one.
    heard: bool,
    /// [`Time::ZERO`] unless it leads.
    leads_until: Time,
    next: Next,
    /// When [`Step::Read`] was last given out.
    asked: Time,
    /// When [`Step::Write`] was last given out.
    sent: Time,
    /// That write was made upon a look, and not upon what was known before.
    fresh: bool,
    /// The lease may bear our name: it does as far as is known, or a write of ours may have been done.
    may_hold: bool,
    /// Told to leave, at this time.
    leaves: Option<Time>,
}

/// The lease as it was last read or written.
#[derive(Debug)]
struct Seen {
    lease: Lease,
    /// When what it says was first seen.
    since: Time,
}

/// A lease that somebody has deleted. Whoever held it may not know yet, and lead.
#[derive(Clone, Copy, Debug)]
struct Gone {
    /// When that was found out.
    since: Time,
    /// When it was last asked for, of the times at which it was not there.
    asked: Time,
    /// Of the lease that was there.
    duration: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    Rest(Time),
    Read,
    /// The lease was just read.
    Decide,
}

impl Election {
    /// In the election of the lease `name`. No two candidates may have the same `identity`, not even one after the other.
    pub(crate) fn new(name: String, identity: String, timings: Timings) -> Self {
        Self {
            name,
            identity,
            timings,
            seen: None,
            gone: None,
            heard: false,
            leads_until: Time::ZERO,
            next: Next::Read,
            asked: Time::ZERO,
            sent: Time::ZERO,
            fresh: false,
            may_hold: false,
            leaves: None,
        }
    }

    /// Whether this candidate leads. While it does, no other one does.
    pub(crate) fn leads(&self, now: Time) -> bool {
        now < self.leads_until
    }

    /// Until when it leads if nothing more is heard; none if it does not.
    pub(crate) fn leads_until(&self, now: Time) -> Option<Time> {
        self.leads(now).then_some(self.leads_until)
    }

    /// Whose name stands in the lease, as far as is known.
    pub(crate) fn holder(&self) -> Option<&str> {
        self.seen.as_ref().and_then(|seen| holder(&seen.lease))
    }

    /// The lease has been deleted, and it is waited as if its holder had renewed it when that was found out.
    pub(crate) const fn waits_for_deleted(&self) -> bool {
        self.gone.is_some()
    }

    /// From now on this candidate does not lead, and gives the lease up if it has it.
    pub(crate) fn leave(&mut self, now: Time) {
        self.leads_until = Time::ZERO;
        if self.leaves.is_none() {
            self.leaves = Some(now);
            // What was written last may not be what was seen last.
            self.next = Next::Read;
        }
    }

    /// `wall` is what is written into the lease as the time.
    pub(crate) fn step(&mut self, now: Time, wall: Timestamp) -> Step {
        let step = self.decide(now, wall);
        if step == Step::Read {
            self.asked = now;
        }
        step
    }

    fn decide(&mut self, now: Time, wall: Timestamp) -> Step {
        if let Some(since) = self.leaves {
            return self.step_out(now, since, wall);
        }
        match self.next {
            Next::Rest(until) if now < until => Step::Wait(self.leads_until(now).map_or(until, |end| end.min(until))),
            // What was written last is in all likelihood still there.
            Next::Rest(_) if self.leads(now) && self.seen.is_some() => self.claim(now, wall),
            Next::Rest(_) | Next::Read => Step::Read,
            // A process that slept since it asked may have missed that somebody made one.
            Next::Decide if self.seen.is_none() && !self.leads(now) && self.is_old(now) => Step::Read,
            Next::Decide if self.is_free(now) => self.claim(now, wall),
            Next::Decide => {
                let look = now.saturating_add(self.timings.look);
                let until = self.expiry().map_or(look, |expiry| expiry.min(look));
                self.next = Next::Rest(until);
                Step::Wait(until)
            }
        }
    }

    /// Longer ago than any answer is waited for has it been asked for.
    fn is_old(&self, now: Time) -> bool {
        now.saturating_since(self.asked) > self.timings.patience()
    }

    fn step_out(&mut self, now: Time, since: Time, wall: Timestamp) -> Step {
        let late = now.saturating_since(since) >= self.timings.renew_deadline;
        if late || !self.may_hold {
            return Step::Leave;
        }
        match self.next {
            Next::Rest(until) if now < until => Step::Wait(until),
            Next::Rest(_) | Next::Read => Step::Read,
            Next::Decide => self.give_up(now, wall),
        }
    }

    /// The lease is this now, or there is none.
    pub(crate) fn read(&mut self, now: Time, lease: Option<Lease>) {
        self.see(now, lease);
        self.may_hold = self.is_held();
        // A lease that is gone, or that somebody has taken the name out of, is nobody else's for as long as its leader may
        // take to find that out.
        if !self.may_hold && self.holder().is_some() {
            self.leads_until = Time::ZERO;
        }
        self.next = Next::Decide;
    }

    /// The write was done, and has made the lease this.
    pub(crate) fn written(&mut self, now: Time, lease: Lease) {
        self.see(now, Some(lease));
        self.may_hold = self.is_held();
        if self.leaves.is_none() && self.may_hold {
            self.leads_until = self.sent.saturating_add(self.timings.renew_deadline);
        }
        let rest = Next::Rest(self.sent.saturating_add(self.timings.renew));
        self.next = if self.leaves.is_some() { Next::Decide } else { rest };
    }

    /// The write was not done: the lease was another one already, or was not there, or was there.
    pub(crate) fn outdated(&mut self, now: Time) {
        if self.seen.is_none() {
            // There was no lease, and somebody has made one, who may not know of any wait.
            self.leads_until = Time::ZERO;
        }
        // Somebody else wrote after we looked: it is their turn.
        self.next = if self.fresh { Next::Rest(now.saturating_add(self.timings.look)) } else { Next::Read };
    }

    /// There is no answer, or none that tells. What was to be written may be there or not.
    pub(crate) fn failed(&mut self, now: Time) {
        self.next = Next::Rest(now.saturating_add(self.timings.look));
    }

    fn see(&mut self, now: Time, lease: Option<Lease>) {
        self.heard |= lease.is_some();
        self.gone = if lease.is_none() && self.heard { Some(self.gone(now)) } else { None };
        let since = match (&self.seen, &lease) {
            (Some(seen), Some(lease)) if says_the_same(&seen.lease, lease) => seen.since,
            _ => now,
        };
        self.seen = lease.map(|lease| Seen { lease, since });
    }

    fn gone(&self, now: Time) -> Gone {
        let asked = self.asked;
        match self.gone {
            // Whatever was made in between is still there, or was not there for long.
            Some(gone) if now.saturating_since(gone.asked) <= self.timings.lease => Gone { asked, ..gone },
            Some(Gone { duration, .. }) => Gone { since: now, asked, duration },
            // Somebody may have taken or renewed it unseen before, also one that had been given up.
            None => Gone { since: now, asked, duration: self.longest() },
        }
    }

    fn is_held(&self) -> bool {
        self.holder() == Some(&self.identity)
    }

    /// It may be written to, or made. Whoever leads puts its name back at once, since all others wait.
    fn is_free(&self, now: Time) -> bool {
        self.is_held()
            || (self.holder().is_none() && self.leads(now))
            || self.expiry().is_none_or(|expiry| expiry <= now)
    }

    /// When the lease of whoever holds it, or held it when it was deleted or lost its name, expires; none if nobody does.
    fn expiry(&self) -> Option<Time> {
        match &self.seen {
            Some(Seen { lease, .. }) if is_given_up(lease) => None,
            Some(Seen { lease, since }) if holder(lease).is_some() => Some(since.saturating_add(self.duration())),
            Some(Seen { since, .. }) => Some(since.saturating_add(self.longest())),
            None => self.gone.map(|Gone { since, duration, .. }| since.saturating_add(duration)),
        }
    }

    /// Of the lease, as it was last seen.
    fn duration(&self) -> Duration {
        let spec = self.seen.as_ref().and_then(|seen| seen.lease.spec.as_ref());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        seconds.filter(|seconds| *seconds > 0).map_or(self.timings.lease, Duration::from_secs)
    }

    /// For which whoever leads may go on once the lease does not say so any more.
    fn longest(&self) -> Duration {
        self.duration().max(self.timings.lease)
    }

    fn claim(&mut self, now: Time, wall: Timestamp) -> Step {
        let held = self.is_held();
        let (mut lease, transitions) = match &self.seen {
            Some(Seen { lease, .. }) => {
                let before = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0);
                (lease.clone(), before.saturating_add(i32::from(!held)))
            }
            None => (self.blank(), 0),
        };
        let spec = lease.spec.get_or_insert_default();
        if !held {
            spec.acquire_time = Some(MicroTime(wall));
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.timings.lease.as_secs()).unwrap_or(i32::MAX));
        spec.renew_time = Some(MicroTime(wall));
        spec.lease_transitions = Some(transitions);
        self.write(now, lease)
    }

    /// So that nobody has to wait for the lease to expire.
    fn give_up(&mut self, now: Time, wall: Timestamp) -> Step {
        let Some(Seen { lease, .. }) = &self.seen else { return Step::Leave };
        let mut lease = lease.clone();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(GIVEN_UP);
        spec.acquire_time = Some(MicroTime(wall));
        spec.renew_time = Some(MicroTime(wall));
        self.write(now, lease)
    }

    fn write(&mut self, now: Time, lease: Lease) -> Step {
        self.fresh = matches!(self.next, Next::Decide);
        self.sent = now;
        self.may_hold = true;
        self.heard = true;
        Step::Write(Box::new(lease))
    }

    fn blank(&self) -> Lease {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        Lease { metadata, spec: Some(LeaseSpec::default()) }
    }
}

/// The duration that stands, in seconds, in a lease that its holder has given up, also by client-go.
const GIVEN_UP: i32 = 1;

/// Only what it says counts: a label, say, is no sign of life. What names nobody tells nothing, and its leader may have put
/// its name there and lost it again since.
fn says_the_same(before: &Lease, lease: &Lease) -> bool {
    let is_same_version = before.metadata.resource_version == lease.metadata.resource_version;
    before.spec == lease.spec && (holder(lease).is_some() || is_same_version)
}

/// Its holder has left, as opposed to a lease that somebody else has taken the name out of.
fn is_given_up(lease: &Lease) -> bool {
    let duration = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    holder(lease).is_none() && duration == Some(GIVEN_UP)
}

/// Nobody's name and no name are the same.
fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
