//! Who may be cut off for more urgent work, in which order, and what each end would free.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sluice_core::{Priority, Time};

use crate::load::{Partition, PerPartition};
use crate::ticket::Ticket;

/// The place of a lease among the victims: the smallest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VictimKey {
    pub(crate) priority: Priority,
    slack: Reverse<u64>,
    newest: Reverse<u64>,
    pub(crate) ticket: Ticket,
}

impl VictimKey {
    /// `deadline` orders only under `most-slack`, where none goes before every deadline.
    pub(crate) fn new(priority: Priority, slack: Slack, started: u64, ticket: Ticket) -> Self {
        let slack = match slack {
            Slack::Unordered => 0,
            Slack::Until(deadline) => deadline.as_nanos().min(u64::MAX - 1),
            Slack::Endless => u64::MAX,
        };
        Self { priority, slack: Reverse(slack), newest: Reverse(started), ticket }
    }
}

/// How long a victim could wait to be served again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slack {
    /// The victim order does not ask.
    Unordered,
    Until(Time),
    Endless,
}

/// What a lease weighs on each partition by itself. Its end takes off no more, and less where an endpoint stays full
/// without it.
pub(crate) type Weight = PerPartition<u64>;

/// Started leases with a negative priority that are not revoked.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    classes: BTreeMap<Priority, Class>,
    /// Those whose ends would free nothing in the present pool: another pool may make victims of them.
    set_aside: BTreeSet<Ticket>,
}

#[derive(Debug, Default)]
struct Class {
    members: BTreeMap<VictimKey, Weight>,
    total: Weight,
}

impl Victims {
    /// There is nobody whose end would free anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Keeps in mind a lease that weighs nothing at present.
    pub(crate) fn set_aside(&mut self, ticket: Ticket) {
        self.set_aside.insert(ticket);
    }

    /// It is no longer one of those, if it was.
    pub(crate) fn take_up(&mut self, ticket: Ticket) {
        self.set_aside.remove(&ticket);
    }

    /// All of them, whether or not they weigh anything.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let members = self.classes.values().flat_map(|class| class.members.keys());
        members.map(|key| key.ticket).chain(self.set_aside.iter().copied())
    }

    pub(crate) fn insert(&mut self, key: VictimKey, weight: Weight) {
        let class = self.classes.entry(key.priority).or_default();
        add(&mut class.total, &weight);
        class.members.insert(key, weight);
    }

    pub(crate) fn remove(&mut self, key: &VictimKey) {
        let Some(class) = self.classes.get_mut(&key.priority) else { return };
        if let Some(weight) = class.members.remove(key) {
            sub(&mut class.total, &weight);
        }
        if class.members.is_empty() {
            self.classes.remove(&key.priority);
        }
    }

    /// The weights of all victims below `priority`: their ends take off no more than that.
    pub(crate) fn total_below(&self, priority: Priority) -> Weight {
        let mut sum = Weight::default();
        for class in self.classes.range(..priority).map(|(_, class)| class) {
            add(&mut sum, &class.total);
        }
        sum
    }

    /// The victims below `priority`, in their order.
    pub(crate) fn below(&self, priority: Priority) -> impl Iterator<Item = VictimKey> {
        self.classes.range(..priority).flat_map(|(_, class)| class.members.keys().copied())
    }
}

pub(crate) fn add(sum: &mut Weight, part: &Weight) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum = sum.saturating_add(*part);
    }
}

fn sub(sum: &mut Weight, part: &Weight) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum = sum.saturating_sub(*part);
    }
}

/// What `whole` has more than `part`.
pub(crate) fn difference(whole: &Weight, part: &Weight) -> Weight {
    let mut difference = *whole;
    sub(&mut difference, part);
    difference
}

/// Revocations under way.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    /// Revoked leases that have neither ended nor become overdue; none of a dry run.
    pub(crate) outstanding: u64,
    /// When each outstanding one becomes overdue.
    pub(crate) timers: BTreeSet<(Time, Ticket)>,
}

impl Revocations {
    pub(crate) fn next_overdue(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }
}

/// Brings a band's demand under its ceiling in one partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    pub(crate) partition: Partition,
    /// L: what is in flight and not on its way out.
    pub(crate) load: u64,
    /// d: what waits.
    pub(crate) demand: u64,
    /// S: where the ceiling lies.
    pub(crate) slots: u64,
}

impl Shortage {
    pub(crate) const fn need(&self) -> u64 {
        (self.load.saturating_add(self.demand)).saturating_sub(self.slots)
    }

    /// The gate stays closed even when `freed` is off.
    pub(crate) const fn is_hopeless(&self, freed: u64) -> bool {
        self.load.saturating_sub(freed) >= self.slots
    }

    pub(crate) const fn is_covered(&self, freed: u64) -> bool {
        freed >= self.need()
    }

    /// The load once `freed` is off and the demand has filled what it may.
    pub(crate) fn load_after(&self, freed: u64) -> u64 {
        let load = self.load.saturating_sub(freed);
        load + self.demand.min(self.slots.saturating_sub(load))
    }
}
