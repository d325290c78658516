//! Shares of the pool by weight, counted in tokens: start-time fair queueing.
//!
//! A flow's next grant starts where its last one finished, or at the virtual time if that is later; it
//! finishes its cost divided by its weight after that. The smallest start goes next, and the virtual time is
//! the start in service. While two flows are backlogged, what they were charged per weight therefore differs
//! by no more than one largest request of each.
//!
//! What a request really cost is known only at its end: the difference moves the flow's finish, so that a
//! tenant with wrong estimates gains nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slotmap::SecondaryMap;
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::Time;
use sluice_flow::FlowId;
use sluice_flow::policy::{Fairness, FairnessPolicy, Head, Usage};

/// Serves tenants in proportion to their weights.
#[derive(Clone, Debug)]
pub struct Weighted {
    weights: Weights,
    max_in_flight_per_flow: Option<u64>,
}

impl Weighted {
    pub const fn new(weights: Weights, max_in_flight_per_flow: Option<u64>) -> Self {
        Self { weights, max_in_flight_per_flow }
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightedParams {
    /// The weight of every tenant that is not listed.
    default_weight: f64,
    weights: Vec<ListedWeight>,
    /// Leases that one tenant may hold at once in its band.
    max_in_flight_per_flow: Option<u64>,
}

impl Default for WeightedParams {
    fn default() -> Self {
        Self { default_weight: 1.0, weights: Vec::new(), max_in_flight_per_flow: None }
    }
}

/// A tenant's weight: `{tenant: name, weight: 2}`, or for all whose names begin alike,
/// `{prefix: team-, weight: 2}`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ListedWeight {
    tenant: Option<String>,
    prefix: Option<String>,
    weight: f64,
}

impl Plugin for Weighted {
    const TYPE: &'static str = "weighted-fairness-policy";
    const STABILITY: Stability = Stability::Beta;
    type Params = WeightedParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let WeightedParams { default_weight, weights, max_in_flight_per_flow } = params;
        let mut checked = |parameter: &str, weight| {
            Weight::new(weight).unwrap_or_else(|| {
                cx.refuse(parameter, format!("a weight is from 0.001 to 1000000, {weight} is not"));
                Weight::default()
            })
        };
        let default = checked("defaultWeight", default_weight);
        let listed = weights.iter().enumerate();
        let listed: Vec<_> =
            listed.map(|(index, listed)| checked(&format!("weights[{index}].weight"), listed.weight)).collect();
        let (mut exact, mut prefixes) = (BTreeMap::new(), BTreeMap::new());
        for (index, (ListedWeight { tenant, prefix, .. }, weight)) in weights.into_iter().zip(listed).enumerate() {
            let (names, key, name) = match (tenant, prefix) {
                (Some(tenant), None) => (&mut exact, "tenant", tenant),
                (None, Some(prefix)) => (&mut prefixes, "prefix", prefix),
                _ => {
                    cx.refuse(&format!("weights[{index}]"), "an entry has either a tenant or a prefix");
                    continue;
                }
            };
            if names.contains_key(&name) {
                cx.refuse(&format!("weights[{index}].{key}"), format!("{name:?} is listed twice"));
            }
            names.insert(name, weight);
        }
        if max_in_flight_per_flow == Some(0) {
            cx.refuse("maxInFlightPerFlow", "0 would let nobody in; leave it out for no limit");
        }
        let weights = Weights { default, exact, prefixes };
        Ok(Roles::fairness(Self::new(weights, max_in_flight_per_flow)))
    }
}

impl FairnessPolicy for Weighted {
    fn new_band(&self) -> Box<dyn Fairness> {
        Box::new(Tags::new(self.weights.clone()))
    }

    fn max_in_flight_per_flow(&self) -> Option<u64> {
        self.max_in_flight_per_flow
    }

    fn heeds_real_cost(&self) -> bool {
        true
    }
}

/// The weight of each tenant: by its exact name, else by the longest prefix that fits, else the default.
#[derive(Clone, Debug)]
pub struct Weights {
    default: Weight,
    exact: BTreeMap<String, Weight>,
    prefixes: BTreeMap<String, Weight>,
}

impl Weights {
    /// Weights have to be finite and at least a thousandth; the name of the first that is not comes back.
    /// The default's name is empty.
    pub fn new(
        default: f64,
        exact: impl IntoIterator<Item = (String, f64)>,
        prefixes: impl IntoIterator<Item = (String, f64)>,
    ) -> Result<Self, String> {
        let parse =
            |(name, weight): (String, f64)| Weight::new(weight).map(|weight| (name.clone(), weight)).ok_or(name);
        Ok(Self {
            default: Weight::new(default).ok_or_else(String::new)?,
            exact: exact.into_iter().map(parse).collect::<Result<_, _>>()?,
            prefixes: prefixes.into_iter().map(parse).collect::<Result<_, _>>()?,
        })
    }

    fn of(&self, tenant: &str) -> Weight {
        let longest = || {
            let fits = |(prefix, _): &(&String, &Weight)| tenant.starts_with(prefix.as_str());
            self.prefixes.iter().filter(fits).max_by_key(|(prefix, _)| prefix.len()).map(|(_, weight)| weight)
        };
        *self.exact.get(tenant).or_else(longest).unwrap_or(&self.default)
    }
}

impl Default for Weights {
    /// The same for everybody.
    fn default() -> Self {
        Self { default: Weight::default(), exact: BTreeMap::new(), prefixes: BTreeMap::new() }
    }
}

/// In thousandths.
#[derive(Clone, Copy, Debug)]
struct Weight(u32);

impl Default for Weight {
    fn default() -> Self {
        Self(Self::ONE)
    }
}

