//! The status of objects, as those write it who report on them: by server-side apply, of conditions only.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::Resource;
use super::http::{parameters, refusal};
use super::store::Store;

pub(super) const PATH: &str = "/apis/{group}/{version}/namespaces/test/{plural}/{name}/status";

/// Kinds with conditions.
const RESOURCES: [Resource; 4] =
    [Resource::OBJECTIVE, Resource::OLDER_OBJECTIVE, Resource::REWRITE, Resource::OLDER_REWRITE];

pub(super) async fn apply(
    State(store): State<Arc<Store>>,
    Path((group, version, plural, name)): Path<(String, String, String, String)>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let has_path =
        |resource: &Resource| (resource.group, resource.version, resource.plural) == (&*group, &*version, &*plural);
    let Some(resource) = RESOURCES.into_iter().find(has_path) else { return refusal(404) };
    if let Some(status) = store.ask_for_status(resource) {
        return refusal(status);
    }
    if headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind != "application/apply-patch+yaml") {
        return refusal(415);
    }
    let Ok(patch) = serde_json::from_slice::<Value>(&body) else { return refusal(400) };
    let is_complete = patch["apiVersion"] == resource.api_version()
        && patch["kind"] == resource.kind
        && patch["metadata"]["name"] == name.as_str()
        && parameters(&uri).get("fieldManager").is_some_and(|manager| !manager.is_empty());
    if !is_complete {
        return refusal(400);
    }
    match store.apply_conditions(resource, &name, &patch) {
        Ok(object) => axum::Json(object).into_response(),
        Err(code) => refusal(code),
    }
}

/// `object` after `patch` was applied to it: conditions of the same type are replaced, others stay.
pub(super) fn with_conditions(mut object: Value, patch: &Value) -> Value {
    let list = |object: &Value| object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let applied = list(patch);
    let mut conditions = list(&object);
    conditions.retain(|condition| applied.iter().all(|other| other["type"] != condition["type"]));
    conditions.extend(applied);
    conditions.sort_by_key(|condition| condition["type"].to_string());
    object["status"] = json!({"conditions": conditions});
    object
}

/// `object` as it is kept in the place of `before`: whoever writes the object writes no status, and what it asks for has
/// a number.
pub(super) fn keep_status(resource: Resource, object: &mut Value, before: Option<&Value>) {
    if !RESOURCES.contains(&resource) {
        return;
    }
    let before = before.unwrap_or(&Value::Null);
    object["status"] = before["status"].clone();
    let generation = before["metadata"]["generation"].as_i64().unwrap_or(0);
    let changed = object["spec"] != before["spec"] || generation == 0;
    object["metadata"]["generation"] = (generation + i64::from(changed)).into();
}
