//! The eviction plan: after every pass, which sheddable leases have to end so that waiting work of higher
//! bands gets in.
//!
//! For each band, from the first gated one down: who waits is sorted into groups by the endpoints they may use, the
//! fewest first and the whole pool last. Each group takes victims on its endpoints, in their order, until its demand
//! would fit under the ceiling and find places there. If all of them together would not open the gate, the band takes
//! nobody.

use std::collections::BTreeSet;

use sluice_core::Priority;
use smallvec::SmallVec;

use super::Engine;
use crate::band::Band;
use crate::config::EvictionConfig;
use crate::demand::Demand;
use crate::effect::{Effect, RevokeCause};
use crate::eviction::{Shortage, VictimKey, Weight, difference};
use crate::invariant::check;
use crate::item::Revoked;
use crate::load::{EndpointKey, Partition};
use crate::pool::Outlook;
use crate::ticket::Ticket;

impl Engine {
    pub(super) fn plan_evictions(&mut self) {
        if let Some(config) = self.config.eviction {
            self.plan_as(config);
        }
    }

    fn plan_as(&mut self, config: EvictionConfig) {
        let target = std::mem::take(&mut self.reclaim_target);
        if self.victims.is_empty() || self.pool.is_empty() || self.pool.saturation().is_stale() {
            return;
        }
        let Some(first_gated) = (0..self.bands.len()).find(|&index| !self.gate_is_open(index)) else { return };
        let limit = config.max_in_flight_revocations.unwrap_or(u64::MAX);
        let quota = usize::try_from(limit.saturating_sub(self.revocations.outstanding)).unwrap_or(usize::MAX);
        if quota == 0 {
            // The last plan is still being carried out.
            self.reclaim_target = target;
            return;
        }
        let mut in_need = Vec::new();
        for index in first_gated..self.bands.len() {
            let band = &self.bands[index];
            // Whoever waits in a band that sheds does so from before a reload: nobody ends for them.
            if band.waiting.requests > 0 && !band.config.shed {
                in_need.push((index, self.slots(index)));
            }
        }
        let load = self.load_to_come();
        let mut plan = Plan::new(self, config, load, quota);
        for (index, slots) in in_need {
            // No end opens a gate whose ceiling is zero.
            if self.pool.effective().iter().all(|partition| slots[partition as usize] > 0) {
                plan.serve(&self.bands[index], &slots);
            }
        }
        let Plan { revocations, target, .. } = plan;
        self.reclaim_target = target;
        for (victim, demand) in revocations {
            self.revoke_for(config, victim, demand);
        }
    }

    /// L: what the gate counts, without revoked leases, and without those that will be given back in a moment because
    /// all endpoints they may use are full: room is not to be made for both them and whoever gets in once they park.
    fn load_to_come(&mut self) -> Weight {
        let stuck: Vec<Ticket> = self.hinted_granted.iter().copied().filter(|ticket| self.is_stuck(*ticket)).collect();
        for &ticket in &stuck {
            let item = &self.items[ticket];
            self.pool.discharge(item.stages, item.tokens);
        }
        let load = self.pool.load_staying();
        for &ticket in &stuck {
            let item = &self.items[ticket];
            self.pool.charge(item.stages, item.tokens);
        }
        load
    }

    /// No endpoint that the ticket may use has room.
    fn is_stuck(&self, ticket: Ticket) -> bool {
        let eligible = self.items.get(ticket).and_then(|item| item.eligible.as_deref());
        eligible.is_some_and(|eligible| !self.pool.targets(eligible).iter().any(|&target| self.pool.has_room(target)))
    }

    fn slots(&mut self, index: usize) -> Weight {
        let readings = *self.pool.readings();
        let mut slots = Weight::default();
        for partition in self.pool.effective().iter() {
            let capacity = readings[partition as usize].capacity;
            slots[partition as usize] = self.bands[index].gate.slots(partition, capacity);
        }
        slots
    }

