//! One kind of object, listed and watched for as long as somebody listens, whatever the server does meanwhile.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::causes::causes;
use crate::collection::{Event, Key};

/// The waits between attempts double from the one to the other.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// What is watched, and how its objects are read.
pub(crate) struct Watched<K, T> {
    pub(crate) api: Api<K>,
    /// Which objects of the kind.
    pub(crate) selection: watcher::Config,
    /// As the log calls the kind.
    pub(crate) name: &'static str,
    /// The picker does without where the server does not know the kind or does not let us read it.
    pub(crate) optional: bool,
    /// Or what is wrong with the object.
    pub(crate) read: fn(Key, K) -> Result<T, String>,
}

/// Everything the server says of a kind, without an end. Between two attempts that fail it waits.
pub(crate) fn events<K, T>(watched: Watched<K, T>) -> impl Stream<Item = Event<T>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    T: Send + 'static,
{
    stream::unfold(Watch::new(watched), |mut watch| async move {
        let event = watch.next().await;
        Some((event, watch))
    })
}

struct Watch<K, T> {
    watched: Watched<K, T>,
    stream: BoxStream<'static, watcher::Result<watcher::Event<K>>>,
    waits: Waits,
    /// To be waited before anything else.
    wait: Option<Duration>,
    /// What is wrong at present, as it was logged.
    trouble: Option<String>,
    /// A list has been complete, and the kind has not been removed since.
    listed: bool,
    /// What is wrong with the objects that are left out, as it was logged, by their names.
    unread: BTreeMap<String, String>,
}

impl<K, T> Watch<K, T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    fn new(watched: Watched<K, T>) -> Self {
        let stream = open(&watched);
        let (waits, unread) = (Waits::default(), BTreeMap::new());
        Self { watched, stream, waits, wait: None, trouble: None, listed: false, unread }
    }

    async fn next(&mut self) -> Event<T> {
        loop {
            if let Some(wait) = self.wait.take() {
                tokio::time::sleep(wait).await;
            }
            match self.stream.next().await {
                Some(Ok(event)) => {
                    if let Some(event) = self.take(event) {
                        return event;
                    }
                }
                Some(Err(error)) => {
                    if self.heed(&error) {
                        return Event::Unavailable;
                    }
                }
                None => self.stream = open(&self.watched),
            }
        }
    }

    fn take(&mut self, event: watcher::Event<K>) -> Option<Event<T>> {
        // The beginning of a list is told before the server has been asked.
        if !matches!(event, watcher::Event::Init) {
            self.waits.start_again();
            if self.trouble.take().is_some() {
                tracing::info!(kind = self.watched.name, "the API server is heard again");
            }
        }
        match event {
            watcher::Event::Init => Some(Event::Begin),
            watcher::Event::InitDone => {
                self.listed = true;
                Some(Event::Complete)
            }
            watcher::Event::InitApply(object) => self.read(object).ok().map(Event::Listed),
            // An object that is not understood is none: a list would not have it either.
            watcher::Event::Apply(object) => Some(self.read(object).map_or_else(Event::Deleted, Event::Applied)),
            watcher::Event::Delete(object) => {
                let key = key(object.meta());
                self.unread.remove(&key.name);
                Some(Event::Deleted(key))
            }
        }
    }

    /// Or whose object it is that is not understood.
    fn read(&mut self, object: K) -> Result<T, Key> {
        let key = key(object.meta());
        match (self.watched.read)(key.clone(), object) {
            Ok(read) => {
                self.unread.remove(&key.name);
                Ok(read)
            }
            Err(error) => {
                if self.unread.get(&key.name) != Some(&error) {
                    let (kind, name) = (self.watched.name, &key.name);
                    tracing::warn!(kind, name, error, "an object is not understood, and left out");
                    self.unread.insert(key.name.clone(), error);
                }
                Err(key)
            }
        }
    }

    /// Prepares the next attempt; tells whether the kind counts as one that has no objects.
    fn heed(&mut self, error: &watcher::Error) -> bool {
        self.wait = Some(self.waits.next());
        let status = status(error);
        // A version that is too old stays too old, and so does one of a kind that was removed: only a new list helps.
        // After anything else the watch goes on from where it was.
        if matches!(status, Some(404 | 410)) {
            self.stream = open(&self.watched);
        }
        if status == Some(410) {
            return false;
        }
        let unavailable = self.watched.optional && self.is_without(status);
        if unavailable {
            self.listed = false;
        }
        let text = causes(error);
        if self.trouble.as_ref() != Some(&text) {
            let kind = self.watched.name;
            if unavailable {
                tracing::warn!(kind, error = text, "not served or not allowed: going on without, and asking again");
            } else {
                tracing::error!(kind, error = text, "the API server is not heard: what was last known stays in force");
            }
            self.trouble = Some(text);
        }
        unavailable
    }

    /// A kind that is not served has no objects. One that we may not read may have some: what is known of them stays,
    /// since a role that is made anew forbids everything for a moment.
    fn is_without(&self, status: Option<u16>) -> bool {
        match status {
            Some(404) => true,
            Some(403) => !self.listed,
            _ => false,
        }
    }
}

fn open<K, T>(watched: &Watched<K, T>) -> BoxStream<'static, watcher::Result<watcher::Event<K>>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    watcher(watched.api.clone(), watched.selection.clone()).boxed()
}

fn key(metadata: &ObjectMeta) -> Key {
    Key { name: metadata.name.clone().unwrap_or_default(), uid: metadata.uid.clone().unwrap_or_default() }
}

/// The HTTP status by which the server refused.
fn status(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}

/// How long to wait before the next attempt.
#[derive(Debug, Default)]
struct Waits {
    failures: u32,
}

impl Waits {
    fn next(&mut self) -> Duration {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(16)).min(LONGEST_WAIT);
        self.failures += 1;
        wait
    }

    fn start_again(&mut self) {
        self.failures = 0;
    }
}
