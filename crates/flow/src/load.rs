use std::fmt;

/// One life of an endpoint, named by the caller and never given to another life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey(pub u64);

/// Facts about work: what a lease, an endpoint or a queue adds up to. Never a detector's units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub requests: u64,
    pub tokens: u64,
}

impl Load {
    /// One request of `tokens`.
    pub const fn one(tokens: u64) -> Self {
        Self { requests: 1, tokens }
    }

    pub(crate) const fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens = self.tokens.saturating_add(other.tokens);
    }

    pub(crate) const fn sub(&mut self, other: Self) {
        debug_assert!(self.requests >= other.requests, "more requests were taken off than were put on");
        self.requests = self.requests.saturating_sub(other.requests);
        self.tokens = self.tokens.saturating_sub(other.tokens);
    }

    pub const fn plus(mut self, other: Self) -> Self {
        self.add(other);
        self
    }

    pub(crate) const fn minus(mut self, other: Self) -> Self {
        self.sub(other);
        self
    }
}

/// A part of serving a request that may run on endpoints of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    Prefill,
    Decode,
}

/// A set of stages.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stages(u8);

impl Stages {
    pub const NONE: Self = Self(0);
    pub const PREFILL: Self = Self(1);
    pub const DECODE: Self = Self(2);
    pub const BOTH: Self = Self(3);

    /// The stages an endpoint serves, told by its `llm-d.ai/role` label.
    pub fn of_role(role: Option<&str>) -> Self {
        match role {
            Some("prefill" | "encode-prefill") => Self::PREFILL,
            None | Some("decode" | "") => Self::DECODE,
            Some("prefill-decode" | "both" | "encode-prefill-decode") => Self::BOTH,
            Some(_) => Self::NONE,
        }
    }

    pub const fn contains(self, stage: Stage) -> bool {
        let bit = match stage {
            Stage::Prefill => Self::PREFILL,
            Stage::Decode => Self::DECODE,
        };
        self.0 & bit.0 != 0
    }

    /// Every stage of `other` is in `self`.
    pub const fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The partitions that work in these stages weighs on: these, and the whole pool.
    pub const fn partitions(self) -> Partitions {
        Partitions(self.0 | Partition::Pool.bit())
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NONE => "none",
            Self::PREFILL => "prefill",
            Self::DECODE => "decode",
            _ => "prefill+decode",
        })
    }
}

/// A part of the pool whose saturation is measured by itself. The gate looks at the stages that have
/// endpoints, and at the whole pool only where no endpoint serves a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Partition {
    Prefill,
    Decode,
    Pool,
}

impl Partition {
    pub const ALL: [Self; 3] = [Self::Prefill, Self::Decode, Self::Pool];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A value for each [`Partition`], indexed by it.
pub(crate) type PerPartition<T> = [T; 3];

/// A set of [`Partition`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partitions(u8);

impl Partitions {
    pub(crate) const NONE: Self = Self(0);

    pub const fn contains(self, partition: Partition) -> bool {
        self.0 & partition.bit() != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The stages among them: a partition of its own each.
    pub(crate) const fn stages(self) -> Stages {
        Stages(self.0 & Stages::BOTH.0)
    }

    #[must_use]
    pub(crate) const fn with(self, partition: Partition) -> Self {
        Self(self.0 | partition.bit())
    }

    pub fn iter(self) -> impl Iterator<Item = Partition> {
        Partition::ALL.into_iter().filter(move |&partition| self.contains(partition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_names_the_stages() {
        let cases = [
            (None, Stages::DECODE),
            (Some(""), Stages::DECODE),
            (Some("decode"), Stages::DECODE),
            (Some("prefill"), Stages::PREFILL),
            (Some("encode-prefill"), Stages::PREFILL),
            (Some("both"), Stages::BOTH),
            (Some("prefill-decode"), Stages::BOTH),
            (Some("encode-prefill-decode"), Stages::BOTH),
            (Some("encode"), Stages::NONE),
            (Some("something else"), Stages::NONE),
        ];
        for (role, stages) in cases {
            assert_eq!(Stages::of_role(role), stages, "{role:?}");
        }
    }

    #[test]
    fn stages_are_shown_by_name() {
        let shown = [Stages::NONE, Stages::PREFILL, Stages::DECODE, Stages::BOTH].map(|stages| format!("{stages:?}"));
        assert_eq!(shown, ["none", "prefill", "decode", "prefill+decode"]);
    }
}
