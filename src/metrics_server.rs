use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Registry, TextEncoder};

/// `GET /metrics`, in the Prometheus text format.
pub(crate) fn router(registry: Registry) -> Router {
    Router::new().route("/metrics", get(move || async move { scrape(&registry) }))
}

fn scrape(registry: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(page) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
