//! Several candidates, a server, and everything that can go wrong between them: answers that are lost or late, writes
//! that are done long after anybody waits for them, processes that stop for a while, die, or leave, leases that are deleted
//! or lose the name in them, and clocks that neither agree nor run at the same speed. At no moment do two lead, and once the
//! trouble is over somebody does.
//!
//! What goes wrong is read off a tape, so that a failure shrinks; after its end nothing does any more.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use sluice_core::Time;

use super::Timings;
use super::machine::{Election, Step};

/// Nanoseconds that a clock counts in a true millisecond: the slowest and the fastest. Their ratio is less than that of
/// the duration of a lease to the deadline of a leader, which is all that is asked of clocks.
const SPEEDS: std::ops::Range<u64> = 850_000..1_250_000;
/// Milliseconds that a message takes.
const DELAYS: [u64; 6] = [1, 1, 20, 400, 4_000, 13_000];
const PAUSES: [u64; 4] = [300, 3_000, 9_000, 30_000];
const CALM_DELAY: u64 = 5;
const MOST_NODES: usize = 8;

/// Milliseconds for which a lease has been there before it is deleted, and after its deletion in which nobody begins who
/// never heard of it: the rules have no answer to that. It is twice the duration of a lease by the slowest clock.
const BETWEEN_DELETIONS: u64 = 30_000 * 1_000_000 / SPEEDS.start;

/// A lease expires after 15 s, whoever looks does so within 1 s, whoever has written waits for 2 s: by the slowest clock.
const WITHOUT_LEADER: u64 = 17_200 * 1_000_000 / SPEEDS.start;

#[derive(Debug)]
enum Event {
    Wake { node: usize },
    Arrives { node: usize, request: u64, what: Step, answer_delay: Option<u64> },
    Answered { node: usize, request: u64, answer: Answer },
    TimesOut { node: usize, request: u64 },
}

#[derive(Debug)]
enum Answer {
    Read(Option<Box<Lease>>),
    Written(Box<Lease>),
    Outdated,
}

#[derive(Debug)]
struct Node {
    election: Election,
    /// Its clock is this far ahead, in nanoseconds.
    offset: u64,
    speed: u64,
    /// By which what it writes into leases is wrong.
    wall_error: i64,
    alive: bool,
    leaves: bool,
    paused_until: u64,
    waits_for: Option<u64>,
    /// It knows that there was a lease, or has written one.
    heard: bool,
}

impl Node {
    fn local(&self, now: u64) -> Time {
        Time::from_nanos(self.offset + now * self.speed)
    }

    /// The first moment at which its clock shows at least `time`.
    fn truly(&self, time: Time) -> u64 {
        time.as_nanos().saturating_sub(self.offset).div_ceil(self.speed)
    }

    fn leads(&self, now: u64) -> bool {
        self.alive && self.election.leads(self.local(now))
    }
}

struct World {
    /// Milliseconds.
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    numbers: u64,
    lease: Option<Lease>,
    version: u64,
    /// When there was no lease last.
    absent: u64,
    /// When a lease was deleted.
    deleted: Option<u64>,
    nodes: Vec<Node>,
    tape: std::vec::IntoIter<u8>,
    /// When the last thing happens that was touched by trouble.
    trouble_until: u64,
}

impl World {
    fn new(nodes: usize, tape: Vec<u8>) -> Self {
        let mut world = Self {
            now: 1_000,
            events: BTreeMap::new(),
            numbers: 0,
            lease: None,
            version: 0,
            absent: 0,
            deleted: None,
            nodes: Vec::new(),
            tape: tape.into_iter(),
            trouble_until: 0,
        };
        for _ in 0..nodes {
            world.add_node();
        }
        world
    }

    /// One of `choices` alternatives; none once the trouble is over.
    fn choose(&mut self, choices: usize) -> Option<usize> {
        let byte = self.tape.next()?;
        self.trouble_until = self.trouble_until.max(self.now);
        Some(usize::from(byte) % choices)
    }

