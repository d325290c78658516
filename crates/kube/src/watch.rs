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
use crate::received::Received;

/// The waits between attempts double from the one to the other.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A watch that has failed so often in a row does not get better by going on from the same version.
const MOST_FAILURES_OF_A_WATCH: u32 = 3;

/// What is watched, and how its objects are read.
pub(crate) struct Watched<K, T> {
    pub(crate) api: Api<Received<K>>,
    /// Which objects of the kind.
    pub(crate) selection: watcher::Config,
    /// As the log calls the kind.
    pub(crate) name: &'static str,
    /// The picker does without where the server does not know the kind or does not let us read it.
    pub(crate) optional: bool,
    pub(crate) if_odd: IfOdd,
    /// Or what is wrong with the object.
    pub(crate) read: fn(Key, K) -> Result<T, String>,
}

/// What becomes of an object that cannot be understood.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IfOdd {
    /// It counts as one that is not there.
    IsNone,
    /// It counts as it did when it was last understood.
    Stays,
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
    stream: BoxStream<'static, watcher::Result<watcher::Event<Received<K>>>>,
    waits: Waits,
    /// Between lists where nothing may be watched.
    lists: Waits,
    /// To be waited before anything else.
    wait: Option<Duration>,
    /// What is wrong at present, as it was logged.
    trouble: Option<String>,
    /// The kind may be listed and not watched, as it was logged.
    unwatched: bool,
    /// A list has been complete, and the kind has not been removed since.
    listed: bool,
    unread: Unread,
}

impl<K, T> Watch<K, T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    fn new(watched: Watched<K, T>) -> Self {
        let stream = open(&watched);
        let (waits, lists, unread) = (Waits::default(), Waits::default(), Unread::default());
        Self { watched, stream, waits, lists, wait: None, trouble: None, unwatched: false, listed: false, unread }
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

    fn take(&mut self, event: watcher::Event<Received<K>>) -> Option<Event<T>> {
        // The beginning of a list is told before the server has been asked.
        if !matches!(event, watcher::Event::Init) {
            self.waits.start_again();
            if self.trouble.take().is_some() {
                tracing::info!(kind = self.watched.name, "the API server is heard again");
            }
        }
        match event {
            watcher::Event::Init => {
                self.unread.begin();
                Some(Event::Begin)
            }
            watcher::Event::InitDone => {
                self.listed = true;
                self.unread.complete();
                Some(Event::Complete)
            }
            watcher::Event::InitApply(object) => match (self.read(object), self.watched.if_odd) {
                (Ok(object), _) => Some(Event::Listed(object)),
                (Err(key), IfOdd::Stays) => Some(Event::Kept(key)),
                (Err(_), IfOdd::IsNone) => None,
            },
            watcher::Event::Apply(object) => {
                self.is_watched();
                Some(match (self.read(object), self.watched.if_odd) {
                    (Ok(object), _) => Event::Applied(object),
                    (Err(key), IfOdd::Stays) => Event::Kept(key),
                    (Err(key), IfOdd::IsNone) => Event::Deleted(key),
                })
            }
            watcher::Event::Delete(object) => {
                self.is_watched();
                let key = key(object.meta());
                self.unread.forget(&key.name);
                Some(Event::Deleted(key))
            }
        }
    }

    /// Or whose object it is that is not understood.
    fn read(&mut self, object: Received<K>) -> Result<T, Key> {
        let key = key(object.meta());
        let read = match object {
            Received::Read(_) if key.name.is_empty() => Err("it has no name".to_owned()),
            Received::Read(object) => (self.watched.read)(key.clone(), object),
            Received::Odd { metadata: _, error } => Err(error),
        };
        match read {
            Ok(read) => {
                self.unread.forget(&key.name);
                Ok(read)
            }
            Err(error) => {
                if self.unread.is_news(&key.name, &error) {
                    let (kind, namespace, name) = (self.watched.name, self.watched.api.namespace(), &key.name);
                    let what = match self.watched.if_odd {
                        IfOdd::IsNone => "an object is not understood, and left out",
                        IfOdd::Stays => "an object is not understood: what was last known of it stays in force",
                    };
                    tracing::warn!(kind, namespace, name, error, "{what}");
                }
                Err(key)
            }
        }
    }

