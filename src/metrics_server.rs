use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus::{Registry, TextEncoder};
use sluice_router::FlowState as _;

use crate::debug;
use crate::pool_view::PoolView;

/// `GET /metrics`, in the Prometheus text format; `GET /debug/flow`, where there is flow control.
pub(crate) fn router(registry: Registry, view: Option<PoolView>) -> Router {
    let router = Router::new().route("/metrics", get(move || async move { scrape(&registry) }));
    match view {
        None => router,
        Some(view) => router.route("/debug/flow", get(move || async move { flow_page(&view) })),
    }
}

fn scrape(registry: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(page) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn flow_page(view: &PoolView) -> Response {
    Json(debug::flow_page(&view.stats(), &view.endpoint_names())).into_response()
}