impl Weight {
    const ONE: u32 = 1000;
    const MAX: f64 = 1_000_000.0;

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
    fn new(weight: f64) -> Option<Self> {
        (0.001..=Self::MAX).contains(&weight).then(|| Self((weight * f64::from(Self::ONE)).round() as u32))
    }

    /// The virtual time that `cost` takes.
    fn stretch(self, cost: u64) -> Tag {
        (u128::from(cost) << SCALE) * u128::from(Self::ONE) / u128::from(self.0)
    }
}

/// A point in virtual time: tokens per weight, in fractions of `2^-SCALE`.
type Tag = u128;

const SCALE: u32 = 16;

/// Tags of departed tenants that are kept at most.
const MAX_DEPARTED: usize = 10_000;

#[derive(Debug)]
struct Tags {
    weights: Weights,
    virtual_time: Tag,
    flows: SecondaryMap<FlowId, FlowTags>,
    /// Flows with a head, by the start of their next grant.
    active: BTreeSet<(Tag, u64, FlowId)>,
    next_number: u64,
    departed: Departed,
}

#[derive(Debug)]
struct FlowTags {
    tenant: Arc<str>,
    weight: Weight,
    /// Breaks ties in the order in which flows came to be.
    number: u64,
    finish: Tag,
    /// The key in `active`.
    start: Option<Tag>,
}

impl FlowTags {
    /// The virtual time that a request of `cost` takes. Every one takes some: a tenant whose requests have no body would
    /// else be served before all others, for nothing.
    fn charge(&self, cost: u64) -> Tag {
        self.weight.stretch(cost.max(1)).max(1)
    }
}

impl Tags {
    fn new(weights: Weights) -> Self {
        Self {
            weights,
            virtual_time: 0,
            flows: SecondaryMap::new(),
            active: BTreeSet::new(),
            next_number: 0,
            departed: Departed::default(),
        }
    }

    /// Moves a flow's finish and, if it waits, its next start with it.
    fn move_finish(&mut self, id: FlowId, change: impl FnOnce(&FlowTags) -> Tag) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        flow.finish = change(flow);
        if let Some(old) = flow.start {
            let start = flow.finish.max(self.virtual_time);
            flow.start = Some(start);
            self.active.remove(&(old, flow.number, id));
            self.active.insert((start, flow.number, id));
        }
    }
}

impl Fairness for Tags {
    fn add(&mut self, flow: FlowId, tenant: &Arc<str>) {
        self.next_number += 1;
        let finish = self.departed.take(tenant).unwrap_or_default();
        let (weight, number) = (self.weights.of(tenant), self.next_number);
        self.flows.insert(flow, FlowTags { tenant: Arc::clone(tenant), weight, number, finish, start: None });
    }

    fn remove(&mut self, flow: FlowId) {
        self.set_head(flow, None);
        if let Some(gone) = self.flows.remove(flow)
            && gone.finish > self.virtual_time
        {
            self.departed.keep(gone.tenant, gone.finish);
        }
    }

    fn set_head(&mut self, id: FlowId, head: Option<Head>) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        match (flow.start, head) {
            (None, Some(_)) => {
                let start = flow.finish.max(self.virtual_time);
                flow.start = Some(start);
                self.active.insert((start, flow.number, id));
            }
            (Some(start), None) => {
                flow.start = None;
                self.active.remove(&(start, flow.number, id));
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    fn pick(&mut self, _: Time) -> Option<FlowId> {
        self.active.first().map(|(_, _, flow)| *flow)
    }

    fn granted(&mut self, _: Time, id: FlowId, cost: u64, turn: bool) {
        let now = self.virtual_time;
        let start = self.flows.get(id).map_or(now, |flow| flow.start.unwrap_or_else(|| flow.finish.max(now)));
        if turn {
            self.virtual_time = now.max(start);
            self.departed.forget_until(self.virtual_time);
        }
        self.move_finish(id, |flow| start + flow.charge(cost));
    }

    fn refund(&mut self, id: FlowId, cost: u64) {
        self.move_finish(id, |flow| flow.finish.saturating_sub(flow.charge(cost)));
    }

    fn settle(&mut self, _: Time, id: FlowId, cost: u64, usage: Usage) {
        self.move_finish(id, |flow| (flow.finish + flow.charge(usage.total())).saturating_sub(flow.charge(cost)));
    }
}

/// The finish tags of tenants that went idle in debt, until the virtual time has passed them.
#[derive(Debug, Default)]
struct Departed {
    finish: BTreeMap<Arc<str>, Tag>,
    order: BTreeSet<(Tag, Arc<str>)>,
}

impl Departed {
    fn keep(&mut self, tenant: Arc<str>, finish: Tag) {
        self.order.insert((finish, Arc::clone(&tenant)));
        self.finish.insert(tenant, finish);
        // Client-chosen names must not fill the memory: the smallest debts are forgiven first.
        if self.finish.len() > MAX_DEPARTED
            && let Some((_, tenant)) = self.order.pop_first()
        {
            self.finish.remove(&tenant);
        }
    }

    fn take(&mut self, tenant: &Arc<str>) -> Option<Tag> {
        let finish = self.finish.remove(tenant)?;
        self.order.remove(&(finish, Arc::clone(tenant)));
        Some(finish)
    }

    fn forget_until(&mut self, virtual_time: Tag) {
        while let Some((finish, _)) = self.order.first()
            && *finish <= virtual_time
        {
            if let Some((_, tenant)) = self.order.pop_first() {
                self.finish.remove(&tenant);
            }
        }
    }
}

#[cfg(test)]
#[path = "weighted_tests.rs"]
mod tests;
