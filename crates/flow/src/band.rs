use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use slotmap::SlotMap;
use sluice_core::{Priority, Time};

use crate::config::{BandConfig, Budgets, OTHER_TENANT};
use crate::demand::Demand;
use crate::gate::Gate;
use crate::item::Item;
use crate::line::Line;
use crate::load::{EndpointKey, Load, Partitions};
use crate::policy::{Fairness, Head};
use crate::queue::Queue;
use crate::ticket::{FlowId, Ticket};

/// A map whose order is never looked at.
pub(crate) type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// Requests and bytes that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    pub requests: u64,
    pub bytes: u64,
}

impl Waiting {
    pub(crate) const fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(crate) const fn sub(&mut self, bytes: u64) {
        debug_assert!(self.requests > 0 && self.bytes >= bytes, "more was taken off than was put on");
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self { requests: self.requests.saturating_add(other.requests), bytes: self.bytes.saturating_add(other.bytes) }
    }

    pub(crate) const fn minus(self, part: Self) -> Self {
        Self { requests: self.requests.saturating_sub(part.requests), bytes: self.bytes.saturating_sub(part.bytes) }
    }

    /// Both may be reached; none is no limit.
    pub(crate) fn is_within(self, requests: Option<u64>, bytes: Option<u64>) -> bool {
        requests.is_none_or(|limit| self.requests <= limit) && bytes.is_none_or(|limit| self.bytes <= limit)
    }
}

/// Waiting tickets of one band that may use only these endpoints.
#[derive(Debug, Default)]
pub(crate) struct Hinted {
    tickets: u64,
    /// Counted only where something can be evicted for them, and not for endpoints that are the whole pool: those
    /// tickets count among [`Band::demand`].
    by_flow: BTreeMap<FlowId, Demand>,
}

/// One tenant's queue in one band.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) tenant: Arc<str>,
    /// Queued tickets; parked ones are not among them.
    pub(crate) queue: Queue,
    pub(crate) waiting: Waiting,
    /// Waiting tickets that may use the whole pool; counted only where something can be evicted for them.
    demand: Demand,
    /// Leases, granted and started.
    pub(crate) in_flight: u64,
    /// Tickets in any state.
    pub(crate) tickets: u64,
    /// It holds as many leases as it may: none of its tickets is dispatchable.
    pub(crate) capped: bool,
    /// What the fairness policy was last told.
    head: Option<Head>,
}

/// A band's budgets in nanoseconds, ready for adding; [`u64::MAX`] for no bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BudgetNanos {
    pub(crate) saturation: u64,
    pub(crate) no_endpoint: u64,
    /// Both together, if both are bounded.
    pub(crate) both: u64,
}

impl BudgetNanos {
    pub(crate) fn new(budgets: Budgets) -> Self {
        let nanos = |budget: Duration| match u64::try_from(budget.as_nanos()) {
            Ok(0) | Err(_) => u64::MAX,
            Ok(nanos) => nanos,
        };
        let (saturation, no_endpoint) = (nanos(budgets.saturation), nanos(budgets.no_endpoint));
        let bounded = saturation < u64::MAX && no_endpoint < u64::MAX;
        let both = if bounded { saturation.saturating_add(no_endpoint) } else { u64::MAX };
        Self { saturation, no_endpoint, both }
    }
}

/// All flows of one priority.
#[derive(Debug)]
pub(crate) struct Band {
    pub(crate) priority: Priority,
    pub(crate) config: BandConfig,
    pub(crate) budgets: BudgetNanos,
    pub(crate) gate: Gate,
    /// What the usage limit says, even where a dry run does not apply it.
    pub(crate) ceiling: f64,
    pub(crate) flows: SlotMap<FlowId, Flow>,
    by_tenant: Map<Arc<str>, FlowId>,
    pub(crate) fairness: Box<dyn Fairness>,
    max_in_flight_per_flow: u64,
    /// Flows with a dispatchable head.
    active: usize,
    pub(crate) waiting: Waiting,
    /// Waiting tickets that have no time limit but the band's budgets, and so run out of time in the order of arrival.
    pub(crate) line: Line<(Time, u64)>,
    /// What waits in all flows for the whole pool, as far as each flow may hold more leases.
    pub(crate) demand: Demand,
    /// Waiting tickets that may use only some endpoints, by those endpoints.
    hinted: BTreeMap<Arc<[EndpointKey]>, Hinted>,
    /// Waiting tickets in the order of arrival; kept only where newcomers displace.
    pub(crate) arrivals: BTreeMap<u64, Ticket>,
    /// Tickets in any state.
    pub(crate) tickets: u64,
}

