//! Leases, as those who elect a leader use them: made, read, and replaced by whoever knows the present version.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::Value;

use super::Resource;
use super::http::refusal;
use super::store::Store;

pub(super) const ALL: &str = "/apis/coordination.k8s.io/v1/namespaces/test/leases";
pub(super) const ONE: &str = "/apis/coordination.k8s.io/v1/namespaces/test/leases/{name}";

pub(super) async fn read(State(store): State<Arc<Store>>, Path(name): Path<String>) -> Response {
    if let Some(status) = store.ask("get", Resource::LEASE) {
        return refusal(status);
    }
    store.object(Resource::LEASE, &name).map_or_else(|| refusal(404), |lease| axum::Json(lease).into_response())
}

pub(super) async fn create(State(store): State<Arc<Store>>, axum::Json(lease): axum::Json<Value>) -> Response {
    if let Some(status) = store.ask("create", Resource::LEASE) {
        return refusal(status);
    }
    let made = store.create(Resource::LEASE, lease);
    done(&store, StatusCode::CREATED, made).await
}

pub(super) async fn replace(
    State(store): State<Arc<Store>>,
    Path(name): Path<String>,
    axum::Json(lease): axum::Json<Value>,
) -> Response {
    if let Some(status) = store.ask("update", Resource::LEASE) {
        return refusal(status);
    }
    if lease["metadata"]["name"] != name {
        return refusal(400);
    }
    let replaced = store.replace(Resource::LEASE, lease);
    done(&store, StatusCode::OK, replaced).await
}

async fn done(store: &Store, status: StatusCode, outcome: Result<Value, u16>) -> Response {
    match outcome {
        Ok(_) if store.is_mute() => std::future::pending().await,
        Ok(object) => (status, axum::Json(object)).into_response(),
        Err(code) => refusal(code),
    }
}
