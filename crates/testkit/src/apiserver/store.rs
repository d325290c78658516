use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::reviews::Reviews;
use super::selector::Selection;
use super::{NAMESPACE, Resource, conditions};

/// The objects, and everything that has happened to them.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) reviews: Reviews,
    /// Everything else is forbidden.
    granted: BTreeSet<String>,
    state: Mutex<State>,
    /// Changes with every change of the state.
    news: watch::Sender<()>,
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
    /// Of watches alone.
    watch_refusals: BTreeMap<Resource, u16>,
    /// Of writes of status.
    status_refusals: BTreeMap<Resource, u16>,
    status_writes: usize,
    /// Writes are not answered.
    mute: bool,
    delay: Duration,
    /// No list has more objects than that; none: than its reader asks for.
    page: Option<usize>,
    /// Lists are not answered, and watches say nothing.
    silent: bool,
    /// Watches end as soon as they have begun.
    short_watches: bool,
    /// How many times each was granted.
    requests: BTreeMap<String, usize>,
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
    pub(crate) fn new(granted: BTreeSet<String>) -> Self {
        Self { reviews: Reviews::default(), granted, state: Mutex::default(), news: watch::Sender::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.news.send_replace(());
    }

    pub(crate) fn apply(&self, resource: Resource, object: Value) {
        self.change(|state| state.store(resource, object));
    }

    pub(crate) fn object(&self, resource: Resource, name: &str) -> Option<Value> {
        self.state().objects.get(&(resource, name.to_owned())).cloned()
    }

    /// Makes an object that is not there yet; otherwise the status of the refusal.
    pub(crate) fn create(&self, resource: Resource, object: Value) -> Result<Value, u16> {
        self.write(resource, object, |present, _| if present.is_some() { Err(409) } else { Ok(()) })
    }

    /// Replaces an object that is there, in the version that `object` names if it names one; otherwise the status of the
    /// refusal.
    pub(crate) fn replace(&self, resource: Resource, object: Value) -> Result<Value, u16> {
        self.write(resource, object, |present, object| {
            let Some(present) = present else { return Err(404) };
            let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            let is_outdated = version(object).is_some_and(|named| Some(named) != version(present));
            if is_outdated { Err(409) } else { Ok(()) }
        })
    }

    fn write(
        &self,
        resource: Resource,
        object: Value,
        check: impl FnOnce(Option<&Value>, &Value) -> Result<(), u16>,
    ) -> Result<Value, u16> {
        let key = (resource, name(&object));
        let mut outcome = Err(0);
        self.change(|state| {
            outcome = check(state.objects.get(&key), &object).map(|()| {
                state.store(resource, object);
                state.objects[&key].clone()
            });
        });
        outcome
    }

    pub(crate) fn set_mute(&self, mute: bool) {
        self.change(|state| state.mute = mute);
    }

    pub(crate) fn is_mute(&self) -> bool {
        self.state().mute
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

    pub(crate) fn set_watch_refusal(&self, resource: Resource, status: Option<u16>) {
        self.change(|state| match status {
            Some(status) => drop(state.watch_refusals.insert(resource, status)),
            None => drop(state.watch_refusals.remove(&resource)),
        });
    }

    pub(crate) fn set_page(&self, page: Option<usize>) {
        self.change(|state| state.page = page);
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        self.change(|state| state.silent = silent);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.state().silent
    }

    pub(crate) fn set_short_watches(&self, short: bool) {
        self.change(|state| state.short_watches = short);
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    pub(crate) fn delay(&self) -> Duration {
        self.state().delay
    }

    pub(crate) fn requests(&self) -> BTreeMap<String, usize> {
        self.state().requests.clone()
    }

    /// Notes a request that is granted; returns the status with which it is refused, if it is.
    pub(crate) fn ask(&self, verb: &str, resource: Resource) -> Option<u16> {
        let scope = if resource.is_cluster_wide() { " cluster-wide" } else { "" };
        let mut state = self.state();
        if !self.grant(&mut state, format!("{verb} {}/{}{scope}", resource.group, resource.plural)) {
            return Some(403);
        }
        let of_watch = state.watch_refusals.get(&resource).filter(|_| verb == "watch");
        state.refusals.get(&resource).or(of_watch).copied()
    }

    /// As [`ask`](Self::ask), of somebody who writes the status of an object.
    pub(crate) fn ask_for_status(&self, resource: Resource) -> Option<u16> {
        let mut state = self.state();
        state.status_writes += 1;
        if !self.grant(&mut state, format!("patch {}/{}/status", resource.group, resource.plural)) {
            return Some(403);
        }
        state.status_refusals.get(&resource).copied()
    }

    fn grant(&self, state: &mut State, right: String) -> bool {
        let granted = self.granted.contains(&right);
        if granted {
            *state.requests.entry(right).or_default() += 1;
        }
        granted
    }

    pub(crate) fn status_writes(&self) -> usize {
        self.state().status_writes
    }

    pub(crate) fn set_status_refusal(&self, resource: Resource, status: Option<u16>) {
        self.change(|state| match status {
            Some(status) => drop(state.status_refusals.insert(resource, status)),
            None => drop(state.status_refusals.remove(&resource)),
        });
    }

    /// The object once `manager` has applied the conditions of `patch`, which is for one life of it; otherwise the status of the refusal. What
    /// changes nothing makes no new version.
    pub(crate) fn apply_conditions(
        &self,
        resource: Resource,
        name: &str,
        manager: &str,
        patch: &Value,
    ) -> Result<Value, u16> {
        let mut outcome = Err(404);
        self.change(|state| {
            let Some(before) = state.objects.get(&(resource, name.to_owned())).cloned() else { return };
            let uid = &patch["metadata"]["uid"];
            if !uid.is_null() && *uid != before["metadata"]["uid"] {
                outcome = Err(409);
                return;
            }
            let after = conditions::with_applied(before.clone(), manager, &conditions::list(patch));
            outcome = Ok(if after == before { before } else { state.put(resource, after) });
        });
        outcome
    }

    /// Gives an object these conditions in place of those it has, if it is there.
    pub(crate) fn edit_conditions(&self, resource: Resource, name: &str, conditions: &[Value]) {
        self.change(|state| {
            let Some(before) = state.objects.get(&(resource, name.to_owned())).cloned() else { return };
            state.put(resource, conditions::with_edited(before, conditions));
        });
    }

    /// At most `limit` objects, those that come after the first `passed`, which is what the text for going on says.
    pub(crate) fn list(&self, resource: Resource, selection: &Selection, limit: Option<usize>, passed: usize) -> Value {
        let state = self.state();
        let objects = state.objects.iter().filter(|((of, _), object)| *of == resource && selection.has(object));
        let mut items: Vec<&Value> = objects.map(|(_, object)| object).skip(passed).collect();
        let mut metadata = json!({"resourceVersion": state.version.to_string()});
        let limit = limit.into_iter().chain(state.page).min().unwrap_or(usize::MAX);
        if items.len() > limit {
            items.truncate(limit);
            metadata["continue"] = (passed + limit).to_string().into();
        }
        json!({
            "apiVersion": resource.api_version(),
            "kind": format!("{}List", resource.kind),
            "metadata": metadata,
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
        let is_refused = state.refusals.contains_key(&resource) || state.watch_refusals.contains_key(&resource);
        if generation != state.generation || is_refused || state.short_watches {
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

impl State {
    fn store(&mut self, resource: Resource, mut object: Value) {
        let before = self.objects.get(&(resource, name(&object)));
        conditions::keep_status(resource, &mut object, before);
        self.put(resource, object);
    }

    /// The object as it is kept from now on.
    fn put(&mut self, resource: Resource, mut object: Value) -> Value {
        self.version += 1;
        let name = name(&object);
        let before = self.objects.remove(&(resource, name.clone()));
        let uid = before
            .as_ref()
            .map_or_else(|| format!("uid-{}", self.version).into(), |old| old["metadata"]["uid"].clone());
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        let metadata = &mut object["metadata"];
        metadata["namespace"] = NAMESPACE.into();
        metadata["uid"] = uid;
        metadata["resourceVersion"] = self.version.to_string().into();
        self.objects.insert((resource, name), object.clone());
        self.history.push(Happening { version: self.version, resource, before, after: Some(object.clone()) });
        object
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
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