    /// Something has been heard by a watch.
    fn is_watched(&mut self) {
        self.lists.start_again();
        if std::mem::take(&mut self.unwatched) {
            tracing::info!(kind = self.watched.name, "it may be watched again");
        }
    }

    /// Prepares the next attempt; tells whether the kind counts as one that has no objects.
    fn heed(&mut self, error: &watcher::Error) -> bool {
        let status = status(error);
        // No patience gives a right, and lists tell of changes as well.
        if matches!((error, status), (watcher::Error::WatchStartFailed(_), Some(403 | 405))) {
            self.list_instead(error);
            return false;
        }
        self.lists.start_again();
        self.wait = Some(self.waits.next());
        // Otherwise the watch goes on from where it was.
        if is_of_version(status) || self.waits.failures >= MOST_FAILURES_OF_A_WATCH {
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
            } else if status.is_some() {
                tracing::error!(kind, error = text, "the API server refuses: what was last known stays in force");
            } else {
                tracing::error!(kind, error = text, "the API server is not heard: what was last known stays in force");
            }
            self.trouble = Some(text);
        }
        unavailable
    }

    /// Whoever may not read at all for a moment is told so by the list, and by nothing here: only the second watch in a row
    /// that is refused after a list says that this one right is missing.
    fn list_instead(&mut self, error: &watcher::Error) {
        if self.lists.failures > 0 && !std::mem::replace(&mut self.unwatched, true) {
            let (kind, error) = (self.watched.name, causes(error));
            tracing::error!(
                kind,
                error,
                "may be listed and not watched, the role lacks that verb: listing every few seconds"
            );
        }
        self.wait = Some(self.lists.next());
        self.stream = open(&self.watched);
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

fn open<K, T>(watched: &Watched<K, T>) -> BoxStream<'static, watcher::Result<watcher::Event<Received<K>>>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    watcher(watched.api.clone(), watched.selection.clone()).boxed()
}

/// Whether it is the version from which the watch would go on that the server cannot serve, so that only a new list helps: one
/// that is too old stays too old, and so does one of a kind that was removed. One that is ahead of the server, whose data
/// were restored from a backup, may be so for ever (504, "too large resource version").
fn is_of_version(status: Option<u16>) -> bool {
    matches!(status, Some(404 | 410 | 504))
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

/// What is wrong with objects that are not understood, as it was logged, by their names.
#[derive(Debug, Default)]
struct Unread {
    errors: BTreeMap<String, String>,
    /// While a list is under way: of those that it has not come to.
    before: BTreeMap<String, String>,
}

impl Unread {
    fn begin(&mut self) {
        self.before.append(&mut self.errors);
    }

    /// What the list does not have is gone.
    fn complete(&mut self) {
        self.before.clear();
    }

    fn forget(&mut self, name: &str) {
        self.errors.remove(name);
        self.before.remove(name);
    }

    /// Whether this has not been logged of the object.
    fn is_news(&mut self, name: &str, error: &str) -> bool {
        let known = self.before.remove(name).or_else(|| self.errors.get(name).cloned());
        self.errors.insert(name.to_owned(), error.to_owned());
        known.as_deref() != Some(error)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_an_object_is_said_once_for_as_long_as_it_is_there() {
        let mut unread = Unread::default();
        assert!(unread.is_news("a", "no port"));
        assert!(!unread.is_news("a", "no port"));
        assert!(unread.is_news("b", "no port"), "of each object");
        assert!(unread.is_news("a", "no selector"), "and of each mistake");
        unread.begin();
        assert!(!unread.is_news("a", "no selector"), "a list says it again");
        // It ends here, and the next one gets further.
        unread.begin();
        assert!(!unread.is_news("a", "no selector"));
        unread.complete();
        assert!(!unread.is_news("a", "no selector"));
        assert!(unread.is_news("b", "no port"), "the list did not have it: it is another one");
        unread.forget("a");
        assert!(unread.is_news("a", "no selector"));
    }
}
