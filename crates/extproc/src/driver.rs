//! Drives one [`Session`] per stream.
//!
//! There is no task and no channel per stream: the reply stream itself reads what the proxy sends, so a request
//! whose stream is dropped, by a reset or at shutdown, is cleaned up by the drop.

mod ending;
mod identify;
mod record;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use futures_util::FutureExt as _;
use sluice_core::{Priority, Request, Time, TokenEstimate};
use sluice_flow::RevokeCause;
use sluice_router::{Identity, InFlight, Intent, Rejection, Routed};
use tokio::sync::watch;
use tonic::{Status, Streaming};

use self::record::Record;
use crate::action::{Action, Close, Ending, Notice, Outcome};
use crate::body_memory::Share;
use crate::convert;
use crate::message::{Inbound, InboundEnd};
use crate::metrics::{Labels, Running};
use crate::reject::{Code, Refusal};
use crate::reply::Reply;
use crate::service::{Shared, Terms};
use crate::session::{Session, StreamFacts};
use crate::timer::Timer;
use crate::trailer_watch::Peer;
use crate::unread::GivenUp;

type Routing = Pin<Box<dyn Future<Output = Result<Routed, Rejection>> + Send>>;

/// One stream: its session and everything the request holds.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    terms: Arc<Terms>,
    peer: Peer,
    given_up: GivenUp,
    inbound: Streaming<ProcessingRequest>,
    session: Session,
    timer: Timer,
    /// Told when the process is about to end; none once it was heard.
    ending: Option<watch::Receiver<bool>>,
    /// Scratch for what one step of the session asks for.
    actions: Vec<Action>,
    outbox: VecDeque<Reply>,
    close: Option<Close>,
    routing: Option<Routing>,
    routing_since: Time,
    /// The request that is being routed, and the end of its stream.
    routed: Option<(Arc<Request>, Option<Time>)>,
    /// The request asks for admission.
    queues: bool,
    identity: Option<Identity>,
    priority: Priority,
    /// The request may be cut off, and was not told yet that it has to be.
    revocable: bool,
    /// When it was told so.
    revoked: Option<Time>,
    /// What its prompt is taken for.
    prompt_estimate: u64,
    /// The bytes of the request that are held.
    body: Option<Share>,
    labels: Labels,
    in_flight: Option<InFlight>,
    running: Option<Running>,
    record: Option<Record>,
    ended: bool,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("session", &self.session).finish_non_exhaustive()
    }
}

