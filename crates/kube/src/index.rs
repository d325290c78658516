use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use sluice_core::{EndpointId, EndpointUid, Priority};
use sluice_data::EndpointSpec;

use crate::collection::{Collection, Event};
use crate::crd::{GROUP, OLDER_GROUP, PoolRef};
use crate::objective::Objective;
use crate::pod::Pod;
use crate::pool::{Pool, TargetPorts};
use crate::rewrite::Rewrite;
use crate::status::{self, Bands, Observed, SubjectKind, Verdict};

/// Which pool it is all about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolId {
    pub namespace: String,
    pub name: String,
    /// The API group by which objectives refer to the pool.
    pub group: String,
}

/// Something that a watch has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Pool(Event<Pool>),
    Pod(Event<Pod>),
    /// Of the group `llm-d.ai`.
    Objective(Event<Objective>),
    /// Of the group that objectives had before.
    OlderObjective(Event<Objective>),
    /// Of the group `llm-d.ai`.
    Rewrite(Event<Rewrite>),
    /// Of the group that rewrites had before.
    OlderRewrite(Event<Rewrite>),
}

/// What a change is about: nothing that follows from other things alone need be asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    Pool,
    Pods,
    Objectives,
    Rewrites,
    /// What the caller has of elsewhere.
    Configuration,
}

impl Change {
    pub const fn topic(&self) -> Topic {
        match self {
            Self::Pool(_) => Topic::Pool,
            Self::Pod(_) => Topic::Pods,
            Self::Objective(_) | Self::OlderObjective(_) => Topic::Objectives,
            Self::Rewrite(_) | Self::OlderRewrite(_) => Topic::Rewrites,
        }
    }
}

/// What has been said last of the pool, its pods, its objectives and its rewrites, and what follows from it.
///
/// Each kind is as its last list and the events since then have it; a list takes effect when it is complete. The kinds
/// may be said in any order.
#[derive(Clone, Debug)]
pub struct Index {
    id: PoolId,
    members: Members,
    /// While the pods are those that an earlier pool has chosen, because those of the present one are not listed yet.
    former: Option<Former>,
    pods: Collection<Pod>,
    objectives: Collection<Objective>,
    older_objectives: Collection<Objective>,
    rewrites: Collection<Rewrite>,
    older_rewrites: Collection<Rewrite>,
}

/// What makes a pod a member, and on which ports.
#[derive(Clone, Debug)]
enum Members {
    OfPool(Collection<Pool>),
    /// Without an InferencePool: as the command line says.
    Selected {
        selector: String,
        ports: TargetPorts,
    },
}

/// What the pool said when it chose the pods.
#[derive(Clone, Debug)]
struct Former {
    selector: String,
    ports: TargetPorts,
}

/// The priorities that the objectives of the pool give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objectives {
    pub priorities: BTreeMap<String, Priority>,
    /// Names that both groups define: `llm-d.ai` wins.
    pub defined_twice: BTreeSet<String>,
    /// Names of those that refer to a pool of this name in another API group, and therefore do not count.
    pub of_other_group: BTreeSet<String>,
}

/// The rewrites of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrites {
    /// The one whose rules count first comes first: the oldest, and of the same second by name. Without what is
    /// observed of them, which changes no rule.
    pub in_order: Vec<Rewrite>,
    /// As in [`Objectives`].
    pub defined_twice: BTreeSet<String>,
    pub of_other_group: BTreeSet<String>,
    /// Those of whose rules some are left out, see [`Rewrite::left_out`].
    pub with_rules_left_out: BTreeSet<String>,
}

impl Index {
    /// Of an InferencePool, and the objectives and rewrites that refer to it.
    pub fn of_pool(id: PoolId) -> Self {
        Self::new(id, Members::OfPool(Collection::default()))
    }

    /// Of the pods that `selector` chooses, in the form the API server takes.
    pub fn of_selected(id: PoolId, selector: String, ports: TargetPorts) -> Self {
        let mut index = Self::new(id, Members::Selected { selector, ports });
        // Nothing tells of them in this form.
        index.objectives.apply(Event::Unavailable);
        index.older_objectives.apply(Event::Unavailable);
        index.rewrites.apply(Event::Unavailable);
        index.older_rewrites.apply(Event::Unavailable);
        index
    }

    fn new(id: PoolId, members: Members) -> Self {
        Self {
            id,
            members,
            former: None,
            pods: Collection::default(),
            objectives: Collection::default(),
            older_objectives: Collection::default(),
            rewrites: Collection::default(),
            older_rewrites: Collection::default(),
        }
    }

