//! The gRPC health service, on its own port and on that of the external processor.

use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// Answered as serving for as long as what serves requests gets on: a process that waits for its pool, or drains, is not to
/// be killed for it.
const LIVENESS: &str = "liveness";

/// The names by which the readiness of one of several is asked for; where every picker serves, any other name does, too.
const READINESS: [&str; 3] = ["", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"];

/// On what it depends whether the process wants traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    stage: Stage,
    /// The pool is there, be it that it is empty, and all about it is known.
    pool_known: bool,
    /// None where every picker serves.
    leads: Option<bool>,
    /// The runtime that serves requests does not get on.
    stuck: bool,
}

/// Stages follow each other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// Still serving, but others should be asked.
    Draining,
    /// Nobody is to wait for news any more.
    Stopped,
}

impl State {
    fn is_ready(self) -> bool {
        self.stage == Stage::Open && self.pool_known && self.leads != Some(false) && !self.stuck
    }

    fn status(self, service: &str) -> ServingStatus {
        match service {
            LIVENESS if self.stuck => ServingStatus::NotServing,
            LIVENESS => ServingStatus::Serving,
            other if self.leads.is_some() && !READINESS.contains(&other) => ServingStatus::ServiceUnknown,
            _ if self.is_ready() => ServingStatus::Serving,
            _ => ServingStatus::NotServing,
        }
    }
}

/// Tells the state; the health service of every clone answers by it.
#[derive(Clone, Debug)]
pub(crate) struct Readiness(watch::Sender<State>);

impl Readiness {
    /// Not ready yet: the pool is not known. If pickers `elect` one that serves, it is not this one yet.
    pub(crate) fn new(elect: bool) -> Self {
        let state = State { stage: Stage::Open, pool_known: false, leads: elect.then_some(false), stuck: false };
        Self(watch::Sender::new(state))
    }

    /// Every port is open, and the pool is known, be it that it is empty; or it is not any more.
    pub(crate) fn set_pool_known(&self, known: bool) {
        self.change(|state| state.pool_known = known);
    }

    /// This picker is the one that serves; or not any more.
    pub(crate) fn set_leads(&self, leads: bool) {
        self.change(|state| state.leads = Some(leads));
    }

    /// What serves requests does not get on; or does so again. Tells whether that is new.
    pub(crate) fn set_stuck(&self, stuck: bool) -> bool {
        self.change(|state| state.stuck = stuck)
    }

    /// Hands on what `news` tells, until nobody tells any more.
    pub(crate) async fn follow(self, mut news: watch::Receiver<bool>, hand_on: fn(&Self, bool)) {
        loop {
            let present = *news.borrow_and_update();
            hand_on(&self, present);
            if news.changed().await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn start_draining(&self) {
        self.change(|state| state.stage = Stage::Draining);
    }

    /// Ends the streams of those who watch.
    pub(crate) fn stop(&self) {
        self.change(|state| state.stage = Stage::Stopped);
    }

    /// Tells whether anything is different now.
    fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        self.0.send_if_modified(|state| {
            let before = *state;
            change(state);
            *state != before
        })
    }

    pub(crate) fn into_server(self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService { readiness: self })
    }
}

/// Answers for every service name but [`LIVENESS`] alike where every picker serves: charts then probe names of their own.
#[derive(Clone, Debug)]
pub(crate) struct HealthService {
    readiness: Readiness,
}

fn response(state: State, service: &str) -> HealthCheckResponse {
    HealthCheckResponse { status: state.status(service).into() }
}

type Updates = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Updates;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let state = *self.readiness.0.borrow();
        Ok(Response::new(response(state, &request.get_ref().service)))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Updates>, Status> {
        let service = request.into_inner().service;
        Ok(Response::new(updates(self.readiness.0.subscribe(), service)))
    }
}

/// The status now and after each change of it, until nobody is to wait any more.
fn updates(mut states: watch::Receiver<State>, service: String) -> Updates {
    states.mark_changed();
    let watching = Watching { states, service, last: None };
    Box::pin(stream::unfold(Some(watching), |watching| async move {
        let mut watching = watching?;
        match watching.next().await {
            Some(update) => Some((Ok(update), Some(watching))),
            None => Some((Err(Status::unavailable("the picker has stopped")), None)),
        }
    }))
}

struct Watching {
    states: watch::Receiver<State>,
    service: String,
    last: Option<HealthCheckResponse>,
}

