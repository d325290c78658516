use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// Whether the process wants traffic.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readiness {
    draining: Arc<AtomicBool>,
}

impl Readiness {
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    fn status(&self) -> ServingStatus {
        if self.draining.load(Ordering::Acquire) { ServingStatus::NotServing } else { ServingStatus::Serving }
    }

    pub(crate) fn into_server(self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService { readiness: self })
    }
}

/// Answers for every service name alike: charts probe names of their own.
#[derive(Clone, Debug)]
pub(crate) struct HealthService {
    readiness: Readiness,
}

impl HealthService {
    fn response(&self) -> HealthCheckResponse {
        HealthCheckResponse { status: self.readiness.status().into() }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(self.response()))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("use Check"))
    }
}