    fn revoke_for(&mut self, config: EvictionConfig, victim: VictimKey, demand: Priority) {
        check!(self.violations, F10, victim.priority < demand && victim.priority.is_sheddable());
        let dry = self.config.dry_run.eviction;
        let totals = self.totals.entry(demand).or_default();
        if dry {
            totals.would_revoke += 1;
        } else {
            totals.revocations += 1;
        }
        let overdue = (!dry).then(|| self.now.saturating_add(config.confirmation_timeout));
        let ticket = victim.ticket;
        self.mark_revoked(ticket, Revoked { pending: true, dry, overdue });
        if !dry {
            let waiter = self.items[ticket].waiter;
            self.effects.push_back(Effect::Revoke { ticket, waiter, cause: RevokeCause::Eviction });
        }
    }
}

/// Waiting requests of one band that may use the same endpoints.
#[derive(Debug)]
struct Group<'a> {
    /// None is the whole pool.
    targets: Option<&'a [EndpointKey]>,
    demand: Demand,
}

/// What the plan knows while it goes down the bands.
#[derive(Debug)]
struct Plan<'a> {
    engine: &'a Engine,
    config: EvictionConfig,
    /// L, by partition.
    load: Weight,
    /// Revocations that may still be issued.
    quota: usize,
    /// The pool once all that was chosen so far has ended.
    outlook: Outlook<'a>,
    taken: BTreeSet<VictimKey>,
    /// Who goes, and for which band.
    revocations: Vec<(VictimKey, Priority)>,
    /// The needs of all bands, in the unit of the saturation.
    target: u64,
}

impl<'a> Plan<'a> {
    fn new(engine: &'a Engine, config: EvictionConfig, load: Weight, quota: usize) -> Self {
        Self {
            engine,
            config,
            load,
            quota,
            outlook: engine.pool.outlook(),
            taken: BTreeSet::new(),
            revocations: Vec::new(),
            target: 0,
        }
    }

    /// Chooses who goes for what waits in `band`, whose ceiling lies at `slots`.
    fn serve(&mut self, band: &Band, slots: &Weight) {
        if self.quota == 0 {
            return;
        }
        let bound = victim_bound(band.priority);
        let groups = groups(band);
        let mut demand = Demand::default();
        groups.iter().for_each(|group| demand.add(&group.demand));
        // At most this: enough to rule out a plan without looking at every victim.
        let at_most = self.engine.victims.total_below(bound);
        if is_hopeless(&self.shortages(&self.load, &demand, slots), &at_most) {
            return;
        }
        let before = self.outlook.clone();
        let (mut load, mut chosen, mut served) = (self.load, Vec::new(), Demand::default());
        for group in &groups {
            let freed = self.outlook.freed;
            let (victims, part) = self.choose_for(group, bound, &load, slots);
            let shortages = self.shortages(&load, &part, slots);
            load_after(&mut load, &shortages, &difference(&self.outlook.freed, &freed));
            chosen.extend(victims);
            served.add(&part);
        }
        let shortages = self.shortages(&self.load, &served, slots);
        if is_hopeless(&shortages, &difference(&self.outlook.freed, &before.freed)) {
            chosen.iter().for_each(|victim| _ = self.taken.remove(victim));
            self.outlook = before;
            return;
        }
        self.target += shortages.iter().map(Shortage::need).max().unwrap_or_default();
        for victim in chosen.drain(chosen.len().min(self.quota)..) {
            self.spare(&victim);
        }
        load_after(&mut self.load, &shortages, &difference(&self.outlook.freed, &before.freed));
        self.quota -= chosen.len();
        self.revocations.extend(chosen.into_iter().map(|victim| (victim, band.priority)));
    }