impl Watching {
    async fn next(&mut self) -> Option<HealthCheckResponse> {
        loop {
            self.states.changed().await.ok()?;
            let state = *self.states.borrow_and_update();
            if state.stage == Stage::Stopped {
                return None;
            }
            let update = response(state, &self.service);
            if self.last.replace(update) != Some(update) {
                return Some(update);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    const NAMES: [&str; 4] = ["", "envoy.service.ext_proc.v3.ExternalProcessor", "readiness", "inference-extension"];

    fn service() -> HealthService {
        HealthService { readiness: Readiness::new(false) }
    }

    async fn check(health: &HealthService, service: &str) -> ServingStatus {
        let request = Request::new(HealthCheckRequest { service: service.to_owned() });
        health.check(request).await.unwrap().into_inner().status()
    }

    async fn watch(health: &HealthService, service: &str) -> Updates {
        let request = Request::new(HealthCheckRequest { service: service.to_owned() });
        health.watch(request).await.unwrap().into_inner()
    }

    /// What a watcher is told without waiting.
    fn news(updates: &mut Updates) -> Option<Result<ServingStatus, tonic::Code>> {
        let update = updates.next().now_or_never()?.expect("the end of the stream is an error");
        Some(update.map(|update| update.status()).map_err(|status| status.code()))
    }

    #[tokio::test]
    async fn every_name_is_answered_by_the_stage_and_liveness_always() {
        let health = service();
        let readiness = health.readiness.clone();
        let expect = async |expected| {
            for name in NAMES {
                assert_eq!(check(&health, name).await, expected, "{name:?}");
            }
            assert_eq!(check(&health, LIVENESS).await, ServingStatus::Serving);
        };
        expect(ServingStatus::NotServing).await;
        readiness.set_pool_known(true);
        expect(ServingStatus::Serving).await;
        readiness.start_draining();
        expect(ServingStatus::NotServing).await;
        readiness.stop();
        expect(ServingStatus::NotServing).await;
    }

    #[tokio::test]
    async fn a_watcher_hears_the_status_at_once_then_each_change_then_the_end() {
        let health = service();
        let readiness = health.readiness.clone();
        let mut updates = watch(&health, "").await;
        assert_eq!(news(&mut updates), Some(Ok(ServingStatus::NotServing)));
        assert_eq!(news(&mut updates), None);
        readiness.set_pool_known(true);
        assert_eq!(news(&mut updates), Some(Ok(ServingStatus::Serving)));
        readiness.set_pool_known(true);
        assert_eq!(news(&mut updates), None, "nothing has changed");
        readiness.start_draining();
        assert_eq!(news(&mut updates), Some(Ok(ServingStatus::NotServing)));
        readiness.stop();
        assert_eq!(news(&mut updates), Some(Err(tonic::Code::Unavailable)));
        assert!(updates.next().await.is_none());
    }

    #[tokio::test]
    async fn readiness_goes_with_the_pool_and_comes_back_with_it_but_not_while_draining() {
        let health = service();
        let readiness = health.readiness.clone();
        for (known, expected) in
            [(false, ServingStatus::NotServing), (true, ServingStatus::Serving), (false, ServingStatus::NotServing)]
        {
            readiness.set_pool_known(known);
            assert_eq!(check(&health, "readiness").await, expected, "{known}");
            assert_eq!(check(&health, LIVENESS).await, ServingStatus::Serving, "{known}");
        }
        let (sender, known) = watch::channel(true);
        let mut following = Box::pin(readiness.clone().follow(known, Readiness::set_pool_known));
        assert!((&mut following).now_or_never().is_none());
        assert_eq!(check(&health, "").await, ServingStatus::Serving);
        readiness.start_draining();
        for known in [false, true] {
            sender.send_replace(known);
            assert!((&mut following).now_or_never().is_none());
            assert_eq!(check(&health, "").await, ServingStatus::NotServing);
        }
    }

    #[tokio::test]
    async fn one_of_several_is_ready_while_it_leads_and_knows_the_pool() {
        let health = HealthService { readiness: Readiness::new(true) };
        let readiness = health.readiness.clone();
        for (known, leads) in [(false, false), (true, false), (true, true), (false, true), (true, true), (true, false)]
        {
            readiness.set_pool_known(known);
            readiness.set_leads(leads);
            let expected = if known && leads { ServingStatus::Serving } else { ServingStatus::NotServing };
            for name in READINESS {
                assert_eq!(check(&health, name).await, expected, "{name:?} {known} {leads}");
            }
            assert_eq!(check(&health, LIVENESS).await, ServingStatus::Serving);
            assert_eq!(check(&health, "inference-extension").await, ServingStatus::ServiceUnknown);
        }
        readiness.set_leads(true);
        let mut updates = watch(&health, "readiness").await;
        assert_eq!(news(&mut updates), Some(Ok(ServingStatus::Serving)));
        readiness.set_leads(false);
        assert_eq!(news(&mut updates), Some(Ok(ServingStatus::NotServing)));
        readiness.start_draining();
        readiness.set_leads(true);
        assert_eq!(news(&mut updates), None, "whoever drains is not ready, whatever else happens");
    }

    #[tokio::test]
    async fn a_watcher_of_liveness_hears_of_nothing_but_a_runtime_that_is_stuck() {
        let health = service();
        let mut updates = watch(&health, LIVENESS).await;
        assert_eq!(news(&mut updates), Some(Ok(ServingStatus::Serving)));
        health.readiness.set_pool_known(true);
        health.readiness.start_draining();
        assert_eq!(news(&mut updates), None);
        assert!(health.readiness.set_stuck(true) && !health.readiness.set_stuck(true));
        assert_eq!(news(&mut updates), Some(Ok(ServingStatus::NotServing)));
        assert!(health.readiness.set_stuck(false));
        assert_eq!(news(&mut updates), Some(Ok(ServingStatus::Serving)));
    }
}