    /// Tells whether anything that can be asked for here may have changed.
    pub fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Pool(event) => self.apply_to_pool(event),
            Change::Pod(event) => self.apply_to_pods(event),
            Change::Objective(event) => self.objectives.apply(event),
            Change::OlderObjective(event) => self.older_objectives.apply(event),
            Change::Rewrite(event) => self.rewrites.apply(event),
            Change::OlderRewrite(event) => self.older_rewrites.apply(event),
        }
    }

    fn apply_to_pool(&mut self, event: Event<Pool>) -> bool {
        let before = self.pool().map(|pool| Former { selector: pool.selector(), ports: pool.ports.clone() });
        let Members::OfPool(pool) = &mut self.members else { return false };
        let changed = pool.apply(event);
        match self.pool() {
            // A pool that is made anew may choose others: its pods are listed anew.
            None => {
                self.pods.clear();
                self.former = None;
            }
            Some(pool) => {
                let selector = pool.selector();
                let replaced = before.filter(|before| before.selector != selector && self.pods.is_listed());
                // Of many changes in a row, the pods are those of the first one.
                self.former = self.former.take().or(replaced);
            }
        }
        changed
    }

    /// From a pool that has changed its selector on, these are events of a watch with the new one.
    fn apply_to_pods(&mut self, event: Event<Pod>) -> bool {
        let is_list = matches!(event, Event::Complete);
        let changed = self.pods.apply(event);
        let takes_over = is_list && self.former.take().is_some();
        changed || takes_over
    }

    fn pool(&self) -> Option<&Pool> {
        match &self.members {
            Members::OfPool(pools) => pools.iter().find(|pool| pool.key.name == self.id.name && !pool.terminating),
            Members::Selected { .. } => None,
        }
    }

    /// Which pods are to be watched, in the form the API server takes; none while there is no pool.
    pub fn selector(&self) -> Option<String> {
        match &self.members {
            Members::OfPool(_) => self.pool().map(Pool::selector),
            Members::Selected { selector, .. } => Some(selector.clone()),
        }
    }

    /// Those on which the pods that are known serve.
    fn ports(&self) -> Option<&TargetPorts> {
        match &self.members {
            Members::OfPool(_) => self.pool().map(|pool| match &self.former {
                Some(former) if former.selector != pool.selector() => &former.ports,
                _ => &pool.ports,
            }),
            Members::Selected { ports, .. } => Some(ports),
        }
    }

    /// Pools have been listed, and there is none of this name.
    pub fn lacks_pool(&self) -> bool {
        match &self.members {
            Members::OfPool(pools) => pools.is_listed() && self.pool().is_none(),
            Members::Selected { .. } => false,
        }
    }

    /// There is a pool, and everything has been listed, be it that there is nothing in it.
    pub fn is_complete(&self) -> bool {
        self.ports().is_some()
            && self.pods.is_listed()
            && self.objectives.is_listed()
            && self.older_objectives.is_listed()
            && self.rewrites.is_listed()
            && self.older_rewrites.is_listed()
    }

    /// Every port of every routable pod, by what has been said of the pool and the pods. An address that two pods claim belongs to the later one: what has been left
    /// behind by the earlier one is not spoken to any more.
    pub fn endpoints(&self) -> Vec<EndpointSpec> {
        let mut owners = BTreeMap::<SocketAddr, (&Pod, usize)>::new();
        for (rank, port) in self.ports().into_iter().flat_map(TargetPorts::ranks) {
            for pod in self.pods.iter().filter(|pod| pod.routable && pod.serves_on(port)) {
                let Some(ip) = pod.ip else { continue };
                let owner = owners.entry(SocketAddr::new(ip, port)).or_insert((pod, rank));
                if age(owner.0) < age(pod) {
                    *owner = (pod, rank);
                }
            }
        }
        owners.into_iter().map(|(address, (pod, rank))| self.endpoint(pod, rank, address)).collect()
    }

    fn endpoint(&self, pod: &Pod, rank: usize, address: SocketAddr) -> EndpointSpec {
        EndpointSpec {
            id: EndpointId::new(&self.id.namespace, &format!("{}-rank-{rank}", pod.key.name)),
            uid: EndpointUid(pod.key.uid.as_str().into()),
            address,
            labels: pod.labels.clone(),
        }
    }

    /// By what has been said of objectives.
    pub fn objectives(&self) -> Objectives {
        let mut objectives = Objectives::default();
        for objective in self.older_objectives.iter().chain(self.objectives.iter()) {
            let name = &objective.key.name;
            if objective.pool.name != self.id.name {
                continue;
            }
            if objective.pool.group != self.id.group {
                objectives.of_other_group.insert(name.clone());
            } else if objectives.priorities.insert(name.clone(), objective.priority).is_some() {
                objectives.defined_twice.insert(name.clone());
            }
        }
        objectives
    }

    /// By what has been said of rewrites.
    pub fn rewrites(&self) -> Rewrites {
        let mut rewrites = Rewrites::default();
        let mut by_name = BTreeMap::new();
        for rewrite in self.older_rewrites.iter().chain(self.rewrites.iter()) {
            let name = &rewrite.key.name;
            if rewrite.pool.name != self.id.name {
                continue;
            }
            if rewrite.pool.group != self.id.group {
                rewrites.of_other_group.insert(name.clone());
            } else if by_name.insert(name, rewrite).is_some() {
                rewrites.defined_twice.insert(name.clone());
            }
        }
        let without_status = |rewrite: &Rewrite| Rewrite { observed: Observed::default(), ..rewrite.clone() };
        rewrites.in_order = by_name.into_values().map(without_status).collect();
        // Stable: those of the same second stay in the order of their names.
        rewrites.in_order.sort_by_key(|rewrite| rewrite.created);
        let bad = rewrites.in_order.iter().filter(|rewrite| rewrite.left_out > 0);
        rewrites.with_rules_left_out = bad.map(|rewrite| rewrite.key.name.clone()).collect();
        rewrites
    }

    /// By what has been said of anything but pods: what is to be said of each objective and rewrite of the pool, and what is to be taken back of others; nothing
    /// before all of that is known.
    pub fn verdicts(&self, bands: Bands<'_>) -> Vec<Verdict> {
        let Members::OfPool(pools) = &self.members else { return Vec::new() };
        let listed = [self.objectives.is_listed(), self.older_objectives.is_listed()];
        if !pools.is_listed()
            || !self.rewrites.is_listed()
            || !self.older_rewrites.is_listed()
            || listed.contains(&false)
        {
            return Vec::new();
        }
        let pool_exists = self.pool().is_some();
        let present = self.objectives.iter().filter(|objective| self.is_own(&objective.pool)).collect();
        let older = self.older_objectives.iter().filter(|objective| self.is_own(&objective.pool)).collect();
        let mut verdicts = status::of_objectives([(GROUP, present), (OLDER_GROUP, older)], pool_exists, bands);

        let mut in_order = BTreeMap::new();
        let mut overruled = Vec::new();
        let older = self.older_rewrites.iter().map(|rewrite| (OLDER_GROUP, rewrite));
        for (group, rewrite) in older.chain(self.rewrites.iter().map(|rewrite| (GROUP, rewrite))) {
            if self.is_own(&rewrite.pool) {
                overruled.extend(in_order.insert(&rewrite.key.name, (group, rewrite)));
            }
        }
        let mut in_order: Vec<_> = in_order.into_values().collect();
        in_order.sort_by_key(|(_, rewrite)| rewrite.created);
        verdicts.extend(status::of_rewrites(&in_order, &overruled, pool_exists));
        verdicts.extend(self.released());
        verdicts
    }

    /// Of objects that referred to this pool once.
    fn released(&self) -> impl Iterator<Item = Verdict> {
        let objectives = [(GROUP, &self.objectives), (OLDER_GROUP, &self.older_objectives)].into_iter();
        let objectives = objectives.flat_map(move |(group, objectives)| {
            let others = objectives.iter().filter(|objective| !self.is_own(&objective.pool));
            others.filter_map(move |Objective { key, observed, .. }| {
                status::released(SubjectKind::Objective, group, key, observed, &self.id.name)
            })
        });
        let rewrites = [(GROUP, &self.rewrites), (OLDER_GROUP, &self.older_rewrites)].into_iter();
        let rewrites = rewrites.flat_map(move |(group, rewrites)| {
            let others = rewrites.iter().filter(|rewrite| !self.is_own(&rewrite.pool));
            others.filter_map(move |Rewrite { key, observed, .. }| {
                status::released(SubjectKind::Rewrite, group, key, observed, &self.id.name)
            })
        });
        objectives.chain(rewrites)
    }

    /// Whether it is this pool that an object refers to.
    fn is_own(&self, pool: &PoolRef) -> bool {
        pool.name == self.id.name && pool.group == self.id.group
    }
}

/// Greater for a later pod; two of the same second are told apart somehow, always in the same way.
fn age(pod: &Pod) -> (i64, &str) {
    (pod.created, &pod.key.uid)
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