impl Band {
    pub(crate) fn new(priority: Priority, config: BandConfig, budgets: Budgets) -> Self {
        let fairness = config.fairness.new_band();
        let max_in_flight_per_flow = config.fairness.max_in_flight_per_flow().unwrap_or(u64::MAX);
        Self {
            priority,
            budgets: BudgetNanos::new(config.budgets(budgets)),
            config,
            gate: Gate::default(),
            ceiling: 0.0,
            flows: SlotMap::with_key(),
            by_tenant: Map::default(),
            fairness,
            max_in_flight_per_flow,
            active: 0,
            waiting: Waiting::default(),
            line: Line::default(),
            demand: Demand::default(),
            hinted: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            tickets: 0,
        }
    }

    /// The flow of `tenant`, made if need be; beyond `max_flows` all further tenants share one.
    pub(crate) fn flow_of(&mut self, tenant: &Arc<str>, max_flows: usize) -> FlowId {
        if let Some(&flow) = self.by_tenant.get(tenant) {
            return flow;
        }
        if self.flows.len() < max_flows {
            return self.add_flow(Arc::clone(tenant));
        }
        match self.by_tenant.get(OTHER_TENANT) {
            Some(&other) => other,
            None => self.add_flow(OTHER_TENANT.into()),
        }
    }

    fn add_flow(&mut self, tenant: Arc<str>) -> FlowId {
        let flow = self.flows.insert(Flow {
            tenant: Arc::clone(&tenant),
            queue: Queue::default(),
            waiting: Waiting::default(),
            demand: Demand::default(),
            in_flight: 0,
            tickets: 0,
            capped: self.max_in_flight_per_flow == 0,
            head: None,
        });
        self.fairness.add(flow, &tenant);
        self.by_tenant.insert(tenant, flow);
        flow
    }

    /// One ticket of `flow` has ended; a flow ends with its last one.
    pub(crate) fn forget_ticket(&mut self, flow: FlowId) {
        self.tickets -= 1;
        self.flows[flow].tickets -= 1;
        if self.flows[flow].tickets == 0
            && let Some(gone) = self.flows.remove(flow)
        {
            self.by_tenant.remove(&gone.tenant);
            self.fairness.remove(flow);
        }
    }

    /// Tells the fairness policy about the flow's head, if it is another one than before.
    pub(crate) fn sync_head(&mut self, items: &SlotMap<Ticket, Item>, flow: FlowId) {
        let entry = &mut self.flows[flow];
        let first = if entry.capped { None } else { entry.queue.peek() };
        if entry.head.map(|head| head.rank) == first.map(|(rank, _)| rank) {
            return;
        }
        let head = first.map(|(rank, ticket)| Head { rank, arrival: items[ticket].arrival });
        match (entry.head, head) {
            (None, Some(_)) => self.active += 1,
            (Some(_), None) => self.active -= 1,
            (None, None) | (Some(_), Some(_)) => {}
        }
        entry.head = head;
        self.fairness.set_head(flow, head);
    }

    /// Some queued ticket is dispatchable.
    pub(crate) const fn has_dispatchable(&self) -> bool {
        self.active > 0
    }

    /// The flow holds one lease more (or less), which may bring it to its limit (or back).
    pub(crate) fn count_lease(&mut self, items: &SlotMap<Ticket, Item>, flow: FlowId, delta: LeaseDelta) {
        let limited = self.max_in_flight_per_flow < u64::MAX;
        if limited {
            self.demand.sub(&self.servable(flow));
        }
        let entry = &mut self.flows[flow];
        match delta {
            LeaseDelta::Charged => entry.in_flight += 1,
            LeaseDelta::Ended => entry.in_flight -= 1,
        }
        let capped = entry.in_flight >= self.max_in_flight_per_flow;
        let changed = capped != entry.capped;
        entry.capped = capped;
        if limited {
            self.demand.add(&self.servable(flow));
        }
        if changed {
            self.sync_head(items, flow);
        }
    }

