use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use sluice_core::{Endpoint, Headers, Priority, Request, Time, TokenEstimate};
use sluice_data::{EndpointTable, Snapshot, Subset};
use sluice_flow::{Eligibility, Outcome, Stage, TokensAtFirstChunk, TtlHeader};
use sluice_schedule::{Candidates, Decision, Rng, ScheduleError, Scheduler};
use smallvec::SmallVec;

use crate::admission::{self, Admission, Admit, NotParked, NotStarted, Permit, Target};
use crate::ask::{Allowed, ask, ask_of_headers, ttl};
use crate::gatekeeper::Gatekeeper;
use crate::{
    FlowDurations, Identities, Identity, InFlight, ModelRewrites, Rejection, Resolved, SharedModelRewrites,
    SharedScheduler, Vouched,
};

/// A request that wants an endpoint.
#[derive(Clone, Debug)]
pub struct Intent {
    pub request: Arc<Request>,
    /// The endpoints the gateway allows; none: the whole pool.
    pub subset: Option<Subset>,
    /// The bytes of its body that are kept, here or by the proxy, until it starts: they count against its queue. A body
    /// that is only announced takes no room.
    pub held_bytes: u64,
    /// The request has no body and asks for none of the model's time.
    pub header_only: bool,
    /// Until when it may wait: soon after, the stream that it came on ends by itself.
    pub deadline: Option<Time>,
}

/// A request that has got its endpoints.
#[derive(Debug)]
pub struct Routed {
    /// `ip:port` of each, best first, joined by commas: the form gateways read.
    pub destination: String,
    /// Counts the request on its endpoints until it is finished or dropped.
    pub in_flight: Option<InFlight>,
}

/// What a router is made of.
#[derive(Debug)]
pub struct RouterParts {
    pub table: Arc<EndpointTable>,
    pub scheduler: SharedScheduler,
    pub identities: Identities,
    pub rewrites: SharedModelRewrites,
    pub gatekeeper: Gatekeeper,
    pub estimate: TokenEstimate,
    /// Requests without a body are admitted and counted like any other.
    pub admit_header_only: bool,
    /// Makes the random choices of a run repeatable.
    pub seed: u64,
    /// A request stays within the endpoints that the gateway allows it.
    pub heed_subset: bool,
}

/// Places requests on the endpoints of one pool.
#[derive(Debug)]
pub struct Router {
    table: Arc<EndpointTable>,
    scheduler: SharedScheduler,
    identities: Identities,
    rewrites: SharedModelRewrites,
    gatekeeper: Gatekeeper,
    estimate: TokenEstimate,
    admit_header_only: bool,
    /// The seed of the next decision's generator.
    seed: AtomicU64,
    heed_subset: bool,
    durations: Option<FlowDurations>,
}

/// A request on its way through [`Router::route`].
struct Passage<'a> {
    request: &'a Arc<Request>,
    identity: &'a Identity,
    subset: Option<Subset>,
    tokens: u64,
    rng: Rng,
}

impl Router {
    pub fn new(parts: RouterParts) -> Self {
        let RouterParts {
            table,
            scheduler,
            identities,
            rewrites,
            gatekeeper,
            estimate,
            admit_header_only,
            seed,
            heed_subset,
        } = parts;
        Self {
            table,
            scheduler,
            identities,
            rewrites,
            gatekeeper,
            estimate,
            admit_header_only,
            seed: AtomicU64::new(seed),
            heed_subset,
            durations: None,
        }
    }

    /// Measures how long requests take into their queues.
    #[must_use]
    pub fn measured(self, durations: FlowDurations) -> Self {
        Self { durations: Some(durations), ..self }
    }

    /// Who a request is from, as far as its headers and the proxy say; an error if that rules it out.
    pub fn identify(&self, headers: &Headers, vouched: Option<&Vouched>) -> Result<Resolved, Rejection> {
        self.identities.resolve(headers, vouched)
    }

    /// Clients are not asked who they are, nor for which model: only what the proxy vouches for counts.
    pub const fn heeds_only_vouched(&self) -> bool {
        self.identities.heeds_only_vouched()
    }

    /// The rules by which the models of requests are replaced that come now.
    pub fn rewrites(&self) -> Arc<ModelRewrites> {
        self.rewrites.load()
    }