    /// The shortest prefix of the victims of `group` that makes it fit under the ceiling, or all that it could use if
    /// that takes more; and the part of the group that will find places.
    ///
    /// Victims in stages that are not short are passed over, and those that would end in vain are spared: an
    /// endpoint that stays full without them frees nothing.
    fn choose_for(
        &mut self,
        group: &Group<'_>,
        bound: Priority,
        load: &Weight,
        slots: &Weight,
    ) -> (Vec<VictimKey>, Demand) {
        let engine = self.engine;
        let before = self.outlook.freed;
        let shortages: Vec<Shortage> =
            self.shortages(load, &group.demand, slots).into_iter().filter(|shortage| shortage.demand > 0).collect();
        let requests = group.demand.requests();
        let places_before = self.places(group);
        let mut places = places_before;
        let mut chosen = Vec::new();
        if places < requests || shortages.iter().any(|shortage| shortage.need() > 0) {
            for victim in engine.candidates(self.config.victim_order, group.targets, bound) {
                let freed = difference(&self.outlook.freed, &before);
                let is_short = |shortage: &&Shortage| !shortage.is_covered(freed[shortage.partition as usize]);
                let mut short = shortages.iter().filter(is_short).peekable();
                let lacks_place = places < requests;
                if short.peek().is_none() && !lacks_place {
                    break;
                }
                let weight = engine.weight(victim.ticket);
                let helps = lacks_place || short.any(|shortage| weight[shortage.partition as usize] > 0);
                if helps && self.taken.insert(victim) {
                    self.outlook.end(engine.bookings(&victim));
                    places = self.places(group);
                    chosen.push(victim);
                }
            }
        }
        for index in (0..chosen.len()).rev() {
            let with = self.outlook.freed;
            self.spare(&chosen[index]);
            let without = self.outlook.freed;
            let as_much = |s: &Shortage| without[s.partition as usize] == with[s.partition as usize];
            let in_vain = shortages.iter().filter(|shortage| shortage.need() > 0).all(as_much);
            if in_vain && (places_before >= requests || self.places(group) == places) {
                chosen.remove(index);
            } else {
                self.outlook.end(engine.bookings(&chosen[index]));
                self.taken.insert(chosen[index]);
            }
        }
        if places == 0 {
            // Whoever ends on these endpoints only brings them closer to their limits.
            chosen.drain(..).for_each(|victim| self.spare(&victim));
        }
        let served = group.demand.of_at_most(places);
        self.outlook.claim(group.targets.unwrap_or_default(), served.requests());
        (chosen, served)
    }

    /// Takes back that `victim` goes.
    fn spare(&mut self, victim: &VictimKey) {
        self.outlook.keep(self.engine.bookings(victim));
        self.taken.remove(victim);
    }

    /// Requests that can start on the endpoints of `group`. Where the pool as a whole has room, some endpoint has.
    fn places(&self, group: &Group<'_>) -> u64 {
        group.targets.map_or(u64::MAX, |targets| self.outlook.places(targets))
    }

    fn shortages(&self, load: &Weight, demand: &Demand, slots: &Weight) -> SmallVec<[Shortage; 2]> {
        let pool = &self.engine.pool;
        let shortage = |partition: Partition| {
            let at = partition as usize;
            let demand = pool.saturation().demand_units(partition, demand.of(partition));
            Shortage { partition, load: load[at], demand, slots: slots[at] }
        };
        pool.effective().iter().map(shortage).collect()
    }
}

/// The fewest endpoints first: whoever has more of a choice can do without these.
fn groups(band: &Band) -> Vec<Group<'_>> {
    let hinted = band.hinted_demand().map(|(targets, demand)| Group { targets: Some(targets), demand });
    let mut groups: Vec<Group<'_>> = hinted.chain([Group { targets: None, demand: band.demand }]).collect();
    groups.retain(|group| group.demand.requests() > 0);
    groups.sort_by_key(|group| group.targets.map_or(usize::MAX, <[EndpointKey]>::len));
    groups
}

/// L, once `freed` is off and the demand has filled what it may.
fn load_after(load: &mut Weight, shortages: &[Shortage], freed: &Weight) {
    for shortage in shortages {
        let at = shortage.partition as usize;
        load[at] = shortage.load_after(freed[at]);
    }
}

fn is_hopeless(shortages: &[Shortage], freed: &Weight) -> bool {
    shortages.iter().any(|shortage| {
        // An end in a stage that the demand does not use would be no help to it.
        let useful = if shortage.demand > 0 { freed[shortage.partition as usize] } else { 0 };
        shortage.is_hopeless(useful)
    })
}

/// Victims have a priority below this.
fn victim_bound(demand: Priority) -> Priority {
    demand.min(Priority(0))
}
