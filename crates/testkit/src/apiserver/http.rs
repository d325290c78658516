use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use bytes::Bytes;
use futures_util::stream;
use http::{Method, StatusCode, Uri, header};
use reqwest::Url;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::selector::Selection;
use super::store::{News, Store};
use super::{NAMESPACE, Resource, conditions, leases, reviews};

/// A watch on which nothing happens is told the present version this often.
const BOOKMARK_EVERY: Duration = Duration::from_millis(500);

const RESOURCES: [Resource; 6] = [
    Resource::POD,
    Resource::POOL,
    Resource::OBJECTIVE,
    Resource::OLDER_OBJECTIVE,
    Resource::REWRITE,
    Resource::OLDER_REWRITE,
];

pub(crate) fn router(store: Arc<Store>) -> Router {
    Router::new()
        .route(leases::ALL, post(leases::create))
        .route(leases::ONE, get(leases::read).put(leases::replace))
        .route(reviews::TOKENS, post(reviews::token))
        .route(reviews::ACCESS, post(reviews::access))
        .route(conditions::PATH, patch(conditions::apply))
        .fallback(answer)
        .with_state(store)
}

async fn answer(State(store): State<Arc<Store>>, method: Method, uri: Uri) -> Response {
    let query = parameters(&uri);
    let resource = RESOURCES.into_iter().find(|resource| path(resource) == uri.path());
    let Some(resource) = resource.filter(|_| method == Method::GET) else {
        return refusal(404);
    };
    let parameter = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
    let selection = Selection::new(parameter("labelSelector"), parameter("fieldSelector"));
    let watches = ["1", "true"].contains(&parameter("watch"));
    if let Some(status) = store.ask(if watches { "watch" } else { "list" }, resource) {
        return refusal(status);
    }
    if store.is_silent() {
        return std::future::pending().await;
    }
    if !watches {
        tokio::time::sleep(store.delay()).await;
        let (limit, passed) = (parameter("limit").parse().ok(), parameter("continue").parse().unwrap_or(0));
        return axum::Json(store.list(resource, &selection, limit, passed)).into_response();
    }
    let version = parameter("resourceVersion").parse().unwrap_or(0);
    let (generation, news) = store.subscribe();
    let watching = Watching { store, resource, selection, version, generation, news, last: false };
    let lines = stream::unfold(watching, |mut watching| async move {
        let lines = watching.next().await?;
        Some((Ok::<_, Infallible>(lines), watching))
    });
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response()
}

pub(super) fn parameters(uri: &Uri) -> BTreeMap<String, String> {
    let url = Url::parse(&format!("http://server/?{}", uri.query().unwrap_or_default()));
    url.map(|url| url.query_pairs().into_owned().collect()).unwrap_or_default()
}

fn path(resource: &Resource) -> String {
    let Resource { group, version, plural, .. } = resource;
    match *group {
        "" => format!("/api/{version}/namespaces/{NAMESPACE}/{plural}"),
        group => format!("/apis/{group}/{version}/namespaces/{NAMESPACE}/{plural}"),
    }
}

fn status(code: u16) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "Expired",
    };
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code})
}

pub(super) fn refusal(code: u16) -> Response {
    let http = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (http, axum::Json(status(code))).into_response()
}

struct Watching {
    store: Arc<Store>,
    resource: Resource,
    selection: Selection,
    /// What has been told.
    version: u64,
    generation: u64,
    news: watch::Receiver<()>,
    /// The last line has been said.
    last: bool,
}

impl Watching {
    /// The next lines; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.last {
            return None;
        }
        let mut idle = false;
        loop {
            self.news.borrow_and_update();
            if self.store.is_silent() {
                // As on a connection of which nobody has said that it is gone: also when the server speaks again.
                return std::future::pending().await;
            }
            match self.store.news(self.resource, &self.selection, self.version, self.generation) {
                News::Ended => return None,
                News::Gone => {
                    self.last = true;
                    return Some(lines(&[json!({"type": "ERROR", "object": status(410)})]));
                }
                News::Events(events, version) => {
                    self.version = version;
                    if !events.is_empty() {
                        return Some(lines(&events));
                    }
                }
            }
            if idle {
                return Some(lines(&[self.bookmark()]));
            }
            // A sender that is gone means that the server is, too.
            match tokio::time::timeout(BOOKMARK_EVERY, self.news.changed()).await {
                Ok(changed) => changed.ok()?,
                Err(_elapsed) => idle = true,
            }
        }
    }

    fn bookmark(&self) -> Value {
        let metadata = json!({"resourceVersion": self.version.to_string()});
        let object = json!({
            "apiVersion": self.resource.api_version(),
            "kind": self.resource.kind,
            "metadata": metadata,
        });
        json!({"type": "BOOKMARK", "object": object})
    }
}

fn lines(events: &[Value]) -> Bytes {
    events.iter().map(|event| format!("{event}\n")).collect::<String>().into()
}