    /// Refuses, and counts, a request that would be refused whatever its body says, of which `held_bytes` will be kept.
    /// `held_bytes` and `header_only` as in [`Intent`]. None does not promise admission.
    pub fn refuse_by_headers(&self, identity: &Identity, held_bytes: u64, header_only: bool) -> Option<Rejection> {
        let Gatekeeper::FlowControl(admission) = &self.gatekeeper else { return None };
        if header_only && !self.admit_header_only {
            return None;
        }
        let ask = || admission.refuse_by_headers(&ask_of_headers(identity, held_bytes));
        let refusal = match &self.durations {
            Some(durations) => durations.refuse(identity, ask),
            None => ask(),
        };
        refusal.map(|refusal| not_admitted(admission, refusal, identity.priority, held_bytes, &mut self.rng()))
    }

    /// The most bytes that may be held of a request of `priority`; none where no queue bounds them.
    pub fn largest_request(&self, priority: Priority) -> Option<u64> {
        match &self.gatekeeper {
            Gatekeeper::FlowControl(admission) => admission.largest_request(priority),
            Gatekeeper::Open | Gatekeeper::Shedding(_) => None,
        }
    }

    /// A request has to ask for admission, and may have to wait for it. `header_only` as in [`Intent`].
    pub const fn queues(&self, header_only: bool) -> bool {
        matches!(self.gatekeeper, Gatekeeper::FlowControl(_)) && (!header_only || self.admit_header_only)
    }

    /// When a request of `priority` that lost its place should come back: a time between the estimate of admission and
    /// twice that, so that those cut off together do not come back together.
    pub fn retry_after(&self, priority: Priority) -> Duration {
        let base = self.drain_seconds(priority);
        Duration::from_millis(self.rng().random_range(1_000 * base..=2_000 * base))
    }

    /// The same in whole seconds, for a request of `priority` that is refused.
    pub fn retry_after_seconds(&self, priority: Priority) -> u64 {
        let base = self.drain_seconds(priority);
        self.rng().random_range(base..=2 * base)
    }

    /// How long the queues at and above `priority` take to drain, in 1..=15; 1 where there are none.
    fn drain_seconds(&self, priority: Priority) -> u64 {
        match &self.gatekeeper {
            Gatekeeper::FlowControl(admission) => u64::from(admission.retry_after(priority)),
            Gatekeeper::Open | Gatekeeper::Shedding(_) => 1,
        }
    }

    /// When the wait of a request of `priority` that asked for an endpoint at `arrival` ends at the latest, as things are;
    /// none if nothing ends it. `deadline` as in [`Intent`].
    pub fn wait_ends(
        &self,
        request: &Request,
        priority: Priority,
        deadline: Option<Time>,
        arrival: Time,
    ) -> Option<Time> {
        let Gatekeeper::FlowControl(admission) = &self.gatekeeper else { return deadline };
        let own = match ttl(&request.headers) {
            TtlHeader::Within(ttl) => Some(arrival.saturating_add(ttl)),
            TtlHeader::Absent | TtlHeader::Invalid => None,
        };
        [own, deadline, admission.wait_ends(priority, arrival)].into_iter().flatten().min()
    }

    /// A gateway that was given several endpoints says which one serves: the booking moves there. An address that no
    /// endpoint of the pool has changes nothing.
    pub fn served_by(&self, in_flight: &mut InFlight, address: SocketAddr) {
        let snapshot = self.table.snapshot();
        if let Some(endpoint) = snapshot.endpoints().iter().find(|endpoint| endpoint.address == address) {
            in_flight.move_to(endpoint);
        }
    }

    /// Waits until the request may start, chooses endpoints for it and books them. Dropping the future, at any point,
    /// leaves no trace.
    pub async fn route(&self, intent: Intent, identity: Identity) -> Result<Routed, Rejection> {
        let Intent { request, subset, held_bytes, header_only, deadline } = intent;
        let subset = subset.filter(|_| self.heed_subset);
        // No estimate weighs more than any endpoint may hold, so that sums of them cannot overflow.
        let tokens = self.estimate.tokens(request.body_bytes, request.max_output_tokens).min(Endpoint::MAX_LIMIT);
        let rng = self.rng();
        let mut passage = Passage { request: &request, identity: &identity, subset, tokens, rng };
        if header_only && !self.admit_header_only {
            let targets = self.place_uncounted(&mut passage)?;
            return Ok(Routed { destination: destination(&targets), in_flight: None });
        }
        match &self.gatekeeper {
            Gatekeeper::Open => self.start_unbounded(&mut passage),
            Gatekeeper::Shedding(gate) => {
                let snapshot = self.table.snapshot();
                if identity.priority.is_sheddable() && gate.is_saturated(passage.allowed(&snapshot)) {
                    return Err(Rejection::Shed { retry_after: self.retry_after_seconds(identity.priority) });
                }
                self.start_unbounded(&mut passage)
            }
            Gatekeeper::FlowControl(admission) => {
                let ask = ask(&request, &identity, held_bytes, passage.subset.as_ref(), tokens, deadline);
                let mut verdict = match &self.durations {
                    Some(durations) => durations.admit(&identity, || admission.admit(ask)).await,
                    None => admission.admit(ask).await,
                };
                loop {
                    let permit = verdict.map_err(|dropped| {
                        not_admitted(admission, dropped, identity.priority, held_bytes, &mut passage.rng)
                    })?;
                    match self.start(&mut passage, permit)? {
                        Attempt::Started(routed) => return Ok(routed),
                        Attempt::Parked(again) => verdict = again.await,
                    }
                }
            }
        }
    }

