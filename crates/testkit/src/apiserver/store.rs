use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::selector::Selection;
use super::{NAMESPACE, Resource};

/// The objects, and everything that has happened to them.
#[derive(Debug)]
pub(crate) struct Store {
    state: Mutex<State>,
    /// Changes with every change of the state.
    news: watch::Sender<()>,
}

impl Default for Store {
    fn default() -> Self {
        Self { state: Mutex::default(), news: watch::Sender::new(()) }
    }
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    objects: BTreeMap<(Resource, String), Value>,
    history: Vec<Happening>,
    /// Up to this version the history is forgotten.
    forgotten: u64,
    /// How many times all watches have been ended.
    generation: u64,
    refusals: BTreeMap<Resource, u16>,
    delay: Duration,
    requests: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Happening {
    version: u64,
    resource: Resource,
    before: Option<Value>,
    after: Option<Value>,
}

/// What there is for somebody who watches.
pub(crate) enum News {
    /// Lines, and the version from which to go on.
    Events(Vec<Value>, u64),
    /// The version to go on from has been forgotten.
    Gone,
    /// The server ends the watch.
    Ended,
}

impl Store {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.news.send_replace(());
    }

    pub(crate) fn apply(&self, resource: Resource, mut object: Value) {
        self.change(|state| {
            state.version += 1;
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let before = state.objects.remove(&(resource, name.clone()));
            let uid = before
                .as_ref()
                .map_or_else(|| format!("uid-{}", state.version).into(), |old| old["metadata"]["uid"].clone());
            object["apiVersion"] = resource.api_version().into();
            object["kind"] = resource.kind.into();
            let metadata = &mut object["metadata"];
            metadata["namespace"] = NAMESPACE.into();
            metadata["uid"] = uid;
            metadata["resourceVersion"] = state.version.to_string().into();
            state.objects.insert((resource, name), object.clone());
            state.history.push(Happening { version: state.version, resource, before, after: Some(object) });
        });
    }

    pub(crate) fn delete(&self, resource: Resource, name: &str) {
        self.change(|state| {
            let Some(before) = state.objects.remove(&(resource, name.to_owned())) else { return };
            state.version += 1;
            state.history.push(Happening { version: state.version, resource, before: Some(before), after: None });
        });
    }

    pub(crate) fn forget_history(&self) {
        self.change(|state| {
            state.history.clear();
            state.forgotten = state.version;
        });
    }

    pub(crate) fn end_watches(&self) {
        self.change(|state| state.generation += 1);
    }

    pub(crate) fn set_refusal(&self, resource: Resource, status: Option<u16>) {
        self.change(|state| match status {
            Some(status) => {
                state.refusals.insert(resource, status);
            }
            None => {
                state.refusals.remove(&resource);
            }
        });
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    pub(crate) fn delay(&self) -> Duration {
        self.state().delay
    }

    pub(crate) fn requests(&self) -> BTreeSet<String> {
        self.state().requests.clone()
    }

    /// Notes a request; returns the status with which it is refused, if it is.
    pub(crate) fn ask(&self, verb: &str, resource: Resource) -> Option<u16> {
        let mut state = self.state();
        state.requests.insert(format!("{verb} {}/{}", resource.group, resource.plural));
        state.refusals.get(&resource).copied()
    }

    pub(crate) fn list(&self, resource: Resource, selection: &Selection) -> Value {
        let state = self.state();
        let objects = state.objects.iter().filter(|((of, _), object)| *of == resource && selection.has(object));
        let items: Vec<&Value> = objects.map(|(_, object)| object).collect();
        json!({
            "apiVersion": resource.api_version(),
            "kind": format!("{}List", resource.kind),
            "metadata": {"resourceVersion": state.version.to_string()},
            "items": items,
        })
    }

    /// How many times all watches have been ended, and a channel that changes with every change.
    pub(crate) fn subscribe(&self) -> (u64, watch::Receiver<()>) {
        (self.state().generation, self.news.subscribe())
    }

    /// What has happened after `version`, for a watch that began in `generation`.
    pub(crate) fn news(&self, resource: Resource, selection: &Selection, version: u64, generation: u64) -> News {
        let state = self.state();
        if generation != state.generation || state.refusals.contains_key(&resource) {
            return News::Ended;
        }
        if version < state.forgotten {
            return News::Gone;
        }
        let since =
            state.history.iter().filter(|happening| happening.version > version && happening.resource == resource);
        News::Events(since.filter_map(|happening| happening.event(selection)).collect(), state.version)
    }
}

impl Happening {
    /// As somebody sees it who looks at a part of the objects only.
    fn event(&self, selection: &Selection) -> Option<Value> {
        let [before, after] =
            [&self.before, &self.after].map(|object| object.as_ref().filter(|object| selection.has(object)));
        let (kind, object) = match (before, after) {
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => ("DELETED", before),
            (None, None) => return None,
        };
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        Some(json!({"type": kind, "object": object}))
    }
}