/// What a stream waits for.
enum Event {
    Inbound(Result<Option<Inbound>, Status>),
    /// The bytes that the request takes are needed for more urgent work.
    GivenUp,
    /// The process is about to end.
    Ending,
    Routed(Result<Routed, Rejection>),
    Revoked(RevokeCause),
    Time,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        terms: Arc<Terms>,
        peer: Peer,
        given_up: GivenUp,
        inbound: Streaming<ProcessingRequest>,
        facts: StreamFacts,
    ) -> Self {
        let session = Session::new(terms.session_settings, facts, terms.router.rewrites());
        let ending = Some(shared.ending.subscribe());
        let record = Record::open(facts.opened);
        shared.open_streams.fetch_add(1, Ordering::Relaxed);
        Self {
            shared,
            terms,
            peer,
            given_up,
            inbound,
            session,
            timer: Timer::default(),
            ending,
            actions: Vec::new(),
            outbox: VecDeque::new(),
            close: None,
            routing: None,
            routing_since: Time::ZERO,
            routed: None,
            queues: false,
            identity: None,
            priority: Priority::default(),
            revocable: false,
            revoked: None,
            prompt_estimate: 0,
            body: None,
            labels: Labels::default(),
            in_flight: None,
            running: None,
            record,
            ended: false,
        }
    }

    /// The next message to the proxy; `None` is the clean end of a finished request. A panic on the way ends this
    /// stream, and no other.
    ///
    /// In our own type, as [`Event`] has messages: those of the protocol are large, and each step from here to the server
    /// would move them.
    pub(crate) async fn next_reply(&mut self) -> Option<Result<Reply, Status>> {
        match AssertUnwindSafe(self.advance()).catch_unwind().await {
            Ok(reply) => reply,
            Err(_panic) => Some(self.fail()),
        }
    }

    /// Ends the stream after a panic: with an answer for the client, as long as the proxy takes one.
    fn fail(&mut self) -> Result<Reply, Status> {
        self.outbox.clear();
        self.close = Some(Close::Finished);
        self.end(&Ending::of(Outcome::Refused(Code::Internal), self.session.usage()));
        self.session.answer_failure().ok_or_else(|| Status::internal("the picker failed on this request"))
    }

    async fn advance(&mut self) -> Option<Result<Reply, Status>> {
        loop {
            if let Some(reply) = self.outbox.pop_front() {
                return Some(Ok(reply));
            }
            match self.close {
                Some(Close::Finished) => return None,
                Some(Close::Failed(what)) => {
                    self.close = Some(Close::Finished);
                    return Some(Err(Status::unavailable(what)));
                }
                None => {}
            }
            match self.next_event().await {
                Event::Inbound(Ok(Some(inbound))) => self.on_message(inbound),
                Event::Inbound(Ok(None)) => self.on_inbound_end(InboundEnd::HalfClosed),
                Event::Inbound(Err(status)) => self.on_inbound_end(ending::end_of(&status)),
                Event::GivenUp => self.give_up_body(),
                Event::Ending => {
                    self.ending = None;
                    let retry_after = self.terms.router.retry_after_seconds(self.priority);
                    self.session.on_refused(&Refusal::shutting_down(retry_after), &mut self.actions);
                }
                Event::Routed(routed) => self.on_routed(routed),
                Event::Revoked(cause) => self.on_revoked(cause),
                Event::Time => self.on_time(),
            }
            self.act();
        }
    }

    /// Messages come first: one of them may tell that the request is dead, and a dead request must not be placed, or that
    /// it is complete, and then nothing is to be cut off. Time comes last: whatever else happens makes it pointless.
    async fn next_event(&mut self) -> Event {
        let wakeup = self.session.next_wakeup();
        let is_reading = self.session.is_reading();
        let Self { inbound, terms, body, ending, routing, in_flight, revocable, timer, shared, .. } = self;
        let ours = |request| convert::inbound(request, &terms.vouched_namespace);
        tokio::select! {
            biased;
            message = inbound.message() => Event::Inbound(message.map(|request| request.map(ours))),
            () = async { body.as_mut().expect("guarded").given_up().await },
                if body.is_some() => Event::GivenUp,
            _ = async { ending.as_mut().expect("guarded").wait_for(|ending| *ending).await.map(drop) },
                if ending.is_some() && is_reading => Event::Ending,
            routed = async { routing.as_mut().expect("guarded").await }, if routing.is_some() => Event::Routed(routed),
            cause = async { in_flight.as_mut().expect("guarded").revoked().await },
                if *revocable && in_flight.is_some() => Event::Revoked(cause),
            () = timer.sleep_until(wakeup, &*shared.clock), if timer.is_needed(wakeup) => Event::Time,
        }
    }

    fn on_message(&mut self, mut inbound: Inbound) {
        let now = self.shared.clock.now();
        self.identify(&mut inbound);
        let mut random = None;
        let mut random = || random.get_or_insert_with(|| self.shared.random())();
        self.session.on_message(now, inbound, &mut random, &mut self.actions);
    }

    fn on_inbound_end(&mut self, end: InboundEnd) {
        self.session.on_inbound_end(self.shared.clock.now(), end, &mut self.actions);
    }

    fn on_time(&mut self) {
        let Self { shared, terms, routed, priority, routing_since, .. } = self;
        let wait_ends = || {
            let (request, deadline) = routed.as_ref()?;
            terms.router.wait_ends(request, *priority, *deadline, *routing_since)
        };
        let now = shared.clock.now();
        self.session.on_time(now, &mut shared.random(), &wait_ends, &mut self.actions);
    }

    fn on_routed(&mut self, routed: Result<Routed, Rejection>) {
        self.routing = None;
        self.routed = None;
        let outcome = match &routed {
            Ok(_) => sluice_flow::Outcome::Dispatched,
            Err(rejection) => rejection.outcome().unwrap_or(sluice_flow::Outcome::EvictedOther),
        };
        let result = match routed {
            Ok(Routed { destination, in_flight }) => match self.keep(in_flight) {
                Ok(()) => {
                    self.running = Some(self.shared.metrics.placed(&mut self.labels));
                    if let Some(record) = &mut self.record {
                        record.placed(self.shared.clock.now(), &destination);
                    }
                    Ok(destination)
                }
                Err(refusal) => Err(refusal),
            },
            Err(rejection) => Err(rejection.into()),
        };
        self.queued(outcome);
        self.session.on_routed(self.shared.clock.now(), result, &mut self.actions);
    }

    fn act(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Route(intent) => self.start_routing(intent),
                Action::StopRouting => self.stop_routing(),
                Action::Reply(reply) => self.outbox.push_back(reply),
                Action::Holding(bytes) => self.hold(bytes),
                Action::Served(address) => {
                    if let Some(record) = &mut self.record {
                        record.served_by(address);
                    }
                    if let Some(in_flight) = &mut self.in_flight {
                        self.terms.router.served_by(in_flight, address);
                    }
                }
                Action::Sending(bytes) => {
                    if let Some(record) = &mut self.record {
                        record.sent(bytes);
                    }
                    if let Some(in_flight) = &mut self.in_flight {
                        in_flight.sending(bytes);
                    }
                }
                Action::BegunUnseen => {
                    if let Some(in_flight) = &mut self.in_flight {
                        in_flight.begun_unseen();
                    }
                    if self.terms.bounds_tokens {
                        self.shared.notices.say(Notice::PromptsStayCharged);
                    }
                }
                Action::PassedBy { end, after } => {
                    if self.peer.trailers().ended(end, after) {
                        self.shared.notices.say(Notice::Unaccountable);
                    }
                }
                Action::GaveUp { after } => {
                    if let Some(after) = self.shared.gave_up.ended(after) {
                        self.shared.notices.say(Notice::MessageTimeout { after });
                    }
                }
                Action::Notice(notice) => {
                    self.shared.notices.say(notice);
                }
                Action::End(ending) => self.end(&ending),
                Action::Close(close) => self.close = Some(close),
            }
        }
        // What was asked for on the way, because there is no memory for the request.
        let further = std::mem::replace(&mut self.actions, actions);
        if !further.is_empty() {
            self.actions.extend(further);
            self.act();
        }
    }

    fn start_routing(&mut self, intent: Intent) {
        // There was no memory for it, a moment ago.
        if self.session.is_over() {
            return;
        }
        let Some(identity) = self.identity.take() else { return };
        if let Some(record) = &mut self.record {
            record.named(&intent.request.id);
        }
        self.labels.name_model(&intent.request, self.session.rewrites());
        self.queues = self.terms.router.queues(intent.header_only);
        self.prompt_estimate = TokenEstimate::default().tokens(intent.request.body_bytes, None);
        self.routing_since = self.shared.clock.now();
        self.routed = Some((Arc::clone(&intent.request), intent.deadline));
        let router = Arc::clone(&self.terms.router);
        self.routing = Some(Box::pin(async move { router.route(intent, identity).await }));
    }

    /// The request is dead. If it was waiting, it leaves the queue at once.
    fn stop_routing(&mut self) {
        self.routed = None;
        if self.routing.take().is_some() {
            self.queued(sluice_flow::Outcome::EvictedContextCancelled);
        }
    }

    /// Records how long the request waited for `outcome`.
    fn queued(&mut self, outcome: sluice_flow::Outcome) {
        if self.queues {
            let waited = self.shared.clock.now().saturating_since(self.routing_since);
            self.shared.metrics.queued(&mut self.labels, outcome, waited);
        }
    }
}
