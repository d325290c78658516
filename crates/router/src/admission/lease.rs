use std::future::poll_fn;
use std::sync::Arc as StdArc;
use std::sync::atomic::AtomicU64;

use sluice_core::{Endpoint, EndpointLoad, TerminationCause};
use sluice_flow::{
    Booking, Eligibility, Ended, EndpointKey, Outcome, Park, RevokeCause, Stage, Start, StartError, Ticket,
    TokensAtFirstChunk,
};
use smallvec::SmallVec;

use super::keys::key_of;
use super::shared::{Seat, Shared};
use super::sync::Arc;
use super::wait::{Admit, Rejection};

/// The right to start one request. Dropping it gives it to the next, and counts as given up.
#[derive(Debug)]
#[must_use = "dropping it gives the place to the next"]
pub struct Permit {
    /// None once it was used.
    held: Option<Held>,
}

/// What permits and started requests hold.
#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    seat: Seat,
    ticket: Ticket,
}

/// An endpoint picked for one stage of a request.
#[derive(Clone, Debug)]
pub struct Target {
    pub endpoint: StdArc<Endpoint>,
    pub stage: Stage,
    /// Tokens it really has to work on.
    pub tokens: u64,
}

/// The permit is good for other endpoints still.
#[derive(Debug)]
pub struct NotStarted {
    pub permit: Permit,
    /// The endpoint that has no room, or has left the pool.
    pub endpoint: StdArc<Endpoint>,
}

/// One of its endpoints has room after all: pick again.
#[derive(Debug)]
pub struct NotParked {
    pub permit: Permit,
}

impl Permit {
    pub(super) const fn new(shared: Arc<Shared>, seat: Seat, ticket: Ticket) -> Self {
        Self { held: Some(Held { shared, seat, ticket }) }
    }

    /// Books every one of `targets`, or none. `progress` counts the bytes of the response that went to the
    /// client, for whoever has to choose a victim.
    pub fn start(mut self, targets: &[Target], progress: Option<StdArc<AtomicU64>>) -> Result<InFlight, NotStarted> {
        let Some(Held { shared, seat, ticket }) = self.held.take() else {
            unreachable!("a permit is used once, by value");
        };
        let booking = |target: &Target| Booking {
            endpoint: key_of(&target.endpoint),
            stage: target.stage,
            tokens: target.tokens,
        };
        let result = shared.call(|engine, now| {
            let bookings: SmallVec<[Booking; 2]> = targets.iter().map(booking).collect();
            let at = |key: EndpointKey| bookings.iter().position(|booking| booking.endpoint == key).unwrap_or(0);
            engine.start(now, ticket, Start { bookings: bookings.clone(), progress }).map_err(|error| match error {
                StartError::Full(key) | StartError::Left(key) => at(key),
                StartError::NotGranted => 0,
            })
        });
        let held = Held { shared, seat, ticket };
        match result {
            Ok(()) => Ok(InFlight { booked: targets.iter().map(Booked::new).collect(), held: Some(held) }),
            Err(index) => {
                let endpoint = StdArc::clone(&targets[index].endpoint);
                Err(NotStarted { permit: Self { held: Some(held) }, endpoint })
            }
        }
    }

    /// Waits for room on one of the endpoints that `eligible` allows, all of which are full. The permit is
    /// given up; another comes.
    pub fn park(mut self, eligible: StdArc<dyn Eligibility>) -> Result<Admit, NotParked> {
        let Some(Held { shared, seat, ticket }) = self.held.take() else {
            unreachable!("a permit is used once, by value");
        };
        match shared.call(|engine, now| engine.park(now, ticket, eligible)) {
            Park::Waiting => Ok(Admit::seated(shared, seat, ticket)),
            Park::NotGranted => {
                shared.call_leaving(seat, |_, _| ());
                debug_assert!(false, "the engine knows nothing of this permit");
                Ok(Admit::refused(Rejection { outcome: Outcome::EvictedOther, retry_after: None }))
            }
            Park::RoomAppeared(_) => Err(NotParked { permit: Self::new(shared, seat, ticket) }),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(Held { shared, seat, ticket }) = self.held.take() {
            let given_up = Ended { cause: TerminationCause::Error, usage: None };
            shared.call_leaving(seat, |engine, now| engine.release(now, ticket, given_up));
        }
    }
}

/// One place in the counters that schedulers read; dropping it gives it back.
#[derive(Debug)]
struct Booked {
    stage: Stage,
    load: StdArc<EndpointLoad>,
    tokens: u64,
}

impl Booked {
    fn new(target: &Target) -> Self {
        let load = StdArc::clone(target.endpoint.load());
        // The engine has just found room; this counter only shows it.
        load.try_book(u64::MAX);
        load.add_tokens(target.tokens);
        Self { stage: target.stage, load, tokens: target.tokens }
    }

    fn release_tokens(&mut self) {
        self.load.sub_tokens(std::mem::take(&mut self.tokens));
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        self.release_tokens();
        self.load.release();
    }
}

/// A started request. Dropping it unfinished counts as broken off.
#[derive(Debug)]
#[must_use = "dropping it releases its places at once"]
pub struct InFlight {
    /// The counters that schedulers read.
    booked: SmallVec<[Booked; 2]>,
    /// None once it has ended.
    held: Option<Held>,
}

impl InFlight {
    /// Ready when the request has to be cut off; it counts until it is finished or dropped.
    pub async fn revoked(&mut self) -> RevokeCause {
        poll_fn(|cx| match &self.held {
            Some(held) => held.shared.poll_revoked(held.seat, cx),
            None => std::task::Poll::Pending,
        })
        .await
    }

    /// The first chunk of the response came: the prefill is over.
    pub fn first_chunk(&mut self, tokens: TokensAtFirstChunk) {
        if tokens == TokensAtFirstChunk::Release {
            self.booked.iter_mut().for_each(Booked::release_tokens);
        }
        self.booked.retain(|booked| booked.stage != Stage::Prefill);
        if let Some(held) = &self.held {
            held.shared.call(|engine, now| engine.first_chunk(now, held.ticket, tokens));
        }
    }

    /// The request is decoded on `endpoint` instead of where it was booked. Nothing changes if that is not in the pool.
    pub fn move_to(&mut self, endpoint: &StdArc<Endpoint>) {
        let Some(held) = &self.held else { return };
        held.shared.call(|engine, now| engine.rebook(now, held.ticket, key_of(endpoint)));
        let booked = self.booked.iter_mut().find(|booked| booked.stage == Stage::Decode);
        if let Some(booked) = booked.filter(|booked| !StdArc::ptr_eq(&booked.load, endpoint.load())) {
            let target = Target { endpoint: StdArc::clone(endpoint), stage: Stage::Decode, tokens: booked.tokens };
            *booked = Booked::new(&target);
        }
    }

    /// The request is over.
    pub fn finish(mut self, ended: Ended) {
        self.end(ended);
    }

    fn end(&mut self, ended: Ended) {
        self.booked.clear();
        if let Some(Held { shared, seat, ticket }) = self.held.take() {
            shared.call_leaving(seat, |engine, now| engine.release(now, ticket, ended));
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end(Ended { cause: TerminationCause::Error, usage: None });
    }
}