    /// Of the flow's demand on the whole pool, what it may hold leases for.
    fn servable(&self, flow: FlowId) -> Demand {
        self.flows[flow].demand.of_at_most(self.room(flow))
    }

    /// How many leases more the flow may hold.
    fn room(&self, flow: FlowId) -> u64 {
        self.max_in_flight_per_flow.saturating_sub(self.flows[flow].in_flight)
    }

    /// One ticket of `load` that may use the whole pool begins (or ceases) to wait.
    pub(crate) fn count_demand(&mut self, flow: FlowId, partitions: Partitions, load: Load, waits: bool) {
        self.demand.sub(&self.servable(flow));
        self.flows[flow].demand.count(partitions, load, waits);
        self.demand.add(&self.servable(flow));
    }

    /// The same for one that may use only `targets`.
    pub(crate) fn count_hinted_demand(
        &mut self,
        targets: &[EndpointKey],
        flow: FlowId,
        partitions: Partitions,
        load: Load,
        waits: bool,
    ) {
        let Some(hinted) = self.hinted.get_mut(targets) else { return };
        let demand = hinted.by_flow.entry(flow).or_default();
        demand.count(partitions, load, waits);
        if demand.requests() == 0 {
            hinted.by_flow.remove(&flow);
        }
    }

    /// A ticket that may use only `targets` begins to wait. Gives the one copy of the list that all such share.
    pub(crate) fn add_hinted(&mut self, targets: Arc<[EndpointKey]>) -> Arc<[EndpointKey]> {
        let targets = self.hinted.get_key_value(&targets).map_or(targets, |(known, _)| Arc::clone(known));
        self.hinted.entry(Arc::clone(&targets)).or_default().tickets += 1;
        targets
    }

    /// It ceases to wait.
    pub(crate) fn remove_hinted(&mut self, targets: &Arc<[EndpointKey]>) {
        if let Some(hinted) = self.hinted.get_mut(targets) {
            hinted.tickets -= 1;
            if hinted.tickets == 0 {
                self.hinted.remove(targets);
            }
        }
    }

    /// What waits for certain endpoints only, by those endpoints, as far as each flow may hold more leases.
    pub(crate) fn hinted_demand(&self) -> impl Iterator<Item = (&Arc<[EndpointKey]>, Demand)> {
        self.hinted.iter().map(|(targets, hinted)| {
            let mut sum = Demand::default();
            for (&flow, demand) in &hinted.by_flow {
                sum.add(&demand.of_at_most(self.room(flow)));
            }
            (targets, sum)
        })
    }

    /// Counts no demand: it has to be counted anew.
    pub(crate) fn clear_demand(&mut self) {
        self.demand = Demand::default();
        for flow in self.flows.values_mut() {
            flow.demand = Demand::default();
        }
        for hinted in self.hinted.values_mut() {
            hinted.by_flow.clear();
        }
    }

    /// Gives the band another fairness policy: its flows begin anew, in the order in which their heads came, with the
    /// leases they hold. Its demand has to be counted anew.
    pub(crate) fn replace_fairness(&mut self, items: &SlotMap<Ticket, Item>) {
        self.fairness = self.config.fairness.new_band();
        self.max_in_flight_per_flow = self.config.fairness.max_in_flight_per_flow().unwrap_or(u64::MAX);
        self.active = 0;
        let mut flows: Vec<FlowId> = self.flows.keys().collect();
        flows.sort_by_cached_key(|&flow| self.flows[flow].queue.peek().map(|(rank, _)| rank.sequence));
        for flow in flows {
            let entry = &mut self.flows[flow];
            entry.head = None;
            self.fairness.add(flow, &entry.tenant);
            entry.capped = entry.in_flight >= self.max_in_flight_per_flow;
            self.sync_head(items, flow);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseDelta {
    Charged,
    Ended,
}
