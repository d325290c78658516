use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rand::{Rng, RngExt};
use sluice_core::DropReason;
use sluice_flow::{Ask, Outcome, Ticket, Verdict};

use super::lease::Permit;
use super::shared::{Seat, Shared};
use super::sync::Arc;

/// A request that waits for its verdict. Dropping it withdraws the request at once.
#[derive(Debug)]
#[must_use = "dropping it withdraws the request"]
pub struct Admit(State);

#[derive(Debug)]
enum State {
    Waiting(Waiting),
    /// It is not in the engine.
    Refused(Rejection),
    /// The verdict was handed out.
    Over,
}

#[derive(Debug)]
struct Waiting {
    shared: Arc<Shared>,
    seat: Seat,
    ticket: Ticket,
}

impl Admit {
    pub(super) fn submit(shared: Arc<Shared>, ask: Ask) -> Self {
        let (seat, ticket) = shared.call_seated(|engine, now, waiter| engine.submit(now, ask, waiter));
        Self::seated(shared, seat, ticket)
    }

    pub(super) const fn seated(shared: Arc<Shared>, seat: Seat, ticket: Ticket) -> Self {
        Self(State::Waiting(Waiting { shared, seat, ticket }))
    }

    pub(super) const fn refused(rejection: Rejection) -> Self {
        Self(State::Refused(rejection))
    }
}

impl Future for Admit {
    type Output = Result<Permit, Rejection>;

    /// Panics if polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let verdict = match &self.0 {
            State::Waiting(Waiting { shared, seat, .. }) => match shared.poll_verdict(*seat, cx) {
                Poll::Ready(verdict) => Some(verdict),
                Poll::Pending => return Poll::Pending,
            },
            State::Refused(_) | State::Over => None,
        };
        Poll::Ready(match (std::mem::replace(&mut self.0, State::Over), verdict) {
            (State::Waiting(Waiting { shared, seat, ticket }), Some(Verdict::Granted { reserved: _ })) => {
                Ok(Permit::new(shared, seat, ticket))
            }
            (State::Waiting(Waiting { shared, seat, .. }), Some(Verdict::Dropped { outcome, retry_after })) => {
                shared.call_leaving(seat, |_, _| ());
                Err(Rejection { outcome, retry_after })
            }
            (State::Refused(rejection), _) => Err(rejection),
            (State::Waiting(_) | State::Over, _) => unreachable!("polled after it was ready"),
        })
    }
}

impl Drop for Admit {
    fn drop(&mut self) {
        if let State::Waiting(Waiting { shared, seat, ticket }) = std::mem::replace(&mut self.0, State::Over) {
            // The engine knows whether it still waits, was granted in the meantime, or has ended.
            shared.call_leaving(seat, |engine, now| engine.cancel(now, ticket));
        }
    }
}

/// A request was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub outcome: Outcome,
    pub(super) retry_after: Option<u8>,
}

impl Rejection {
    /// What the client is told.
    pub const fn reason(&self) -> Option<DropReason> {
        self.outcome.reason()
    }

    /// `Retry-After`: a whole number of seconds between the engine's estimate and twice that, so that refused
    /// clients do not come back together. None where a retry is no use.
    pub fn retry_after(&self, rng: &mut impl Rng) -> Option<Duration> {
        let base = u64::from(self.retry_after?);
        Some(Duration::from_secs(rng.random_range(base..=2 * base)))
    }
}