    fn add_node(&mut self) {
        let identity = format!("node-{}", self.nodes.len());
        let speed = SPEEDS.start + (SPEEDS.end - SPEEDS.start) * self.choose(16).unwrap_or(8) as u64 / 15;
        let offset = self.choose(7).unwrap_or_default() as u64 * 86_400_000_000_000;
        let wall_error = self.choose(9).unwrap_or_default() as i64 * 1_000_000 - 4_000_000;
        self.nodes.push(Node {
            election: Election::new("lease".into(), identity, Timings::default()),
            offset,
            speed,
            wall_error,
            alive: true,
            leaves: false,
            paused_until: 0,
            waits_for: None,
            heard: false,
        });
        self.after(0, Event::Wake { node: self.nodes.len() - 1 });
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.numbers += 1;
        self.events.insert((self.now + delay, self.numbers), event);
    }

    fn run_until(&mut self, end: u64) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((time, _), event) = entry.remove_entry();
            self.now = self.now.max(time);
            self.happen(event);
            let leaders: Vec<_> = self.nodes.iter().filter(|node| node.leads(self.now)).collect();
            assert!(leaders.len() < 2, "at {} there are two leaders: {leaders:#?}", self.now);
        }
        self.now = self.now.max(end);
    }

    fn happen(&mut self, event: Event) {
        let node = match event {
            Event::Arrives { node, request, what, answer_delay } => {
                let answer = self.serve(what);
                if let Some(delay) = answer_delay {
                    self.after(delay, Event::Answered { node, request, answer });
                }
                return;
            }
            Event::Wake { node } | Event::Answered { node, .. } | Event::TimesOut { node, .. } => node,
        };
        if !self.nodes[node].alive {
            return;
        }
        if self.nodes[node].paused_until > self.now {
            self.after(self.nodes[node].paused_until - self.now, event);
            return;
        }
        let local = self.nodes[node].local(self.now);
        let Node { election, waits_for, heard, .. } = &mut self.nodes[node];
        match event {
            Event::Wake { .. } | Event::Arrives { .. } => {}
            Event::Answered { request, answer, .. } => {
                if *waits_for != Some(request) {
                    return;
                }
                *heard |= matches!(answer, Answer::Read(Some(_)));
                match answer {
                    Answer::Read(lease) => election.read(local, lease.map(|lease| *lease)),
                    Answer::Written(lease) => election.written(local, *lease),
                    Answer::Outdated => election.outdated(local),
                }
            }
            Event::TimesOut { request, .. } => {
                if *waits_for != Some(request) {
                    return;
                }
                election.failed(local);
            }
        }
        *waits_for = None;
        self.trouble(node);
        self.go_on(node);
    }

    fn serve(&mut self, request: Step) -> Answer {
        let Step::Write(lease) = request else { return Answer::Read(self.lease.clone().map(Box::new)) };
        let mut lease = lease;
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        if version(&lease) != self.lease.as_ref().and_then(version) {
            return Answer::Outdated;
        }
        if self.lease.is_none() {
            self.absent = self.now;
        }
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some((*lease).clone());
        Answer::Written(lease)
    }

    /// Something may happen to a process.
    fn trouble(&mut self, node: usize) {
        let others = self.nodes.iter().filter(|node| node.alive && !node.leaves).count() > 1;
        match self.choose(24) {
            Some(0) if others => self.nodes[node].alive = false,
            Some(1) if others => {
                let local = self.nodes[node].local(self.now);
                self.nodes[node].leaves = true;
                self.nodes[node].election.leave(local);
            }
            Some(2) if self.nodes.len() < MOST_NODES && !self.is_soon_after_deletion() => self.add_node(),
            Some(3..=7) => {
                let pause = PAUSES[self.choose(PAUSES.len()).unwrap_or_default()];
                self.nodes[node].paused_until = self.now + pause;
                self.trouble_until = self.trouble_until.max(self.now + pause);
            }
            Some(8 | 9) => self.delete(),
            Some(10 | 11) => self.take_name_out(),
            _ => {}
        }
    }

    fn is_soon_after_deletion(&self) -> bool {
        self.deleted.is_some_and(|deleted| self.now < deleted + BETWEEN_DELETIONS)
    }

    fn delete(&mut self) {
        let all_heard = self.nodes.iter().all(|node| node.heard || !node.alive);
        if all_heard && self.now > self.absent + BETWEEN_DELETIONS && self.lease.take().is_some() {
            self.deleted = Some(self.now);
        }
    }

    /// Somebody does who takes no part in the election.
    fn take_name_out(&mut self) {
        let choice = self.choose(3);
        let Some(spec) = self.lease.as_mut().and_then(|lease| lease.spec.as_mut()) else { return };
        if spec.lease_duration_seconds == Some(1) {
            return;
        }
        match choice {
            Some(0) => *spec = LeaseSpec::default(),
            Some(1) => spec.holder_identity = Some(String::new()),
            _ => spec.holder_identity = None,
        }
        self.version += 1;
        if let Some(lease) = &mut self.lease {
            lease.metadata.resource_version = Some(self.version.to_string());
        }
    }

    /// What the process does until it waits for something.
    fn go_on(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        let seconds = i64::try_from(self.now / 1_000).unwrap() + self.nodes[node].wall_error;
        let wall =
            Timestamp::UNIX_EPOCH + SignedDuration::new(seconds, i32::try_from(self.numbers % 1_000_000).unwrap());
        let local = self.nodes[node].local(self.now);
        match self.nodes[node].election.step(local, wall) {
            Step::Wait(until) => {
                let wake = self.nodes[node].truly(until);
                self.after(wake.saturating_sub(self.now), Event::Wake { node });
            }
            Step::Leave => self.nodes[node].alive = false,
            request => self.send(node, request),
        }
    }

    fn send(&mut self, node: usize, what: Step) {
        self.numbers += 1;
        let request = self.numbers;
        self.nodes[node].waits_for = Some(request);
        self.nodes[node].heard |= matches!(what, Step::Write(_));
        let local = self.nodes[node].local(self.now);
        let patience = local.saturating_add(Timings::default().patience());
        let end = self.nodes[node].election.leads_until(local).map_or(patience, |end| end.min(patience));
        let limit = self.nodes[node].truly(end).saturating_sub(self.now);
        self.after(limit, Event::TimesOut { node, request });

        let mut delay = || self.choose(DELAYS.len() + 1).map(|choice| DELAYS.get(choice).copied());
        let (there, back) = (delay().unwrap_or(Some(CALM_DELAY)), delay().unwrap_or(Some(CALM_DELAY)));
        if there.is_none() || back.is_none() || there.max(back) > Some(CALM_DELAY) {
            let latest = limit.max(there.unwrap_or_default() + back.unwrap_or_default());
            self.trouble_until = self.trouble_until.max(self.now + latest);
        }
        // What does not get there is not answered either.
        if let Some(delay) = there {
            self.after(delay, Event::Arrives { node, request, what, answer_delay: back });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn at_most_one_leads_and_after_the_trouble_somebody_does(
        nodes in 1_usize..5,
        tape in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut world = World::new(nodes, tape);
        // The tape gets shorter with everything that happens.
        while world.tape.len() > 0 {
            world.run_until(world.now + 1_000);
        }
        world.run_until(world.trouble_until + WITHOUT_LEADER);
        prop_assert!(world.nodes.iter().any(|node| node.leads(world.now)), "nobody leads: {:#?}", world.nodes);
        world.run_until(world.now + 60_000);
        prop_assert!(world.nodes.iter().any(|node| node.leads(world.now)), "nobody leads any more: {:#?}", world.nodes);
    }
}
