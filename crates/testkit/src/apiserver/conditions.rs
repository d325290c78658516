//! The status of objects, as those write it who report on them: by server-side apply, of conditions only, and always
//! with force.

use std::collections::{BTreeMap, BTreeSet};
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

/// Of a field manager's name.
const LONGEST_MANAGER: usize = 128;

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
    let parameters = parameters(&uri);
    let manager = parameters.get("fieldManager").filter(|manager| (1..=LONGEST_MANAGER).contains(&manager.len()));
    let is_complete = patch["apiVersion"] == resource.api_version()
        && patch["kind"] == resource.kind
        && patch["metadata"]["name"] == name.as_str()
        && parameters.get("force").is_some_and(|force| force == "true");
    let Some(manager) = manager.filter(|_| is_complete) else { return refusal(400) };
    match store.apply_conditions(resource, &name, manager, &patch) {
        Ok(object) => axum::Json(object).into_response(),
        Err(code) => refusal(code),
    }
}

/// `object` after `manager` has applied these conditions, with force: what others apply that is different is theirs no
/// more, and what the manager has applied before and does not apply now is gone, unless it is others' as well.
pub(super) fn with_applied(mut object: Value, manager: &str, applied: &[Value]) -> Value {
    let mut owners = owners(&object);
    let before = owners.remove(manager).unwrap_or_default();
    let kinds: BTreeSet<String> = applied.iter().map(kind).collect();
    let is_kept = |condition: &Value| {
        let kind = kind(condition);
        !kinds.contains(&kind) && (!before.contains(&kind) || owners.values().any(|kinds| kinds.contains(&kind)))
    };
    let present = list(&object);
    let mut conditions: Vec<Value> = present.iter().filter(|condition| is_kept(condition)).cloned().collect();
    for condition in applied {
        if !present.contains(condition) {
            for kinds in owners.values_mut() {
                kinds.remove(&kind(condition));
            }
        }
        conditions.push(condition.clone());
    }
    owners.insert(manager.to_owned(), kinds);
    set(&mut object, conditions, owners);
    object
}

/// `object` after somebody has written these conditions in place of all that it had: what is different from before is
/// nobody's who applies.
pub(super) fn with_edited(mut object: Value, conditions: &[Value]) -> Value {
    let present = list(&object);
    let stays: BTreeSet<String> = conditions.iter().filter(|one| present.contains(one)).map(kind).collect();
    let mut owners = owners(&object);
    owners.values_mut().for_each(|kinds| kinds.retain(|kind| stays.contains(kind)));
    set(&mut object, conditions.to_vec(), owners);
    object
}

pub(super) fn list(object: &Value) -> Vec<Value> {
    object["status"]["conditions"].as_array().cloned().unwrap_or_default()
}

fn kind(condition: &Value) -> String {
    condition["type"].as_str().unwrap_or_default().to_owned()
}

/// Who applies conditions of which types.
type Owners = BTreeMap<String, BTreeSet<String>>;

fn owners(object: &Value) -> Owners {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let owner = |entry: &Value| {
        let fields = entry["fieldsV1"]["f:status"]["f:conditions"].as_object()?;
        let key = |field: &String| serde_json::from_str::<Value>(field.strip_prefix("k:")?).ok();
        Some((entry["manager"].as_str()?.to_owned(), fields.keys().filter_map(key).map(|key| kind(&key)).collect()))
    };
    entries.filter_map(owner).collect()
}

fn set(object: &mut Value, mut conditions: Vec<Value>, owners: Owners) {
    conditions.sort_by_key(kind);
    object["status"] = json!({"conditions": conditions});
    let entry = |(manager, kinds): (String, BTreeSet<String>)| {
        let field = |kind: &String| (format!("k:{}", json!({"type": kind})), json!({}));
        let fields: serde_json::Map<String, Value> = kinds.iter().map(field).collect();
        json!({
            "manager": manager,
            "operation": "Apply",
            "subresource": "status",
            "apiVersion": object["apiVersion"],
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": {"f:conditions": fields}},
        })
    };
    let entries: Vec<Value> = owners.into_iter().filter(|(_, kinds)| !kinds.is_empty()).map(entry).collect();
    object["metadata"]["managedFields"] = entries.into();
}

/// `object` as it is kept in the place of `before`: whoever writes the object writes no status, and what it asks for has
/// a number.
pub(super) fn keep_status(resource: Resource, object: &mut Value, before: Option<&Value>) {
    if !RESOURCES.contains(&resource) {
        return;
    }
    let before = before.unwrap_or(&Value::Null);
    object["status"] = before["status"].clone();
    object["metadata"]["managedFields"] = before["metadata"]["managedFields"].clone();
    let generation = before["metadata"]["generation"].as_i64().unwrap_or(0);
    let changed = object["spec"] != before["spec"] || generation == 0;
    object["metadata"]["generation"] = (generation + i64::from(changed)).into();
}
