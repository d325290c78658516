//! Watches that end as soon as they have begun are asked for again at longer and longer intervals.
//!
//! The watcher opens the next watch itself and without a pause, whatever the one before was good for, so it is held back
//! on its way to the server.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Uri};
use kube::client::Body;
use sluice_core::{Clock as _, SystemClock, Time};
use tower::{Layer, Service};

/// A watch that has lived for so long was worth it.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The intervals between the beginnings of short watches double from the one to the other.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// Puts [`Paced`] around a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing;

impl<S> Layer<S> for Pacing {
    type Service = Paced<S>;

    fn layer(&self, inner: S) -> Paced<S> {
        Paced { inner, clock: SystemClock::start(), paces: Paces::default() }
    }
}

/// Holds watches back and lets everything else through.
#[derive(Debug)]
pub(crate) struct Paced<S> {
    inner: S,
    clock: SystemClock,
    paces: Paces,
}

impl<S> Service<Request<Body>> for Paced<S>
where
    S: Service<Request<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let wait = if is_watch(request.uri()) {
            self.paces.ask(request.uri().path(), self.clock.now())
        } else {
            Duration::ZERO
        };
        // Nothing is sent before it is polled.
        let answer = self.inner.call(request);
        Box::pin(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            answer.await
        })
    }
}

fn is_watch(uri: &Uri) -> bool {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters.any(|parameter| ["watch=true", "watch=1"].contains(&parameter))
}

/// The latest watch of each path.
#[derive(Debug, Default)]
struct Paces(BTreeMap<String, Pace>);

#[derive(Clone, Copy, Debug)]
struct Pace {
    begun: Time,
    /// How many watches in a row have been short.
    short: u32,
}

impl Paces {
    /// The watch before has ended; tells how long the next one has to wait.
    fn ask(&mut self, path: &str, now: Time) -> Duration {
        let before = self.0.get(path).copied();
        let next = match before {
            Some(Pace { begun, short }) if now.saturating_since(begun) < SHORT_LIFE => {
                let interval = FIRST_INTERVAL.saturating_mul(1 << short.min(16)).min(LONGEST_INTERVAL);
                Pace { begun: now.max(begun.saturating_add(interval)), short: short.saturating_add(1) }
            }
            _ => Pace { begun: now, short: 0 },
        };
        self.0.insert(path.to_owned(), next);
        next.begun.saturating_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_that_end_at_once_come_at_longer_and_longer_intervals() {
        let (mut paces, mut now) = (Paces::default(), Time::from_secs(7));
        for millis in [0, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let wait = paces.ask("/pods", now);
            assert_eq!(wait, Duration::from_millis(millis));
            now = now.saturating_add(wait);
        }
        assert_eq!(paces.ask("/pools", now), Duration::ZERO, "each kind has its own pace");
        let later = now.saturating_add(SHORT_LIFE);
        assert_eq!(paces.ask("/pods", later), Duration::ZERO, "it has lived for long enough");
        assert_eq!(paces.ask("/pods", later), FIRST_INTERVAL);
    }

    #[test]
    fn whoever_has_waited_by_themselves_does_not_wait_again() {
        let (mut paces, mut now) = (Paces::default(), Time::from_secs(7));
        for millis in [100, 200, 400, 800, 1_600, 3_200, 5_000] {
            assert_eq!(paces.ask("/pods", now), Duration::ZERO);
            now = now.saturating_add(Duration::from_millis(millis));
        }
    }

    #[test]
    fn watches_are_told_from_lists() {
        for (uri, expected) in [
            ("/api/v1/namespaces/n/pods?watch=true&timeoutSeconds=60", true),
            ("/api/v1/namespaces/n/pods?&watch=1", true),
            ("/api/v1/namespaces/n/pods?labelSelector=watch%3Dtrue", false),
            ("/api/v1/namespaces/n/pods", false),
        ] {
            assert_eq!(is_watch(&Uri::from_static(uri)), expected, "{uri}");
        }
    }
}