    /// A request that costs nothing is placed even where filters let no more work in: on any endpoint it may use.
    fn place_uncounted(&self, passage: &mut Passage<'_>) -> Result<Vec<Arc<Endpoint>>, Rejection> {
        match self.decide(passage) {
            Err(Rejection::NoneAvailable { .. }) => {
                let snapshot = self.table.snapshot();
                let endpoint = passage.allowed(&snapshot).choose(&mut passage.rng.clone());
                let target = endpoint.map(|endpoint| vec![Arc::clone(endpoint)]);
                target.ok_or_else(|| self.no_candidates(passage))
            }
            decided => decided.map(|decision| decision.targets),
        }
    }

    fn start_unbounded(&self, passage: &mut Passage<'_>) -> Result<Routed, Rejection> {
        let decision = self.decide(passage)?;
        // The first endpoint serves; the others are for a gateway that tries again.
        let booking = sluice_data::Permit::unlimited().start(&decision.targets[..1], passage.tokens);
        let booking = booking.map_err(|_full| self.none_available(passage))?;
        let in_flight = InFlight::counted(booking, self.at_first_chunk());
        Ok(Routed { destination: destination(&decision.targets), in_flight: Some(in_flight) })
    }

    /// Uses a permit: on an endpoint that has room, or, where all that the request may use are full, to wait for room on
    /// one of them. Filters and limits stay as they are meanwhile.
    fn start(&self, passage: &mut Passage<'_>, mut permit: Permit) -> Result<Attempt, Rejection> {
        let scheduler = self.scheduler.in_force();
        // Endpoints that turned out to be full, or gone, since the snapshot was taken.
        let mut unusable: SmallVec<[u64; 4]> = SmallVec::new();
        loop {
            let decision = match self.decide_with_room(&scheduler, passage, &unusable)? {
                Room::On(decision) => decision,
                Room::Nowhere(allowed) => match permit.park(Arc::new(allowed) as Arc<dyn Eligibility>) {
                    Ok(again) => return Ok(Attempt::Parked(again)),
                    Err(NotParked { permit: kept }) => {
                        permit = kept;
                        unusable.clear();
                        continue;
                    }
                },
            };
            let endpoint = &decision.targets[0];
            let target = Target { endpoint: Arc::clone(endpoint), stage: Stage::Decode, tokens: passage.tokens };
            let sent = Arc::new(AtomicU64::new(0));
            match permit.start(&[target], Some(Arc::clone(&sent))) {
                Ok(lease) => {
                    let destination = destination(&decision.targets);
                    return Ok(Attempt::Started(Routed {
                        destination,
                        in_flight: Some(InFlight::leased(lease, self.at_first_chunk(), sent)),
                    }));
                }
                Err(NotStarted { permit: kept, endpoint }) => {
                    permit = kept;
                    unusable.push(endpoint.serial());
                }
            }
        }
    }

    /// A decision among the endpoints that have room. If there is none because those that would suit the request are full,
    /// it has to wait for them; if none would suit it, however empty, it is refused.
    ///
    /// Filters see the counters a moment later than this does: with every turn that finds room and gets none of it,
    /// somebody else got a place. After very many, a filter must have a mind of its own.
    fn decide_with_room(
        &self,
        scheduler: &Scheduler,
        passage: &mut Passage<'_>,
        unusable: &[u64],
    ) -> Result<Room, Rejection> {
        const TURNS: usize = 64;
        let has_room = |endpoint: &Arc<Endpoint>| endpoint.load().has_room() && !unusable.contains(&endpoint.serial());
        for _ in 0..TURNS {
            let snapshot = self.table.snapshot();
            let candidates = Candidates::new(passage.allowed(&snapshot).filter(|endpoint| has_room(endpoint)));
            if !candidates.is_empty() {
                match scheduler.schedule(passage.request, &candidates, &mut passage.rng) {
                    Ok(decision) => return Ok(Room::On(decision)),
                    Err(ScheduleError::Filtered { .. }) => {}
                    Err(error @ ScheduleError::Handler { .. }) => return Err(Rejection::Scheduling(error)),
                }
            }
            let all = Candidates::new(passage.allowed(&snapshot));
            if all.is_empty() {
                return Ok(Room::Nowhere(Allowed { subset: passage.subset.clone(), ruled_out: Vec::new() }));
            }
            let suitable = match scheduler.suitable(passage.request, &all) {
                Ok(suitable) => suitable,
                Err(error) => return Err(self.not_scheduled(passage, error)),
            };
            if !suitable.iter().any(has_room) {
                return Ok(Room::Nowhere(passage.allowed_of(&all, &suitable)));
            }
        }
        tracing::warn!(request = %passage.request.id, "filters leave out every endpoint that has room");
        Err(self.none_available(passage))
    }

    /// A decision among all endpoints that the request may use.
    fn decide(&self, passage: &mut Passage<'_>) -> Result<Decision, Rejection> {
        let snapshot = self.table.snapshot();
        let candidates = Candidates::new(passage.allowed(&snapshot));
        if candidates.is_empty() {
            return Err(self.no_candidates(passage));
        }
        self.schedule(passage, &candidates)
    }

    fn schedule(&self, passage: &mut Passage<'_>, candidates: &Candidates<'_>) -> Result<Decision, Rejection> {
        let decision = self.scheduler.in_force().schedule(passage.request, candidates, &mut passage.rng);
        decision.map_err(|error| self.not_scheduled(passage, error))
    }

    fn no_candidates(&self, passage: &Passage<'_>) -> Rejection {
        Rejection::NoCandidates { retry_after: self.retry_after_seconds(passage.identity.priority) }
    }

    fn none_available(&self, passage: &Passage<'_>) -> Rejection {
        Rejection::NoneAvailable { retry_after: self.retry_after_seconds(passage.identity.priority) }
    }

    fn not_scheduled(&self, passage: &Passage<'_>, error: ScheduleError) -> Rejection {
        match error {
            ScheduleError::Filtered { profile } => {
                tracing::debug!(request = %passage.request.id, %profile, "the filters of the profile leave no endpoint");
                self.none_available(passage)
            }
            ScheduleError::Handler { .. } => Rejection::Scheduling(error),
        }
    }

    /// An estimate of the output stays charged until the end; a prompt has been worked through with the first chunk.
    const fn at_first_chunk(&self) -> TokensAtFirstChunk {
        if self.estimate.output.is_some() { TokensAtFirstChunk::Keep } else { TokensAtFirstChunk::Release }
    }

    fn rng(&self) -> Rng {
        Rng::seed_from_u64(self.seed.fetch_add(1, Ordering::Relaxed))
    }
}

/// Where there is room for a request.
enum Room {
    On(Decision),
    /// Every endpoint that would suit it, and may turn out to be among those allowed, is full.
    Nowhere(Allowed),
}

/// What became of a permit.
enum Attempt {
    Started(Routed),
    Parked(Admit),
}

impl Passage<'_> {
    fn allowed<'a>(&self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a Arc<Endpoint>> {
        let subset = self.subset.as_ref();
        snapshot.endpoints().iter().filter(move |endpoint| subset.is_none_or(|subset| subset.allows(endpoint)))
    }

    /// Room on which endpoints the request waits for, if only `suitable` ones of `all` will do.
    fn allowed_of(&self, all: &Candidates<'_>, suitable: &[Arc<Endpoint>]) -> Allowed {
        let is_suitable = |serial: &u64| suitable.iter().any(|endpoint| endpoint.serial() == *serial);
        let mut ruled_out: Vec<u64> = all.as_slice().iter().map(|endpoint| endpoint.serial()).collect();
        ruled_out.retain(|serial| !is_suitable(serial));
        ruled_out.sort_unstable();
        Allowed { subset: self.subset.clone(), ruled_out }
    }
}

/// A request that could not get in even into an empty queue is told so: trying again would be no use.
fn not_admitted(
    admission: &Admission,
    dropped: admission::Rejection,
    priority: Priority,
    held_bytes: u64,
    rng: &mut Rng,
) -> Rejection {
    let outcome = dropped.outcome;
    let at_the_door = matches!(outcome, Outcome::RejectedCapacity | Outcome::RejectedNoEndpoints);
    match admission.largest_request(priority) {
        Some(limit) if at_the_door && held_bytes > limit => Rejection::TooLarge { limit, outcome },
        _ => Rejection::not_admitted(dropped, rng),
    }
}

fn destination(targets: &[Arc<Endpoint>]) -> String {
    let mut list = String::with_capacity(targets.len() * 22);
    for (index, endpoint) in targets.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // Writing to a string cannot fail.
        write!(list, "{comma}{}", endpoint.address).unwrap_or_default();
    }
    list
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
